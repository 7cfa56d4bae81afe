"""Targets in SQL: where jobs can run, and what was last known about each place."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, bindparam, delete, select, update

from retarget.core.errors import NotFound
from retarget.core.targets import Facts, Target, no_target
from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import targets


class Targets:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.changes = (
            0  # that were made here: whoever remembers targets looks whether it has grown
        )

    def save(self, target: Target) -> None:
        """Keep a target as it is given, in the place of an earlier one with its name."""
        row = target.model_dump(mode="json")
        with writing(self.engine) as db:
            upsert(db, targets, row, replace=[name for name in row if name != "name"])
        self.changes += 1

    def find(self, name: str) -> Target:
        there = self.list()
        for target in there:
            if target.name == name:
                return target
        raise _no_target(name, there)

    def placements(self, name: str) -> int:
        """Tell how many attempts were ever placed there: what `Jobs.place` asks to have seen."""
        with reading(self.engine) as db:
            found = db.execute(_PLACEMENTS, {"the_name": name}).scalar_one_or_none()
        if found is None:
            raise _no_target(name, self.list())
        return found

    def checked(self, name: str, facts: Facts | None, reason: str, now: float) -> None:
        """Keep what a check found. `None` leaves the facts of an earlier check."""
        found: dict[str, Any] = {"reason": reason, "checked": now}
        if facts is not None:
            found["facts"] = facts.model_dump(mode="json")
        with writing(self.engine) as db:
            known = db.execute(update(targets).where(targets.c.name == name).values(found)).rowcount
        self.changes += 1
        if not known:
            raise _no_target(name, self.list())

    def remove(self, name: str) -> None:
        with writing(self.engine) as db:
            known = db.execute(delete(targets).where(targets.c.name == name)).rowcount
        self.changes += 1
        if not known:
            raise _no_target(name, self.list())

    # last in the class: below it, `list` would not mean a list any more
    def list(self) -> list[Target]:
        """Return all targets, by name."""
        with reading(self.engine) as db:
            rows = db.execute(_ALL)
            return [
                Target.model_validate(dict(zip(Target.model_fields, row, strict=True)))
                for row in rows
            ]


# Made once: making them anew for each round would cost more than running them.
_ALL = select(*(targets.c[name] for name in Target.model_fields)).order_by(targets.c.name)
_PLACEMENTS = select(targets.c.placements).where(targets.c.name == bindparam("the_name"))


def _no_target(name: str, there: Sequence[Target]) -> NotFound:
    return NotFound(no_target(name, [target.name for target in there]))
