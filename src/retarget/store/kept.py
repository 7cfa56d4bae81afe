"""What attempts wrote outside of outputs/, in SQL: one report per node."""

import json
from dataclasses import asdict

from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import NotFound
from retarget.core.kept import Kept, Missed
from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import kept_files


class KeptFiles:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def put(self, job_id: str, attempt: int, node: int, kept: Kept) -> None:
        """Store the report of a node. It replaces an earlier one."""
        row = {"job_id": job_id, "attempt": attempt, "node": node}
        try:
            with writing(self.engine) as db:
                upsert(
                    db, kept_files, row | {"report": json.dumps(asdict(kept))}, replace=("report",)
                )
        except IntegrityError as error:
            raise NotFound(f"no job {job_id!r}; it may have been deleted") from error

    def read(self, job_id: str, attempt: int) -> list[Kept]:
        """Return the reports of an attempt, by node."""
        query = (
            select(kept_files.c.report)
            .where(kept_files.c.job_id == job_id, kept_files.c.attempt == attempt)
            .order_by(kept_files.c.node)
        )
        with reading(self.engine) as db:
            return [_parse(report) for report in db.scalars(query)]


def _parse(report: str) -> Kept:
    fields = json.loads(report)
    return Kept(**fields | {"missed": [Missed(**row) for row in fields["missed"]]})
