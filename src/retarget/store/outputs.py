"""Outputs in SQL: which files each attempt left, and the blobs that hold them."""

from sqlalchemy import Engine, delete, select
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import NotFound
from retarget.core.jobs import Output
from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import outputs


class Outputs:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def put(self, job_id: str, attempt: int, *files: Output) -> None:
        """Keep files of an attempt, each in the place of an earlier one at the same path."""
        of = {"job_id": job_id, "attempt": attempt}
        rows = [
            {"path": each.path, "size": each.size, "digest": each.digest} | of for each in files
        ]
        try:
            with writing(self.engine) as db:
                upsert(db, outputs, *rows, replace=("size", "digest"))
        except IntegrityError as error:
            raise NotFound(f"no job {job_id!r}; it may have been deleted") from error

    def remove(self, job_id: str, attempt: int, *paths: str) -> None:
        """Forget files. One that is not there is fine."""
        which = (outputs.c.job_id == job_id) & (outputs.c.attempt == attempt)
        with writing(self.engine) as db:
            for path in paths:
                db.execute(delete(outputs).where(which, outputs.c.path == path))

    def digests(self) -> set[str]:
        """Return every blob that an output refers to."""
        with reading(self.engine) as db:
            return set(db.scalars(select(outputs.c.digest).distinct()))

    # last in the class: below it, `list` would not mean a list any more
    def list(self, job_id: str, attempt: int) -> list[Output]:
        """Return what an attempt left, by path."""
        which = (outputs.c.job_id == job_id) & (outputs.c.attempt == attempt)
        columns = [outputs.c[name] for name in Output.model_fields]
        with reading(self.engine) as db:
            rows = db.execute(select(*columns).where(which)).mappings()
            found = [Output.model_validate(dict(row)) for row in rows]
        return sorted(found, key=lambda output: output.path)
