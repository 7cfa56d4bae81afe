"""Track files in SQL: log their lines and store how much of each file has been processed."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Engine, bindparam, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Invalid, NotFound
from retarget.core.limits import MAX_TAG_LENGTH
from retarget.core.tracking import Metric
from retarget.store.engine import insert_new, reading, writing
from retarget.store.runs import conflicts, log_in
from retarget.store.schema import runs, tags, track_files

_METRICS_PER_STATEMENT = 5000
_TABLES_TAG = "mlflow.loggedArtifacts"  # the tag in which clients look for the tables of a run
_SELECT_RUN = select(runs.c.experiment_id, runs.c.location).where(runs.c.id == bindparam("job"))


class Logged(NamedTuple):
    """What some lines of a track file log, in their order."""

    metrics: Sequence[Metric] = ()
    params: Sequence[tuple[str, str]] = ()
    tags: Mapping[str, str] = MappingProxyType({})
    tables: Sequence[str] = ()  # paths of artifacts


class TrackFiles:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run_of(self, job_id: str) -> tuple[str, str]:
        """Return the experiment of a job's run, and the location of its artifacts."""
        with reading(self.engine) as db:
            row = db.execute(_SELECT_RUN, {"job": job_id}).one_or_none()
        if row is None:
            raise NotFound(f"job {job_id} has no run")
        return str(row.experiment_id), row.location

    def processed_bytes(self, attempt: str, name: str) -> int:
        """Return how many bytes of a file have been processed."""
        with reading(self.engine) as db:
            return db.scalar(_select_processed_bytes(attempt, name)) or 0

    def log_lines(
        self, file: tuple[str, str], sizes: tuple[int, int], run_id: str, logged: Logged
    ) -> list[str]:
        """Log the lines of a file between two sizes, unless that has happened already.

        Return a sentence for everything that was refused: a param keeps its first value, and a
        deleted run accepts nothing.
        """
        try:
            with writing(self.engine) as db:
                if not _advance(db, file, sizes):
                    return []
                return _log(db, run_id, logged)
        except (Invalid, NotFound) as error:
            with writing(self.engine) as db:
                _advance(db, file, sizes)
            return [str(error)]


def _select_processed_bytes(attempt: str, name: str) -> Any:
    is_file = (track_files.c.attempt == attempt) & (track_files.c.name == name)
    return select(track_files.c.processed_bytes).where(is_file)


def _advance(db: Connection, file: tuple[str, str], sizes: tuple[int, int]) -> bool:
    """Advance from one size to the next. Return False if the stored size has changed."""
    attempt, name = file
    if sizes[0] == 0:
        try:
            insert_new(db, track_files, [{"attempt": attempt, "name": name, "processed_bytes": 0}])
        except IntegrityError:
            raise NotFound(f"no attempt {attempt!r}; its job may have been deleted") from None
    is_file = (track_files.c.attempt == attempt) & (track_files.c.name == name)
    advance = update(track_files).where(is_file, track_files.c.processed_bytes == sizes[0])
    return db.execute(advance.values(processed_bytes=sizes[1])).rowcount == 1


def _log(db: Connection, run_id: str, logged: Logged) -> list[str]:
    params, refused = _keep_first(db, run_id, logged.params)
    log_in(db, run_id, (), params, {**logged.tags, **_tables(db, run_id, logged.tables)})
    for metrics in _batches(logged.metrics):
        log_in(db, run_id, metrics, {}, {})
    return refused


def _keep_first(
    db: Connection, run_id: str, pairs: Sequence[tuple[str, str]]
) -> tuple[dict[str, str], list[str]]:
    """Return the params that can be set, and a sentence for each value that is refused."""
    first: dict[str, str] = {}
    for key, value in pairs:
        first.setdefault(key, value)
    existing = conflicts(db, run_id, first) if first else {}
    final = first | existing
    refused = [
        f"param {key!r} keeps its value {final[key][:100]!r}; the later {value[:100]!r} is ignored"
        for key, value in pairs
        if value != final[key]
    ]
    return {key: value for key, value in first.items() if key not in existing}, refused


def _tables(db: Connection, run_id: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the tag that lists the tables of a run, with these paths added."""
    if not paths:
        return {}
    is_tag = (tags.c.run_id == run_id) & (tags.c.key == _TABLES_TAG)
    listed = _listed(db.scalar(select(tags.c.value).where(is_tag)) or "[]")
    new = [{"path": path, "type": "table"} for path in paths]
    text = json.dumps(listed + [table for table in new if table not in listed])
    return {_TABLES_TAG: text} if len(text) <= MAX_TAG_LENGTH else {}


def _listed(text: str) -> list[Any]:
    try:
        listed = json.loads(text)
    except ValueError:
        return []
    return cast("list[Any]", listed) if isinstance(listed, list) else []


def _batches(metrics: Sequence[Metric]) -> list[Sequence[Metric]]:
    return [
        metrics[at : at + _METRICS_PER_STATEMENT]
        for at in range(0, len(metrics), _METRICS_PER_STATEMENT)
    ]
