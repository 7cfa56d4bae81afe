"""Outputs in SQL: the files of each attempt, and the blobs that hold them."""

from sqlalchemy import Engine, delete, select
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import NotFound
from retarget.core.events import Change, Noun
from retarget.core.jobs import Output
from retarget.store.changes import note
from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import outputs


class Outputs:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def put(self, job_id: str, attempt: int, *files: Output) -> None:
        """Store files of an attempt. Each replaces an earlier one with the same path."""
        owner = {"job_id": job_id, "attempt": attempt}
        rows = [
            {"path": file.path, "size": file.size, "digest": file.digest} | owner for file in files
        ]
        try:
            with writing(self.engine) as db:
                upsert(db, outputs, *rows, replace=("size", "digest"))
                note(db, Change(Noun.OUTPUT, job_id, attempt, job_id))
        except IntegrityError as error:
            raise NotFound(f"no job {job_id!r}; it may have been deleted") from error

    def remove(self, job_id: str, attempt: int, *paths: str) -> None:
        """Remove files. A missing file is not an error."""
        of_attempt = (outputs.c.job_id == job_id) & (outputs.c.attempt == attempt)
        with writing(self.engine) as db:
            for path in paths:
                db.execute(delete(outputs).where(of_attempt, outputs.c.path == path))
            note(db, Change(Noun.OUTPUT, job_id, attempt, job_id))

    def digests(self) -> set[str]:
        """Return the digests of all blobs that outputs refer to."""
        with reading(self.engine) as db:
            return set(db.scalars(select(outputs.c.digest).distinct()))

    # last in the class: below it, `list` means this method
    def list(self, job_id: str, attempt: int) -> list[Output]:
        """Return the output files of an attempt, by path."""
        of_attempt = (outputs.c.job_id == job_id) & (outputs.c.attempt == attempt)
        columns = [outputs.c[name] for name in Output.model_fields]
        with reading(self.engine) as db:
            rows = db.execute(select(*columns).where(of_attempt)).mappings()
            files = [Output.model_validate(dict(row)) for row in rows]
        return sorted(files, key=lambda output: output.path)
