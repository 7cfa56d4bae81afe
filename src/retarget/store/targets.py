"""Targets in SQL: where jobs can run, and the result of each target's last check."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, NotFound
from retarget.core.events import Change, Noun
from retarget.core.jobs import Job
from retarget.core.leases import Lease
from retarget.core.targets import Inventory, Target, no_target
from retarget.store.changes import note
from retarget.store.engine import reading, upsert, writing
from retarget.store.jobs import fail_in, unfinished_in
from retarget.store.leases import holds_lease, lease_parameters
from retarget.store.nodes import replace_nodes, select_nodes
from retarget.store.schema import targets

_MAX_JOBS_NAMED = 3  # in the message about a target that is in use


class Targets:
    """With a lease, the result of a check is dropped once another server has taken it over."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._changes = _Changes()
        self._lease: Lease | None = None

    @property
    def changes(self) -> int:
        """How many changes this object has made; caches of targets compare it."""
        return self._changes.count

    def under(self, lease: Lease) -> "Targets":
        """Return the targets as the holder of this lease writes them."""
        copy = Targets(self.engine)
        copy._changes, copy._lease = self._changes, lease
        return copy

    def save(self, target: Target) -> None:
        """Store a target. It replaces an existing target with the same name."""
        row = _row(target)
        with writing(self.engine) as db:
            upsert(db, targets, row, replace=[name for name in row if name != "name"])
            note(db, Change(Noun.TARGET, target.name))
            replace_nodes(db, target.name, target.inventory)
        self._changes.count += 1

    def add(self, target: Target) -> None:
        """Store a new target, or raise Conflict if its name is taken."""
        try:
            with writing(self.engine) as db:
                db.execute(insert(targets), _row(target))
                note(db, Change(Noun.TARGET, target.name))
                replace_nodes(db, target.name, target.inventory)
        except IntegrityError:
            raise _name_taken(target.name) from None
        self._changes.count += 1

    def check_free(self, name: str) -> None:
        """Raise Conflict if a target has this name."""
        if any(target.name == name for target in self.list()):
            raise _name_taken(name)

    def change(self, target: Target, *, before: Target, placements: int) -> bool:
        """Replace a target, or raise NotFound if it was removed meanwhile.

        Return False and change nothing if the target differs from `before`, or has had more
        placements than `placements`. So an attempt that is placed with the old settings is either
        counted in `placements`, or its placement fails.
        """
        is_target = targets.c.name == target.name
        row = _row(target) | {"placements": placements + 1}
        expected = before.model_dump(mode="json", include={"kind", "config", "tags"})
        query = select(targets.c.kind, targets.c.config, targets.c.tags, targets.c.placements)
        with writing(self.engine) as db:
            stored = db.execute(query.where(is_target).with_for_update()).mappings().first()
            if stored is not None:
                if dict(stored) != expected | {"placements": placements}:
                    return False
                db.execute(update(targets).where(is_target).values(row))
                note(db, Change(Noun.TARGET, target.name))
                replace_nodes(db, target.name, target.inventory)
        self._changes.count += 1
        if stored is None:
            raise _no_target(target.name, self.list())
        return True

    def find(self, name: str) -> Target:
        existing = self.list()
        for target in existing:
            if target.name == name:
                return target
        raise _no_target(name, existing)

    def placements(self, name: str) -> int:
        """Return how many attempts were ever placed on a target, as `Jobs.place` needs it."""
        with reading(self.engine) as db:
            count = db.execute(_SELECT_PLACEMENTS, {"the_name": name}).scalar_one_or_none()
        if count is None:
            raise _no_target(name, self.list())
        return count

    def all_placements(self) -> dict[str, int]:
        """Return for every target how many attempts were ever placed on it."""
        with reading(self.engine) as db:
            rows = db.execute(select(targets.c.name, targets.c.placements))
            return {name: count for name, count in rows}

    def save_check(
        self,
        target: Target,
        inventory: Inventory | None,
        reason: str,
        now: float,
        config_change: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the result of a check, unless the settings have changed since it began.

        An `inventory` of None keeps the earlier one. `config_change` is merged into the config.
        """
        is_target, config = targets.c.name == target.name, target.model_dump(mode="json")["config"]
        columns: dict[str, Any] = {"reason": reason, "checked_at": now}
        if inventory is not None:
            columns["inventory"] = _inventory_row(inventory)
        if config_change:
            columns["config"] = config | config_change
        with writing(self.engine) as db:
            query = select(*targets.c["config", "inventory", "reason"]).where(is_target)
            stored = db.execute(query.with_for_update()).mappings().first()
            if stored is not None and stored["config"] == config:
                is_held = [] if self._lease is None else [holds_lease()]
                statement = update(targets).where(is_target, *is_held).values(columns)
                if db.execute(statement, lease_parameters(self._lease)).rowcount:
                    _note_check(db, target.name, dict(stored), columns, inventory)
        self._changes.count += 1
        if stored is None:
            raise _no_target(target.name, self.list())

    def remove(self, name: str, *, reason: str, now: float, force: bool = False) -> list[Job]:
        """Remove a target, and return its unfinished jobs as they were before.

        Raise Conflict and name the jobs if there are any; with `force` they fail with `reason`.
        Afterwards no job is on the target or waits for it: a job that is submitted at the same
        moment either counts as one of these jobs, or finds no target.
        """
        with writing(self.engine) as db:
            replace_nodes(db, name, None)
            removed = db.execute(delete(targets).where(targets.c.name == name)).rowcount
            unfinished = unfinished_in(db, name)
            if unfinished and not force:
                raise Conflict(_in_use(name, unfinished))
            for job in unfinished:
                fail_in(db, job, reason=reason, now=now)
            if removed:
                note(db, Change(Noun.TARGET, name))
        self._changes.count += 1
        if not removed:
            raise _no_target(name, self.list())
        return unfinished

    # last in the class: below it, `list` means this method
    def list(self) -> list[Target]:
        """Return all targets, by name."""
        with reading(self.engine) as db:
            rows = db.execute(_SELECT_TARGETS).all()
            nodes = select_nodes(db)
        return [_target(dict(zip(Target.model_fields, row, strict=True)), nodes) for row in rows]


def _note_check(
    db: Connection,
    name: str,
    stored: Mapping[str, Any],
    columns: Mapping[str, Any],
    inventory: Inventory | None,
) -> None:
    """Store the nodes of a check, and publish the target if anything has changed."""
    has_changed = inventory is not None and replace_nodes(db, name, inventory)
    if has_changed or any(stored.get(column, value) != value for column, value in columns.items()):
        note(db, Change(Noun.TARGET, name))


class _Changes:
    count = 0


# Built once: building these statements costs more than running them.
_SELECT_TARGETS = select(*(targets.c[name] for name in Target.model_fields)).order_by(
    targets.c.name
)
_SELECT_PLACEMENTS = select(targets.c.placements).where(targets.c.name == bindparam("the_name"))


def _row(target: Target) -> dict[str, Any]:
    """Return the row of a target, without its nodes: they have rows of their own."""
    row = target.model_dump(mode="json", exclude={"inventory"})
    return row | {"inventory": target.inventory and _inventory_row(target.inventory)}


def _inventory_row(inventory: Inventory) -> dict[str, Any]:
    return inventory.model_dump(mode="json", exclude={"nodes"})


def _target(row: dict[str, Any], nodes: Mapping[str, Sequence[dict[str, Any]]]) -> Target:
    if row["inventory"] is not None:
        row["inventory"] = row["inventory"] | {"nodes": nodes.get(row["name"], ())}
    return Target.model_validate(row)


def _in_use(name: str, jobs: Sequence[Job]) -> str:
    count = "1 unfinished job" if len(jobs) == 1 else f"{len(jobs)} unfinished jobs"
    names = ", ".join(job.name for job in jobs[:_MAX_JOBS_NAMED])
    more = f" and {len(jobs) - _MAX_JOBS_NAMED} more" if len(jobs) > _MAX_JOBS_NAMED else ""
    return (
        f"target {name!r} has {count}: {names}{more}; wait for them, cancel them, "
        "or detach the target with --force, which fails them"
    )


def _name_taken(name: str) -> Conflict:
    return Conflict(
        f"a target named {name!r} exists already; choose another name, change that target "
        "(`retarget target update`), or detach it first"
    )


def _no_target(name: str, existing: Sequence[Target]) -> NotFound:
    return NotFound(no_target(name, [target.name for target in existing]))
