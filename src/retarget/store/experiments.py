"""Experiments in SQL: what runs are grouped by."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.tracking import ACTIVE, ARTIFACTS, DELETED, Experiment
from retarget.store.engine import insert_new, reading, upsert, writing
from retarget.store.schema import experiment_tags, experiments, runs

_LARGEST = (1 << 31) - 1


class Experiments:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(self, name: str, location: str, tags: Mapping[str, str], *, now: int) -> Experiment:
        """Keep a new experiment, or raise Conflict if its name is taken."""
        try:
            with writing(self.engine) as db:
                return _create(db, name, location, tags, now)
        except IntegrityError:
            raise Conflict(f"Experiment(name={name}) already exists.") from None

    def ensure(self, name: str, *, now: int) -> Experiment:
        """Return the experiment with this name, made now if there is none."""
        with writing(self.engine) as db:
            return ensure_in(db, name, now=now)

    def get(self, experiment_id: str) -> Experiment:
        with reading(self.engine) as db:
            return _get(db, experiment_id)

    def find(self, name: str) -> Experiment:
        """Return the experiment with this name, deleted or not, or raise NotFound."""
        with reading(self.engine) as db:
            found = db.scalar(select(experiments.c.id).where(experiments.c.name == name))
            if found is None:
                raise NotFound(f"Could not find experiment with name '{name}'")
            return _get(db, str(found))

    def rename(self, experiment_id: str, name: str, *, now: int) -> None:
        try:
            with writing(self.engine) as db:
                if _get(db, experiment_id).stage != ACTIVE:
                    raise Invalid("Cannot rename a non-active experiment.")
                _change(db, experiment_id, name=name, changed=now)
        except IntegrityError:
            raise Conflict(f"Experiment(name={name}) already exists.") from None

    def delete(self, experiment_id: str, *, now: int) -> None:
        """Mark an experiment and its runs as deleted; `restore` brings them back."""
        with writing(self.engine) as db:
            _check_stage(_get(db, experiment_id), ACTIVE)
            _change(db, experiment_id, stage=DELETED, changed=now)
            mine = runs.c.experiment_id == int(experiment_id)
            db.execute(update(runs).where(mine).values(stage=DELETED, deleted=now))

    def restore(self, experiment_id: str, *, now: int) -> None:
        with writing(self.engine) as db:
            _check_stage(_get(db, experiment_id), DELETED)
            _change(db, experiment_id, stage=ACTIVE, changed=now)
            mine = runs.c.experiment_id == int(experiment_id)
            db.execute(update(runs).where(mine).values(stage=ACTIVE, deleted=None))

    def set_tag(self, experiment_id: str, key: str, value: str) -> None:
        with writing(self.engine) as db:
            experiment = check_active(_get(db, experiment_id))
            row = {"experiment_id": int(experiment.id), "key": key, "value": value}
            upsert(db, experiment_tags, row, replace=("value",))

    def delete_tag(self, experiment_id: str, key: str) -> None:
        with writing(self.engine) as db:
            experiment = check_active(_get(db, experiment_id))
            which = experiment_tags.c.experiment_id == int(experiment.id)
            gone = db.execute(delete(experiment_tags).where(which, experiment_tags.c.key == key))
            if not gone.rowcount:
                raise NotFound(f"No tag with name: {key} in experiment with id {experiment_id}")

    def load(self, ids: Sequence[str]) -> list[Experiment]:
        """Return these experiments, in this order; those that are gone are left out."""
        with reading(self.engine) as db:
            found = _load(db, [number(each) for each in ids])
        return [found[int(each)] for each in ids if int(each) in found]


def number(experiment_id: str) -> int:
    """Return an id as SQL has it, or raise Invalid."""
    digits = experiment_id.removeprefix("-")
    if not digits.isdecimal() or not digits.isascii():
        raise Invalid(
            f"Invalid experiment ID '{experiment_id}'. Experiment ID must be a valid integer.",
            field="experiment_id",
        )
    if len(digits) > len(str(_LARGEST)) or not 0 <= int(experiment_id) <= _LARGEST:
        raise NotFound(f"No Experiment with id={experiment_id} exists")
    return int(experiment_id)


def ensure_in(db: Connection, name: str, *, now: int) -> Experiment:
    """Return the experiment with this name, made if need be, in a transaction that is open."""
    row = {"name": name, "location": "", "stage": ACTIVE, "created": now, "changed": now}
    found = db.scalar(select(experiments.c.id).where(experiments.c.name == name))
    if found is None:
        insert_new(db, experiments, [row], key=("name",))
        found = db.scalars(select(experiments.c.id).where(experiments.c.name == name)).one()
        placed = update(experiments).where(experiments.c.id == found, experiments.c.location == "")
        db.execute(placed.values(location=f"{ARTIFACTS}{found}"))
    return _get(db, str(found))


def check_active(experiment: Experiment) -> Experiment:
    if experiment.stage != ACTIVE:
        raise Invalid(
            f"The experiment {experiment.id} must be in the 'active' state. "
            f"Current state is {experiment.stage}."
        )
    return experiment


def _create(
    db: Connection, name: str, location: str, tags: Mapping[str, str], now: int
) -> Experiment:
    row = {"name": name, "location": location, "stage": ACTIVE, "created": now, "changed": now}
    made = db.execute(insert(experiments).values(row).returning(experiments.c.id)).scalar_one()
    if not location:
        _change(db, str(made), location=f"{ARTIFACTS}{made}")
    for key, value in tags.items():
        db.execute(insert(experiment_tags).values(experiment_id=made, key=key, value=value))
    return _get(db, str(made))


def _get(db: Connection, experiment_id: str) -> Experiment:
    wanted = number(experiment_id or "0")
    found = _load(db, [wanted])
    if wanted not in found:
        raise NotFound(f"No Experiment with id={wanted} exists")
    return found[wanted]


def _load(db: Connection, ids: Sequence[int]) -> dict[int, Experiment]:
    tags: dict[int, dict[str, str]] = {}
    which = experiment_tags.c.experiment_id.in_(ids)
    for row in db.execute(select(experiment_tags).where(which)):
        tags.setdefault(row.experiment_id, {})[row.key] = row.value
    rows = db.execute(select(experiments).where(experiments.c.id.in_(ids))).mappings()
    return {row["id"]: _experiment(row, tags.get(row["id"], {})) for row in rows}


def _experiment(row: Mapping[Any, Any], tags: dict[str, str]) -> Experiment:
    return Experiment.model_validate(dict(row) | {"id": str(row["id"]), "tags": tags})


def _check_stage(experiment: Experiment, stage: str) -> None:
    if experiment.stage != stage:
        raise NotFound(f"No Experiment with id={experiment.id} exists")


def _change(db: Connection, experiment_id: str, **values: Any) -> None:
    which = experiments.c.id == int(experiment_id)
    db.execute(update(experiments).where(which).values(**values))
