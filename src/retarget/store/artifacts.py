"""Artifacts in SQL: the tree that MLflow's clients know as mlflow-artifacts:/, file by file.

The folder of a job's own run also shows what the job left: the outputs of its present attempt.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, collate, delete, or_, select

from retarget.core.errors import Invalid, NotFound
from retarget.core.tracking import artifact_path
from retarget.store.engine import insert_new, reading, upsert, writing
from retarget.store.schema import artifacts, jobs, logged_models, model_versions, outputs, runs

_BATCH = 1000  # rows that one step of a listing looks at

_Files = Select[*tuple[Any, ...]]


class Artifact(NamedTuple):
    """A file of the tree."""

    path: str
    size: int
    digest: str


class Entry(NamedTuple):
    """What stands in a folder; a folder in it has no size."""

    name: str
    is_dir: bool
    size: int | None = None


class Left(NamedTuple):
    """What a job left, and the folder of the tree that shows it."""

    folder: str
    job_id: str
    attempt: int


class Artifacts:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def put(self, path: str, size: int, digest: str) -> None:
        """Keep a file, in the place of an earlier one at the same path."""
        self.put_all([Artifact(path, size, digest)])

    def put_all(self, files: Iterable[Artifact]) -> None:
        """Keep all of these, or none: a path cannot be a file and a folder."""
        with writing(self.engine) as db:
            _put(db, files)

    def find(self, path: str) -> Artifact:
        """Return a file, or raise NotFound; Invalid if the path is that of a folder."""
        with reading(self.engine) as db:
            found = _find(db, path)
            if found is not None:
                return found
            if path == "" or _has_below(db, path):
                raise Invalid(f"Artifact path refers to a directory, not a file: '{path}'")
        raise NotFound(f"No such artifact: '{path}'")

    def walk(self, path: str) -> list[Artifact]:
        """Return all files below a folder, by path; for the path of a file, that file."""
        with reading(self.engine) as db:
            return _walk(db, path)

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder. What is not there is fine; what a job left stays."""
        with writing(self.engine) as db:
            gone = db.execute(delete(artifacts).where(_at(path))).rowcount
            left = _left(db, path)
            if not gone and left is not None and path != left.folder and _walk(db, path):
                raise Invalid(
                    f"{path!r} is an output of job {left.job_id}, and goes when that job is deleted"
                )

    def digests(self) -> set[str]:
        """Return every blob that a file of the tree refers to."""
        with reading(self.engine) as db:
            return set(db.scalars(select(artifacts.c.digest).distinct()))

    def are_of(self, folder: str, job_id: str) -> bool:
        """Tell whether a folder is that of a run or a logged model that this job made, or in it."""
        names = folder.split("/")  # a run's folder has its id in its path
        with reading(self.engine) as db:
            for table in (runs, logged_models):
                mine = table.c.id.in_(names) & (table.c.job_id == job_id)
                for location in db.scalars(select(table.c.location).where(mine)):
                    if _is_in(folder, artifact_path(location)):
                        return True
        return False

    def remove_of(self, job_id: str) -> None:
        """Remove what the runs and logged models of a job hold, before the job is deleted.

        The files of registered models stay; those among them that are outputs become artifacts.
        """
        with writing(self.engine) as db:
            for folder in _made_by(db, job_id):
                kept = _registered(db, folder)
                db.execute(delete(artifacts).where(_at(folder)))
                insert_new(db, artifacts, [file._asdict() for file in kept])

    # last in the class: below it, `list` would not mean a list any more
    def list(self, folder: str) -> list[Entry]:
        """Return what stands in a folder, by name. A file, or nothing at all, holds nothing."""
        with reading(self.engine) as db:
            found = {entry.name: entry for entry in _entries(db, folder)}
            left = _left(db, folder)
            for entry in _entries_left(db, left, folder) if left else ():
                found.setdefault(entry.name, entry)
        return sorted(found.values())


def _at(path: str) -> ColumnElement[bool]:
    """Return what finds the file at a path and all below it."""
    return or_(artifacts.c.path == path, below(artifacts.c.path, path))


def below(column: ColumnElement[str], folder: str) -> ColumnElement[bool]:
    """Return what finds all paths below a folder: one range, where paths sort by their bytes."""
    if not folder:
        return column >= ""
    return and_(column >= f"{folder}/", column < f"{folder}0")  # "0" is what follows "/"


def _is_in(path: str, folder: str | None) -> bool:
    return bool(folder) and (path == folder or path.startswith(f"{folder}/"))


def _put(db: Connection, files: Iterable[Artifact]) -> None:
    for file in files:
        _check_free(db, file.path)
        upsert(db, artifacts, file._asdict(), replace=("size", "digest"))


def _check_free(db: Connection, path: str) -> None:
    names = path.split("/")
    above = ["/".join(names[:count]) for count in range(1, len(names))]
    file = db.scalar(select(artifacts.c.path).where(artifacts.c.path.in_(above)).limit(1))
    if file is not None:
        raise Invalid(f"{path!r} cannot be written: {file!r} is a file", field="path")
    inside = select(artifacts.c.path).where(below(artifacts.c.path, path)).limit(1)
    if db.scalar(inside) is not None:
        raise Invalid(f"{path!r} cannot be written: it is a folder", field="path")


def _find(db: Connection, path: str) -> Artifact | None:
    row = db.execute(select(artifacts).where(artifacts.c.path == path)).one_or_none()
    if row is not None:
        return Artifact(*row)
    left = _left(db, path)
    if left is None or path == left.folder:
        return None
    exact = _outputs(left).where(outputs.c.path == path[len(left.folder) + 1 :])
    row = db.execute(exact).one_or_none()
    return None if row is None else Artifact(path, row.size, row.digest)


def _has_below(db: Connection, path: str) -> bool:
    inside = select(artifacts.c.path).where(below(artifacts.c.path, path)).limit(1)
    return db.scalar(inside) is not None or bool(_walk_left(db, _left(db, path), path))


def _walk(db: Connection, path: str) -> list[Artifact]:
    rows = db.execute(select(artifacts).where(_at(path) if path else below(artifacts.c.path, "")))
    found = {row.path: Artifact(*row) for row in rows}
    for file in _walk_left(db, _left(db, path), path):
        found.setdefault(file.path, file)
    return sorted(found.values())


def _left(db: Connection, path: str) -> Left | None:
    """Return the job whose own run has its folder at the path or above it."""
    own = select(runs.c.location, jobs.c.id, jobs.c.attempt).join(jobs, jobs.c.id == runs.c.id)
    for location, job_id, attempt in db.execute(own.where(runs.c.id.in_(path.split("/")))):
        folder = artifact_path(location)
        if folder and _is_in(path, folder):
            return Left(folder, job_id, attempt)
    return None


def _outputs(left: Left) -> _Files:
    columns = select(outputs.c.path, outputs.c.size, outputs.c.digest)
    return columns.where(outputs.c.job_id == left.job_id, outputs.c.attempt == left.attempt)


def _walk_left(db: Connection, left: Left | None, path: str) -> list[Artifact]:
    if left is None:
        return []
    inner, column = path[len(left.folder) + 1 :], _by_bytes(db)
    query = _outputs(left).where(or_(column == inner, below(column, inner)))
    rows = db.execute(query).all()
    return [Artifact(f"{left.folder}/{row.path}", row.size, row.digest) for row in rows]


def _by_bytes(db: Connection) -> ColumnElement[str]:
    return collate(outputs.c.path, "C" if db.dialect.name == "postgresql" else "BINARY")


def _entries(db: Connection, folder: str) -> Iterator[Entry]:
    return _level(db, select(artifacts), artifacts.c.path, folder)


def _entries_left(db: Connection, left: Left, folder: str) -> Iterator[Entry]:
    return _level(db, _outputs(left), _by_bytes(db), folder[len(left.folder) + 1 :])


def _level(
    db: Connection, files: _Files, column: ColumnElement[str], folder: str
) -> Iterator[Entry]:
    """Yield what stands in a folder. What is deep in a folder of it is passed over unread."""
    start = prefix = f"{folder}/" if folder else ""
    while True:
        query = files.where(below(column, folder), column >= start).order_by(column).limit(_BATCH)
        rows = db.execute(query).all()
        for row in rows:
            if row.path < start:
                continue
            name, slash, _ = row.path[len(prefix) :].partition("/")
            yield Entry(name, True) if slash else Entry(name, False, row.size)
            # no path has a character before "\1", so nothing is between
            start = f"{prefix}{name}0" if slash else f"{row.path}\1"
        if len(rows) < _BATCH:
            return


def _made_by(db: Connection, job_id: str) -> set[str]:
    """Return the folders of what a job made: each has the id of its run or model in its path."""
    found: set[str] = set()
    for table in (runs, logged_models):
        mine = select(table.c.id, table.c.location).where(table.c.job_id == job_id)
        for made, location in db.execute(mine):
            folder = artifact_path(location) or ""
            if made in folder.split("/"):
                found.add(folder)
    return found


def _registered(db: Connection, folder: str) -> list[Artifact]:
    """Return the files in a folder that are those of a version of a registered model."""
    locations = db.scalars(select(model_versions.c.location).distinct())
    used = {artifact_path(location) for location in locations}
    near = [path for path in used if path and (_is_in(path, folder) or _is_in(folder, path))]
    files = _walk(db, folder) if near else []
    return [file for file in files if any(_is_in(file.path, path) for path in near)]
