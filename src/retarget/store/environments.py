"""Environments in SQL: definitions by digest, and the names that were given to some."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, delete, select

from retarget.core.environments import Environment
from retarget.core.errors import Invalid, NotFound
from retarget.core.snapshots import digest_bytes
from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import environment_names, environments

_PREFIX = re.compile(r"[0-9a-f]{8,32}")


@dataclass(frozen=True, slots=True)
class Known:
    """An environment as the store has it; the definition carries the name it was found under."""

    name: str | None
    digest: str
    environment: Environment
    created: float


class Environments:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def keep(self, environment: Environment, now: float) -> str:
        """Make sure that a definition is known, and return its digest."""
        with writing(self.engine) as db:
            return _keep(db, environment, now)

    def name(self, name: str, environment: Environment, now: float) -> None:
        """Give a name to a definition; the name leaves the one that had it before."""
        with writing(self.engine) as db:
            row = {"name": name, "digest": _keep(db, environment, now)}
            upsert(db, environment_names, row, replace=("digest",))

    def find(self, name_or_digest: str) -> Known:
        """Return the environment with this name, or else the one whose digest begins so.

        A digest needs its first 8 digits at least.
        """
        with reading(self.engine) as db:
            found = _read(db, _known().where(environment_names.c.name == name_or_digest))
            if not found and _PREFIX.fullmatch(name_or_digest):
                begins = environments.c.digest.between(name_or_digest, name_or_digest + "g")
                found = _read(db, _known().where(begins))
        if not found:
            raise _no_environment(name_or_digest)
        if len({known.digest for known in found}) > 1:
            raise Invalid(
                f"several environments have digests that begin with {name_or_digest!r}; "
                "give more digits"
            )
        return found[0]

    def contexts(self) -> set[str]:
        """Return the manifest of every folder that an image is built from."""
        context = environments.c.definition["context"].as_string()
        with reading(self.engine) as db:
            found = db.scalars(select(context).where(context.is_not(None)).distinct())
            return {digest for digest in found if digest}

    def remove_name(self, name: str) -> None:
        """Forget a name; the definition stays."""
        with writing(self.engine) as db:
            db.execute(delete(environment_names).where(environment_names.c.name == name))

    def remove(self, digest: str) -> None:
        """Forget a definition and its names."""
        with writing(self.engine) as db:
            gone = db.execute(delete(environments).where(environments.c.digest == digest))
        if gone.rowcount == 0:
            raise _no_environment(digest)

    # last in the class: below it, `list` would not mean a list any more
    def list(self) -> list[Known]:
        """Return every name with its environment, then the environments that have none."""
        with reading(self.engine) as db:
            return _read(db, _known())


def digest_for(environment: Environment) -> str:
    """Name any environment by its content, a user-managed one too."""
    content = environment.model_dump_json(exclude={"name"}).encode()
    return environment.digest or digest_bytes(content)[:32]


def _keep(db: Connection, environment: Environment, now: float) -> str:
    digest = digest_for(environment)
    definition = environment.model_dump(mode="json", exclude={"name"})
    upsert(db, environments, {"digest": digest, "definition": definition, "created": now})
    return digest


def _known() -> Select[Any]:
    both = environments.outerjoin(environment_names)
    return select(environments, environment_names.c.name).select_from(both)


def _read(db: Connection, query: Select[Any]) -> list[Known]:
    found = [_from(row) for row in db.execute(query).mappings()]
    return sorted(found, key=lambda known: (known.name is None, known.name or "", known.created))


def _from(row: Mapping[Any, Any]) -> Known:
    definition = Environment.model_validate({**row["definition"], "name": row["name"]})
    return Known(row["name"], row["digest"], definition, row["created"])


def _no_environment(name: str) -> NotFound:
    return NotFound(f"no environment named {name!r}; `retarget env list` shows them")
