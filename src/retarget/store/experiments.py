"""Experiments in SQL: groups of runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.tracking import ACTIVE, ARTIFACTS, DELETED, Experiment
from retarget.store.engine import insert_new, reading, upsert, writing
from retarget.store.ownership import check_owns_experiment
from retarget.store.schema import experiment_tags, experiments, runs

_MAX_ID = (1 << 31) - 1


class Experiments:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(
        self,
        name: str,
        location: str,
        tags: Mapping[str, str],
        *,
        now: int,
        by_job: str | None = None,
    ) -> Experiment:
        """Store a new experiment, or raise Conflict if its name is taken."""
        times = {"created_at": now, "changed_at": now}
        row = {"name": name, "location": location, "stage": ACTIVE, "created_by_job": by_job}
        try:
            with writing(self.engine) as db:
                return _create(db, row | times, tags)
        except IntegrityError:
            raise Conflict(f"Experiment(name={name}) already exists.") from None

    def ensure(self, name: str, *, now: int) -> Experiment:
        """Return the experiment with this name, and create it if there is none."""
        with writing(self.engine) as db:
            return ensure_in(db, name, now=now)

    def get(self, experiment_id: str) -> Experiment:
        with reading(self.engine) as db:
            return _get(db, experiment_id)

    def find(self, name: str) -> Experiment:
        """Return the experiment with this name, deleted or not, or raise NotFound."""
        with reading(self.engine) as db:
            experiment_id = db.scalar(select(experiments.c.id).where(experiments.c.name == name))
            if experiment_id is None:
                raise NotFound(f"Could not find experiment with name '{name}'")
            return _get(db, str(experiment_id))

    def rename(self, experiment_id: str, name: str, *, now: int, by_job: str | None = None) -> None:
        """Rename an experiment. A job (`by_job`) may do so only with its own."""
        try:
            with writing(self.engine) as db:
                check_owns_experiment(db, _get(db, experiment_id), by_job)
                if _get(db, experiment_id).stage != ACTIVE:
                    raise Invalid("Cannot rename a non-active experiment.")
                _change(db, experiment_id, name=name, changed_at=now)
        except IntegrityError:
            raise Conflict(f"Experiment(name={name}) already exists.") from None

    def delete(self, experiment_id: str, *, now: int, by_job: str | None = None) -> None:
        """Mark an experiment and its runs as deleted; `restore` undoes this."""
        with writing(self.engine) as db:
            check_owns_experiment(db, _get(db, experiment_id), by_job)
            _check_stage(_get(db, experiment_id), ACTIVE)
            _change(db, experiment_id, stage=DELETED, changed_at=now)
            is_inside = runs.c.experiment_id == int(experiment_id)
            db.execute(update(runs).where(is_inside).values(stage=DELETED, deleted_at=now))

    def restore(self, experiment_id: str, *, now: int, by_job: str | None = None) -> None:
        with writing(self.engine) as db:
            check_owns_experiment(db, _get(db, experiment_id), by_job)
            _check_stage(_get(db, experiment_id), DELETED)
            _change(db, experiment_id, stage=ACTIVE, changed_at=now)
            is_inside = runs.c.experiment_id == int(experiment_id)
            db.execute(update(runs).where(is_inside).values(stage=ACTIVE, deleted_at=None))

    def set_tag(self, experiment_id: str, key: str, value: str) -> None:
        with writing(self.engine) as db:
            experiment = check_active(_get(db, experiment_id))
            row = {"experiment_id": int(experiment.id), "key": key, "value": value}
            upsert(db, experiment_tags, row, replace=("value",))

    def delete_tag(self, experiment_id: str, key: str) -> None:
        with writing(self.engine) as db:
            experiment = check_active(_get(db, experiment_id))
            of_experiment = experiment_tags.c.experiment_id == int(experiment.id)
            is_tag = of_experiment & (experiment_tags.c.key == key)
            if not db.execute(delete(experiment_tags).where(is_tag)).rowcount:
                raise NotFound(f"No tag with name: {key} in experiment with id {experiment_id}")

    def load(self, ids: Sequence[str]) -> list[Experiment]:
        """Return these experiments, in this order. Missing ones are omitted."""
        with reading(self.engine) as db:
            by_id = _load(db, [parse_id(experiment_id) for experiment_id in ids])
        return [by_id[int(number)] for number in ids if int(number) in by_id]


def parse_id(experiment_id: str) -> int:
    """Return an id as an integer, or raise Invalid."""
    digits = experiment_id.removeprefix("-")
    if not digits.isdecimal() or not digits.isascii():
        raise Invalid(
            f"Invalid experiment ID '{experiment_id}'. Experiment ID must be a valid integer.",
            field="experiment_id",
        )
    if len(digits) > len(str(_MAX_ID)) or not 0 <= int(experiment_id) <= _MAX_ID:
        raise NotFound(f"No Experiment with id={experiment_id} exists")
    return int(experiment_id)


def ensure_in(db: Connection, name: str, *, now: int) -> Experiment:
    """Return the experiment with this name, created if there is none, in an open transaction."""
    row = {"name": name, "location": "", "stage": ACTIVE, "created_at": now, "changed_at": now}
    experiment_id = db.scalar(select(experiments.c.id).where(experiments.c.name == name))
    if experiment_id is None:
        insert_new(db, experiments, [row], key=("name",))
        experiment_id = db.scalars(select(experiments.c.id).where(experiments.c.name == name)).one()
        is_new = (experiments.c.id == experiment_id) & (experiments.c.location == "")
        location = f"{ARTIFACTS}{experiment_id}"
        db.execute(update(experiments).where(is_new).values(location=location))
    return _get(db, str(experiment_id))


def check_active(experiment: Experiment) -> Experiment:
    if experiment.stage != ACTIVE:
        raise Invalid(
            f"The experiment {experiment.id} must be in the 'active' state. "
            f"Current state is {experiment.stage}."
        )
    return experiment


def _create(db: Connection, row: Mapping[str, Any], tags: Mapping[str, str]) -> Experiment:
    experiment_id = db.execute(
        insert(experiments).values(row).returning(experiments.c.id)
    ).scalar_one()
    if not row["location"]:
        _change(db, str(experiment_id), location=f"{ARTIFACTS}{experiment_id}")
    for key, value in tags.items():
        tag = {"experiment_id": experiment_id, "key": key, "value": value}
        db.execute(insert(experiment_tags).values(tag))
    return _get(db, str(experiment_id))


def _get(db: Connection, experiment_id: str) -> Experiment:
    number = parse_id(experiment_id or "0")
    by_id = _load(db, [number])
    if number not in by_id:
        raise NotFound(f"No Experiment with id={number} exists")
    return by_id[number]


def _load(db: Connection, ids: Sequence[int]) -> dict[int, Experiment]:
    tags: dict[int, dict[str, str]] = {}
    of_experiments = experiment_tags.c.experiment_id.in_(ids)
    for row in db.execute(select(experiment_tags).where(of_experiments)):
        tags.setdefault(row.experiment_id, {})[row.key] = row.value
    rows = db.execute(select(experiments).where(experiments.c.id.in_(ids))).mappings()
    return {row["id"]: _experiment(row, tags.get(row["id"], {})) for row in rows}


def _experiment(row: Mapping[Any, Any], tags: dict[str, str]) -> Experiment:
    return Experiment.model_validate(dict(row) | {"id": str(row["id"]), "tags": tags})


def _check_stage(experiment: Experiment, stage: str) -> None:
    if experiment.stage != stage:
        raise NotFound(f"No Experiment with id={experiment.id} exists")


def _change(db: Connection, experiment_id: str, **values: Any) -> None:
    is_experiment = experiments.c.id == int(experiment_id)
    db.execute(update(experiments).where(is_experiment).values(**values))
