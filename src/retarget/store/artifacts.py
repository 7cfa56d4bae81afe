"""Artifacts in SQL: the files of the tree that MLflow clients know as mlflow-artifacts:/.

The folder of a job's own run also shows the outputs of the job's current attempt.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, collate, delete, or_, select

from retarget.core.errors import Invalid, NotFound
from retarget.core.events import Change, Noun
from retarget.core.tracking import artifact_path
from retarget.store.changes import note
from retarget.store.engine import insert_new, reading, upsert, writing
from retarget.store.schema import artifacts, jobs, logged_models, model_versions, outputs, runs

_ROWS_PER_READ = 1000
_OF_RUN = re.compile(r"(?:.*/)?([0-9a-f]{32})/artifacts/")

_FileQuery = Select[*tuple[Any, ...]]


class Artifact(NamedTuple):
    """A file of the tree."""

    path: str
    size: int
    digest: str


class Entry(NamedTuple):
    """A file or a folder in a folder. A folder has no size."""

    name: str
    is_dir: bool
    size: int | None = None


class JobOutputs(NamedTuple):
    """The outputs of a job, and the folder of the tree that shows them."""

    folder: str
    job_id: str
    attempt: int


class Artifacts:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def put(self, path: str, size: int, digest: str) -> None:
        """Store a file. It replaces an earlier one at the same path."""
        self.put_all([Artifact(path, size, digest)])

    def put_all(self, files: Iterable[Artifact]) -> None:
        """Store all files, or none: a path cannot be both a file and a folder."""
        with writing(self.engine) as db:
            _put(db, files)

    def find(self, path: str) -> Artifact:
        """Return a file, or raise NotFound. Raise Invalid if the path is a folder."""
        with reading(self.engine) as db:
            file = _find(db, path)
            if file is not None:
                return file
            if path == "" or _has_below(db, path):
                raise Invalid(f"Artifact path refers to a directory, not a file: '{path}'")
        raise NotFound(f"No such artifact: '{path}'")

    def walk(self, path: str) -> list[Artifact]:
        """Return all files below a folder, by path. For the path of a file, return that file."""
        with reading(self.engine) as db:
            return _walk(db, path)

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder, but no outputs. A missing path is not an error."""
        with writing(self.engine) as db:
            removed = db.execute(delete(artifacts).where(_at_or_below(path))).rowcount
            _note(db, f"{path}/")
            source = _job_outputs(db, path)
            if not removed and source is not None and path != source.folder and _walk(db, path):
                raise Invalid(
                    f"{path!r} is an output of job {source.job_id}; delete the job to remove it"
                )

    def digests(self) -> set[str]:
        """Return the digests of all blobs that files of the tree refer to."""
        with reading(self.engine) as db:
            return set(db.scalars(select(artifacts.c.digest).distinct()))

    def belongs_to(self, folder: str, job_id: str) -> bool:
        """Return whether a folder is in a run or a logged model that this job created."""
        names = folder.split("/")  # the path of a run's folder contains the id of the run
        with reading(self.engine) as db:
            for table in (runs, logged_models):
                of_job = table.c.id.in_(names) & (table.c.job_id == job_id)
                for location in db.scalars(select(table.c.location).where(of_job)):
                    if _is_within(folder, artifact_path(location)):
                        return True
        return False

    def remove_of_job(self, job_id: str) -> None:
        """Remove the files of a job's runs and logged models, before the job is deleted.

        The files of registered models stay. Those that are outputs of the job become artifacts.
        """
        with writing(self.engine) as db:
            for folder in _folders_of_job(db, job_id):
                kept = _registered_files(db, folder)
                db.execute(delete(artifacts).where(_at_or_below(folder)))
                insert_new(db, artifacts, [file._asdict() for file in kept])

    # last in the class: below it, `list` means this method
    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, by name. A file or a missing folder has none."""
        with reading(self.engine) as db:
            by_name = {entry.name: entry for entry in _entries(db, folder)}
            source = _job_outputs(db, folder)
            for entry in _output_entries(db, source, folder) if source else ():
                by_name.setdefault(entry.name, entry)
        return sorted(by_name.values())


def _at_or_below(path: str) -> ColumnElement[bool]:
    """Return the condition for the file at a path and all files below it."""
    return or_(artifacts.c.path == path, below(artifacts.c.path, path))


def below(column: ColumnElement[str], folder: str) -> ColumnElement[bool]:
    """Return the condition for all paths below a folder: one range, as paths sort by bytes."""
    if not folder:
        return column >= ""
    return and_(column >= f"{folder}/", column < f"{folder}0")  # "0" is the character after "/"


def _is_within(path: str, folder: str | None) -> bool:
    return bool(folder) and (path == folder or path.startswith(f"{folder}/"))


def _put(db: Connection, files: Iterable[Artifact]) -> None:
    for file in files:
        _check_free(db, file.path)
        upsert(db, artifacts, file._asdict(), replace=("size", "digest"))
        _note(db, file.path)


def _note(db: Connection, path: str) -> None:
    """Note that a file of a run has changed: a job's own run has the id of the job."""
    of_run = _OF_RUN.match(path)
    if of_run is not None:
        note(db, Change(Noun.OUTPUT, of_run[1], job=of_run[1]))


def _check_free(db: Connection, path: str) -> None:
    names = path.split("/")
    folders = ["/".join(names[:count]) for count in range(1, len(names))]
    file = db.scalar(select(artifacts.c.path).where(artifacts.c.path.in_(folders)).limit(1))
    if file is not None:
        raise Invalid(f"{path!r} cannot be written: {file!r} is a file", field="path")
    inside = select(artifacts.c.path).where(below(artifacts.c.path, path)).limit(1)
    if db.scalar(inside) is not None:
        raise Invalid(f"{path!r} cannot be written: it is a folder", field="path")


def _find(db: Connection, path: str) -> Artifact | None:
    row = db.execute(select(artifacts).where(artifacts.c.path == path)).one_or_none()
    if row is not None:
        return Artifact(*row)
    source = _job_outputs(db, path)
    if source is None or path == source.folder:
        return None
    query = _select_outputs(source).where(outputs.c.path == path[len(source.folder) + 1 :])
    row = db.execute(query).one_or_none()
    return None if row is None else Artifact(path, row.size, row.digest)


def _has_below(db: Connection, path: str) -> bool:
    inside = select(artifacts.c.path).where(below(artifacts.c.path, path)).limit(1)
    return db.scalar(inside) is not None or bool(_walk_outputs(db, _job_outputs(db, path), path))


def _walk(db: Connection, path: str) -> list[Artifact]:
    rows = db.execute(
        select(artifacts).where(_at_or_below(path) if path else below(artifacts.c.path, ""))
    )
    by_path = {row.path: Artifact(*row) for row in rows}
    for file in _walk_outputs(db, _job_outputs(db, path), path):
        by_path.setdefault(file.path, file)
    return sorted(by_path.values())


def _job_outputs(db: Connection, path: str) -> JobOutputs | None:
    """Return the outputs of the job whose own run has its folder at the path or above it."""
    query = select(runs.c.location, jobs.c.id, jobs.c.attempt).join(jobs, jobs.c.id == runs.c.id)
    for location, job_id, attempt in db.execute(query.where(runs.c.id.in_(path.split("/")))):
        folder = artifact_path(location)
        if folder and _is_within(path, folder):
            return JobOutputs(folder, job_id, attempt)
    return None


def _select_outputs(source: JobOutputs) -> _FileQuery:
    columns = select(outputs.c.path, outputs.c.size, outputs.c.digest)
    return columns.where(outputs.c.job_id == source.job_id, outputs.c.attempt == source.attempt)


def _walk_outputs(db: Connection, source: JobOutputs | None, path: str) -> list[Artifact]:
    if source is None:
        return []
    inner, column = path[len(source.folder) + 1 :], _by_bytes(db)
    query = _select_outputs(source).where(or_(column == inner, below(column, inner)))
    rows = db.execute(query).all()
    return [Artifact(f"{source.folder}/{row.path}", row.size, row.digest) for row in rows]


def _by_bytes(db: Connection) -> ColumnElement[str]:
    return collate(outputs.c.path, "C" if db.dialect.name == "postgresql" else "BINARY")


def _entries(db: Connection, folder: str) -> Iterator[Entry]:
    return _level(db, select(artifacts), artifacts.c.path, folder)


def _output_entries(db: Connection, source: JobOutputs, folder: str) -> Iterator[Entry]:
    return _level(db, _select_outputs(source), _by_bytes(db), folder[len(source.folder) + 1 :])


def _level(
    db: Connection, files: _FileQuery, column: ColumnElement[str], folder: str
) -> Iterator[Entry]:
    """Yield the entries of a folder. Files deeper in its folders are skipped unread."""
    start = prefix = f"{folder}/" if folder else ""
    while True:
        query = (
            files.where(below(column, folder), column >= start)
            .order_by(column)
            .limit(_ROWS_PER_READ)
        )
        rows = db.execute(query).all()
        for row in rows:
            if row.path < start:
                continue
            name, slash, _ = row.path[len(prefix) :].partition("/")
            yield Entry(name, True) if slash else Entry(name, False, row.size)
            # no path has a character before "\1", so no path is in between
            start = f"{prefix}{name}0" if slash else f"{row.path}\1"
        if len(rows) < _ROWS_PER_READ:
            return


def _folders_of_job(db: Connection, job_id: str) -> set[str]:
    """Return the folders of a job's runs and models: their paths contain the ids of these."""
    folders: set[str] = set()
    for table in (runs, logged_models):
        query = select(table.c.id, table.c.location).where(table.c.job_id == job_id)
        for row_id, location in db.execute(query):
            folder = artifact_path(location) or ""
            if row_id in folder.split("/"):
                folders.add(folder)
    return folders


def _registered_files(db: Connection, folder: str) -> list[Artifact]:
    """Return the files in a folder that belong to a version of a registered model."""
    locations = db.scalars(select(model_versions.c.location).distinct())
    used = {artifact_path(location) for location in locations}
    near = [
        path for path in used if path and (_is_within(path, folder) or _is_within(folder, path))
    ]
    files = _walk(db, folder) if near else []
    return [file for file in files if any(_is_within(file.path, path) for path in near)]
