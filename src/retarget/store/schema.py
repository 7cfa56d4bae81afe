"""The tables. A change here needs a migration beside it in `migrations/versions`."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    UniqueConstraint,
)


class Words(TypeDecorator[str]):
    """Text that any database takes: what a target or a client said may hold what SQL refuses."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Words, primary_key=True),
    Column("name", Words, nullable=False, unique=True),
    Column("state", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("version", Integer, nullable=False),
    Column("spec", JSON, nullable=False),
    # these four are in the spec too; here they can be searched
    Column("target", Words, nullable=False),
    Column("experiment", Words, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("snapshot", Words),
    Column("attempt", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("created", Double, nullable=False),
    Column("changed", Double, nullable=False),
    Column("started", Double),
    Column("ended", Double),
)
# Every listing is a walk along one of these, newest first; none of them sorts.
Index("jobs_by_state", jobs.c.state, jobs.c.id)
Index("jobs_by_target", jobs.c.target, jobs.c.id)
Index("jobs_by_target_and_state", jobs.c.target, jobs.c.state, jobs.c.id)
Index("jobs_by_experiment", jobs.c.experiment, jobs.c.id)
Index("jobs_by_experiment_and_state", jobs.c.experiment, jobs.c.state, jobs.c.id)
Index("jobs_in_placing_order", jobs.c.target, jobs.c.state, jobs.c.priority.desc(), jobs.c.id)

history = Table(
    "history",
    metadata,
    Column("job_id", Words, ForeignKey(jobs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("event", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("at", Double, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job_id", Words, ForeignKey(jobs.c.id, ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("target", Words, nullable=False),
    Column("handle", Words),
    Column("shares", JSON, nullable=False),
    Column("confirmed", BigInteger, nullable=False),
    Column("heard", Double),
    Column("resumes", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("reason", Words, nullable=False),
    Column("created", Double, nullable=False),
    Column("started", Double),
    Column("ended", Double),
    UniqueConstraint("job_id", "number"),
)
# few have a handle: those that are live, and those with something to clear away
Index(
    "attempts_with_handle",
    attempts.c.ended,
    sqlite_where=attempts.c.handle.is_not(None),
    postgresql_where=attempts.c.handle.is_not(None),
)

outputs = Table(
    "outputs",
    metadata,
    Column("job_id", Words, ForeignKey(jobs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("path", Words, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("digest", Words, nullable=False),
)

targets = Table(
    "targets",
    metadata,
    Column("name", Words, primary_key=True),
    Column("kind", Words, nullable=False),
    Column("config", JSON, nullable=False),
    Column("facts", JSON(none_as_null=True)),
    Column("checked", Double),
    Column("reason", Words, nullable=False),
    # how many attempts were ever placed there: who places the next one names the number it saw
    Column("placements", Integer, nullable=False, default=0),
)

environments = Table(
    "environments",
    metadata,
    Column("digest", Words, primary_key=True),
    Column("definition", JSON, nullable=False),
    Column("created", Double, nullable=False),
)

environment_names = Table(
    "environment_names",
    metadata,
    Column("name", Words, primary_key=True),
    Column("digest", Words, ForeignKey(environments.c.digest, ondelete="CASCADE"), nullable=False),
)
