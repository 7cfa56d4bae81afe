"""Targets in SQL: where jobs can run, and what was last known about each place."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, NotFound
from retarget.core.jobs import Job
from retarget.core.targets import Facts, Target, no_target
from retarget.store.engine import reading, upsert, writing
from retarget.store.jobs import fail_in, unfinished_in
from retarget.store.schema import targets

_NAMED = 3  # jobs that keep a target, by name


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

    def add(self, target: Target) -> None:
        """Keep a new target, or raise Conflict if there is one with its name."""
        try:
            with writing(self.engine) as db:
                db.execute(insert(targets), target.model_dump(mode="json"))
        except IntegrityError:
            raise _taken(target.name) from None
        self.changes += 1

    def check_free(self, name: str) -> None:
        """Raise Conflict if there is a target with this name."""
        if any(target.name == name for target in self.list()):
            raise _taken(name)

    def change(self, target: Target, *, before: Target, seen: int) -> bool:
        """Keep a target as it is now; raise NotFound if it was removed meanwhile.

        False, with nothing changed, if it is no longer as it was `before`, or has had more than
        `seen` placements: whoever places something with the old settings in mind is before this
        change, and seen, or fails.
        """
        mine = targets.c.name == target.name
        row = target.model_dump(mode="json", exclude={"name"}) | {"placements": seen + 1}
        known = before.model_dump(mode="json", include={"kind", "config", "tags"})
        there = select(targets.c.kind, targets.c.config, targets.c.tags, targets.c.placements)
        with writing(self.engine) as db:
            found = db.execute(there.where(mine).with_for_update()).mappings().first()
            if found is not None:
                if dict(found) != known | {"placements": seen}:
                    return False
                db.execute(update(targets).where(mine).values(row))
        self.changes += 1
        if found is None:
            raise _no_target(target.name, self.list())
        return True

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

    def all_placements(self) -> dict[str, int]:
        """Tell the same of all targets."""
        with reading(self.engine) as db:
            rows = db.execute(select(targets.c.name, targets.c.placements))
            return {name: count for name, count in rows}

    def checked(
        self,
        target: Target,
        facts: Facts | None,
        reason: str,
        now: float,
        learnt: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep what a check found, and what was learnt for the settings, if these are as they were.

        `None` leaves the facts of an earlier check.
        """
        mine, config = targets.c.name == target.name, target.model_dump(mode="json")["config"]
        found: dict[str, Any] = {"reason": reason, "checked": now}
        if facts is not None:
            found["facts"] = facts.model_dump(mode="json")
        if learnt:
            found["config"] = config | learnt
        with writing(self.engine) as db:
            there = db.execute(select(targets.c.config).where(mine).with_for_update()).first()
            if there is not None and there.config == config:
                db.execute(update(targets).where(mine).values(found))
        self.changes += 1
        if there is None:
            raise _no_target(target.name, self.list())

    def remove(self, name: str, *, reason: str, now: float, force: bool = False) -> list[Job]:
        """Remove a target; return the jobs that it had, as they were.

        While it has any it stays, and Conflict names them; with `force` they fail with `reason`.
        Either way no job is left on it, nor waits for it: whoever submits one at this very moment
        is before it, and then it counts, or after it and finds no target.
        """
        with writing(self.engine) as db:
            known = db.execute(delete(targets).where(targets.c.name == name)).rowcount
            left = unfinished_in(db, name)
            if left and not force:
                raise Conflict(_in_use(name, left))
            for job in left:
                fail_in(db, job, reason=reason, now=now)
        self.changes += 1
        if not known:
            raise _no_target(name, self.list())
        return left

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


def _in_use(name: str, left: Sequence[Job]) -> str:
    count = "a job" if len(left) == 1 else f"{len(left)} jobs"
    named = ", ".join(job.name for job in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return (
        f"target {name!r} has {count} that did not end yet: {named}{more}; wait or cancel, "
        "or detach it with --force, and what is left fails"
    )


def _taken(name: str) -> Conflict:
    return Conflict(
        f"a target named {name!r} exists already; choose another name, change that one "
        "(`retarget target update`), or detach it first"
    )


def _no_target(name: str, there: Sequence[Target]) -> NotFound:
    return NotFound(no_target(name, [target.name for target in there]))
