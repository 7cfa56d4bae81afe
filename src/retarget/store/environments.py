"""Environments in SQL: definitions by digest, and their names with numbered versions."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, delete, exists, insert, select, update

from retarget.core.environments import Environment
from retarget.core.errors import Invalid, NotFound
from retarget.core.snapshots import digest_bytes
from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import (
    environment_locks,
    environment_names,
    environment_versions,
    environments,
)

_PREFIX = re.compile(r"[0-9a-f]{8,32}")
_NUMBERED = re.compile(r"(?P<name>[^:@]+)(?::(?P<version>[1-9][0-9]{0,8})|@latest)")
_NOT_DEFINING = {"name", "version"}  # the fields of a definition that its row does not have


@dataclass(frozen=True, slots=True)
class StoredEnvironment:
    """An environment in the store. The definition has the same name and version as the row."""

    name: str | None
    digest: str
    environment: Environment
    created_at: float

    @property
    def version(self) -> int | None:
        return self.environment.version


class Environments:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def keep(self, environment: Environment, now: float) -> str:
        """Store a definition unless it is stored already, and return its digest."""
        with writing(self.engine) as db:
            return _keep(db, environment, now)

    def register(self, name: str, environment: Environment, now: float) -> StoredEnvironment:
        """Make a definition the newest version of a name, unless it is that already.

        The newest version counts as the same if `update` resolved it again meanwhile.
        """
        with writing(self.engine) as db:
            newest = _newest(db, name)
            if newest is None or not _is_same(environment, newest):
                _add_version(db, name, environment, now)
            return _versions(db, name)[0]

    def update(self, name: str, now: float) -> StoredEnvironment:
        """Add a version with the newest definition of a name, to be resolved again."""
        with writing(self.engine) as db:
            newest = _newest(db, name)
            if newest is None:
                raise _no_environment(name)
            fresh = next(again for again in _resolutions(newest) if not _is_known(db, again))
            _add_version(db, name, fresh, now)
            return _versions(db, name)[0]

    def find(self, text: str) -> StoredEnvironment:
        """Return the environment that this text names: `torch`, `torch:3`, `torch@latest`.

        Or else the one with this digest; its first 8 digits are enough.
        """
        numbered = _NUMBERED.fullmatch(text)
        with reading(self.engine) as db:
            matches = _versions(db, numbered["name"] if numbered else text)
            if matches and numbered and numbered["version"]:
                return _pick(matches, int(numbered["version"]))
            if matches:
                return matches[0]
            return _with_digest(db, text)

    def versions(self, name: str) -> "list[StoredEnvironment]":
        """Return the versions of a name, the newest first."""
        with reading(self.engine) as db:
            versions = _versions(db, name)
        if not versions:
            raise _no_environment(name)
        return versions

    def build_contexts(self) -> set[str]:
        """Return the digests of the manifests of all folders that images are built from."""
        context = environments.c.definition["context"].as_string()
        with reading(self.engine) as db:
            digests = db.scalars(select(context).where(context.is_not(None)).distinct())
            return {digest for digest in digests if digest}

    def remove_name(self, name: str) -> None:
        """Remove a name with its versions. The definitions stay."""
        with writing(self.engine) as db:
            db.execute(delete(environment_names).where(environment_names.c.name == name))

    def remove_version(self, name: str, version: int) -> None:
        """Remove one version of a name. The definition stays, and the number is not used again."""
        is_it = (environment_versions.c.name == name) & (environment_versions.c.version == version)
        with writing(self.engine) as db:
            db.execute(delete(environment_versions).where(is_it))

    def remove(self, digest: str) -> None:
        """Remove a definition and its versions."""
        with writing(self.engine) as db:
            deleted = db.execute(delete(environments).where(environments.c.digest == digest))
        if deleted.rowcount == 0:
            raise _no_environment(digest)

    # last in the class: below it, `list` means this method
    def list(self) -> list[StoredEnvironment]:
        """Return every version of every name, then the environments without a name."""
        with reading(self.engine) as db:
            return _read(db, _select())


def digest_for(environment: Environment) -> str:
    """Return a digest for any environment, a user-managed one too."""
    content = environment.model_dump_json(exclude={"name", "version", "resolution"}).encode()
    return environment.digest or digest_bytes(content)[:32]


def _keep(db: Connection, environment: Environment, now: float) -> str:
    digest = digest_for(environment)
    definition = environment.model_dump(mode="json", exclude=_NOT_DEFINING)
    upsert(db, environments, {"digest": digest, "definition": definition, "created_at": now})
    return digest


def _add_version(db: Connection, name: str, environment: Environment, now: float) -> None:
    of_name = environment_names.c.name == name
    upsert(db, environment_names, {"name": name, "versions": 0})
    one_more = {"versions": environment_names.c.versions + 1}
    db.execute(update(environment_names).where(of_name).values(one_more))
    number = db.scalars(select(environment_names.c.versions).where(of_name)).one()
    row = {"name": name, "version": number, "digest": _keep(db, environment, now)}
    db.execute(insert(environment_versions).values({**row, "created_at": now}))


def _newest(db: Connection, name: str) -> Environment | None:
    versions = _versions(db, name)
    return versions[0].environment if versions else None


def _is_same(environment: Environment, newest: Environment) -> bool:
    if not environment.resolution:
        newest = newest.model_copy(update={"resolution": 0})
    return digest_for(environment) == digest_for(newest)


def _resolutions(environment: Environment) -> Iterator[Environment]:
    number = environment.resolution
    while True:
        number += 1
        yield environment.model_copy(update={"resolution": number})


def _is_known(db: Connection, environment: Environment) -> bool:
    """Whether there is such an environment, or was one: its locks stay."""
    digest = digest_for(environment)
    tables = (environments, environment_locks)
    return any(db.scalar(select(exists().where(table.c.digest == digest))) for table in tables)


def _versions(db: Connection, name: str) -> list[StoredEnvironment]:
    return _read(db, _select().where(environment_versions.c.name == name))


def _pick(versions: list[StoredEnvironment], number: int) -> StoredEnvironment:
    for stored in versions:
        if stored.version == number:
            return stored
    name, known = versions[0].name, ", ".join(str(stored.version) for stored in versions[::-1])
    raise NotFound(f"environment {name!r} has no version {number}; it has {known}")


def _with_digest(db: Connection, text: str) -> StoredEnvironment:
    has_prefix = environments.c.digest.between(text, text + "g")
    matches = _read(db, _select().where(has_prefix)) if _PREFIX.fullmatch(text) else []
    if not matches:
        raise _no_environment(text)
    if len({match.digest for match in matches}) > 1:
        raise Invalid(f"the digests of several environments begin with {text!r}; use more digits")
    return matches[0]


def _select() -> Select[Any]:
    joined = environments.outerjoin(environment_versions)
    named = (environment_versions.c.name, environment_versions.c.version)
    registered_at = environment_versions.c.created_at.label("registered_at")
    return select(environments, *named, registered_at).select_from(joined)


def _read(db: Connection, query: Select[Any]) -> list[StoredEnvironment]:
    stored = [_stored(row) for row in db.execute(query).mappings()]
    return sorted(stored, key=_order)


def _order(stored: StoredEnvironment) -> tuple[bool, str, int, float]:
    return (stored.name is None, stored.name or "", -(stored.version or 0), stored.created_at)


def _stored(row: Mapping[Any, Any]) -> StoredEnvironment:
    named = {"name": row["name"], "version": row["version"]}
    definition = Environment.model_validate({**row["definition"], **named})
    created_at = row["created_at"] if row["registered_at"] is None else row["registered_at"]
    return StoredEnvironment(row["name"], row["digest"], definition, created_at)


def _no_environment(name: str) -> NotFound:
    return NotFound(f"no environment named {name!r}; `retarget env list` shows them")
