"""Members in SQL: the reports of each node of an attempt that has several."""

from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict
from retarget.core.jobs import Member
from retarget.store.engine import reading, writing
from retarget.store.schema import members


class Members:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def of(self, key: str) -> list[Member]:
        """Return the nodes that have reported, in order."""
        columns = [members.c[name] for name in Member.model_fields]
        query = select(*columns).where(members.c.key == key).order_by(members.c.node)
        with reading(self.engine) as db:
            return [Member.model_validate(dict(row)) for row in db.execute(query).mappings()]

    def replace(self, key: str, before: Member | None, after: Member) -> None:
        """Store a node's report, or raise Conflict if the node has reported more meanwhile."""
        row = after.model_dump()
        try:
            with writing(self.engine) as db:
                if before is None:
                    db.execute(insert(members).values(key=key, **row))
                    return
                is_node = (members.c.key == key) & (members.c.node == after.node)
                unchanged = members.c.events_acked == before.events_acked
                if not db.execute(update(members).where(is_node, unchanged).values(row)).rowcount:
                    raise Conflict("the node has reported more meanwhile")
        except IntegrityError as error:
            raise Conflict("the node has reported meanwhile") from error
