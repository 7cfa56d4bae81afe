"""How much of the track files of attempts is taken in, in SQL: once, with what they say."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Engine, bindparam, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Invalid, NotFound
from retarget.core.limits import LONGEST_TAG
from retarget.core.tracking import Metric
from retarget.store.engine import insert_new, reading, writing
from retarget.store.runs import conflicts, log_in
from retarget.store.schema import runs, tags, track_files

_AT_ONCE = 5000  # a statement can name so many metrics
_TABLES = "mlflow.loggedArtifacts"  # where clients look for the tables of a run
_RUN_OF = select(runs.c.experiment_id, runs.c.location).where(runs.c.id == bindparam("job"))


class Logged(NamedTuple):
    """What some lines of a track file say, in their order."""

    metrics: Sequence[Metric] = ()
    params: Sequence[tuple[str, str]] = ()
    tags: Mapping[str, str] = MappingProxyType({})
    tables: Sequence[str] = ()  # paths of artifacts


class TrackFiles:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run_of(self, job_id: str) -> tuple[str, str]:
        """Return the experiment of a job's run, and where its artifacts go."""
        with reading(self.engine) as db:
            row = db.execute(_RUN_OF, {"job": job_id}).one_or_none()
        if row is None:
            raise NotFound(f"job {job_id} has no run")
        return str(row.experiment_id), row.location

    def taken(self, attempt: str, name: str) -> int:
        """Return how many bytes of a file are taken in."""
        with reading(self.engine) as db:
            return db.scalar(_taken(attempt, name)) or 0

    def take(
        self, file: tuple[str, str], sizes: tuple[int, int], run_id: str, logged: Logged
    ) -> list[str]:
        """Take in what a file says between two sizes, unless that has happened already.

        Return what is left out, and why: a param keeps its first value, and a run that was
        deleted takes in nothing.
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


def _taken(attempt: str, name: str) -> Any:
    which = (track_files.c.attempt == attempt) & (track_files.c.name == name)
    return select(track_files.c.taken).where(which)


def _advance(db: Connection, file: tuple[str, str], sizes: tuple[int, int]) -> bool:
    """Move on from one size to the next; False if the file is elsewhere by now."""
    attempt, name = file
    if sizes[0] == 0:
        try:
            insert_new(db, track_files, [{"attempt": attempt, "name": name, "taken": 0}])
        except IntegrityError:
            raise NotFound(f"no attempt {attempt!r}; its job may have been deleted") from None
    which = (track_files.c.attempt == attempt) & (track_files.c.name == name)
    move = update(track_files).where(which, track_files.c.taken == sizes[0])
    return db.execute(move.values(taken=sizes[1])).rowcount == 1


def _log(db: Connection, run_id: str, logged: Logged) -> list[str]:
    params, refused = _keep_first(db, run_id, logged.params)
    log_in(db, run_id, (), params, {**logged.tags, **_tables(db, run_id, logged.tables)})
    for some in _parts(logged.metrics):
        log_in(db, run_id, some, {}, {})
    return refused


def _keep_first(
    db: Connection, run_id: str, pairs: Sequence[tuple[str, str]]
) -> tuple[dict[str, str], list[str]]:
    """Return the params that can be set, and a sentence for each that has another value."""
    first: dict[str, str] = {}
    for key, value in pairs:
        first.setdefault(key, value)
    there = conflicts(db, run_id, first) if first else {}
    stays = first | there
    refused = [
        f"param {key!r} stays {stays[key][:100]!r}; the later {value[:100]!r} is left out"
        for key, value in pairs
        if value != stays[key]
    ]
    return {key: value for key, value in first.items() if key not in there}, refused


def _tables(db: Connection, run_id: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the tag that lists the tables of a run, with these among them."""
    if not paths:
        return {}
    mine = (tags.c.run_id == run_id) & (tags.c.key == _TABLES)
    listed = _listed(db.scalar(select(tags.c.value).where(mine)) or "[]")
    new = [{"path": path, "type": "table"} for path in paths]
    text = json.dumps(listed + [each for each in new if each not in listed])
    return {_TABLES: text} if len(text) <= LONGEST_TAG else {}


def _listed(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return cast("list[Any]", found) if isinstance(found, list) else []


def _parts(metrics: Sequence[Metric]) -> list[Sequence[Metric]]:
    return [metrics[at : at + _AT_ONCE] for at in range(0, len(metrics), _AT_ONCE)]
