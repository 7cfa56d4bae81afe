"""Runs in SQL: write what clients log, and read it back."""

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.events import Change, Noun
from retarget.core.tracking import (
    ACTIVE,
    DELETED,
    NAME_TAG,
    Dataset,
    DatasetInput,
    Metric,
    ModelLink,
    Run,
)
from retarget.store.changes import note
from retarget.store.engine import insert_new, reading, upsert, writing
from retarget.store.logged_models import log_model_metrics
from retarget.store.schema import (
    datasets,
    metrics,
    params,
    points,
    run_dataset_tags,
    run_datasets,
    run_models,
    runs,
    tags,
)

_COLUMNS = ("id", "job_id", "name", "user", "status", "stage", "started_at", "ended_at", "location")

# Built once: building these statements takes longer than running them.
_SELECT_STAGE = select(*runs.c["stage", "experiment_id", "job_id"]).where(
    runs.c.id == bindparam("run")
)
_SELECT_LATEST = (
    select(*metrics.c["id", "key", "step", "logged_at", "value"])
    .where(
        metrics.c.run_id == bindparam("run"), metrics.c.key.in_(bindparam("keys", expanding=True))
    )
    .with_for_update()
)
_UPDATE_LATEST = (
    update(metrics)
    .where(metrics.c.id == bindparam("metric"))
    .values({name: bindparam(name) for name in ("value", "nan", "step", "logged_at")})
)


class Runs:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(self, run: Run) -> None:
        """Store a new run with its tags. The name of a run is a tag, too."""
        try:
            with writing(self.engine) as db:
                create_in(db, [run])
                note(db, Change(Noun.METRIC, run.id, job=run.job_id))
        except IntegrityError:
            raise Conflict(f"Run with id={run.id} exists already") from None

    def get(self, run_id: str) -> Run:
        """Return a run with all that was logged to it."""
        loaded = self.load([run_id])
        if not loaded:
            raise _no_run(run_id)
        return loaded[0]

    def load(self, ids: Sequence[str]) -> list[Run]:
        """Return these runs, in this order. Missing ones are omitted."""
        with reading(self.engine) as db:
            by_id = _load(db, ids)
        return [by_id[run_id] for run_id in ids if run_id in by_id]

    def owner(self, run_id: str) -> str | None:
        """Return the id of the job that created a run, or None if a client outside a job did."""
        with reading(self.engine) as db:
            row = db.execute(select(runs.c.job_id).where(runs.c.id == run_id)).one_or_none()
        if row is None:
            raise _no_run(run_id)
        return row[0]

    def update(self, run_id: str, change: Mapping[str, Any]) -> Run:
        """Change the status, the end time or the name of a run."""
        with writing(self.engine) as db:
            _begin_change(db, run_id)
            if change:
                db.execute(update(runs).where(runs.c.id == run_id).values(**change))
            if "name" in change:
                _set_tags(db, run_id, {NAME_TAG: change["name"]})
            return _load(db, [run_id])[run_id]

    def delete(self, run_id: str, *, now: int) -> None:
        """Mark a run as deleted. `restore` undoes it."""
        self._mark(run_id, stage=DELETED, deleted_at=now)

    def restore(self, run_id: str) -> None:
        self._mark(run_id, stage=ACTIVE, deleted_at=None)

    def log(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write everything or nothing. Values that were logged before change nothing."""
        with writing(self.engine) as db:
            log_in(db, run_id, metrics, params or {}, tags or {})

    def delete_tag(self, run_id: str, key: str) -> None:
        with writing(self.engine) as db:
            _begin_change(db, run_id)
            is_tag = (tags.c.run_id == run_id) & (tags.c.key == key)
            if not db.execute(delete(tags).where(is_tag)).rowcount:
                raise NotFound(f"No tag with name: {key} in run with id {run_id}")

    def append_to_tag(self, run_id: str, key: str, join: Any) -> None:
        """Replace the value of a tag by `join(value)`. A missing tag has the value None."""
        with writing(self.engine) as db:
            _begin_change(db, run_id)
            is_tag = (tags.c.run_id == run_id) & (tags.c.key == key)
            value = db.scalar(select(tags.c.value).where(is_tag).with_for_update())
            _set_tags(db, run_id, {key: join(value)})

    def add_inputs(
        self, run_id: str, datasets: Sequence[DatasetInput], models: Sequence[ModelLink]
    ) -> None:
        """Record the inputs of a run: datasets, each only once, and logged models."""
        with writing(self.engine) as db:
            experiment_id = _begin_change(db, run_id)
            for dataset_input in datasets:
                _add_dataset(db, run_id, experiment_id, dataset_input)
            _add_models(db, run_id, models, "input")

    def add_outputs(self, run_id: str, models: Sequence[ModelLink]) -> None:
        """Record the logged models that a run created."""
        with writing(self.engine) as db:
            _begin_change(db, run_id)
            _add_models(db, run_id, models, "output")

    def _mark(self, run_id: str, **values: Any) -> None:
        with writing(self.engine) as db:
            run = db.execute(_SELECT_STAGE, {"run": run_id}).one_or_none()
            if run is None:
                raise _no_run(run_id)
            db.execute(update(runs).where(runs.c.id == run_id).values(**values))
            note(db, Change(Noun.METRIC, run_id, job=run.job_id))


def create_in(db: Connection, new: Sequence[Run]) -> None:
    """Store new runs, in an open transaction."""
    rows = [
        run.model_dump(include=set(_COLUMNS)) | {"experiment_id": int(run.experiment_id)}
        for run in new
    ]
    db.execute(insert(runs), rows)
    new_tags = [
        {"run_id": run.id, "key": key, "value": value}
        for run in new
        for key, value in {**run.tags, NAME_TAG: run.name}.items()
    ]
    db.execute(insert(tags), new_tags)


def log_in(
    db: Connection,
    run_id: str,
    new_metrics: Sequence[Metric],
    new_params: Mapping[str, str],
    new_tags: Mapping[str, str],
) -> None:
    """Write what was logged to a run, in an open transaction."""
    _begin_change(db, run_id)
    if new_params:
        _log_params(db, run_id, new_params)
    if new_metrics:
        _log_metrics(db, run_id, new_metrics)
        model_metrics = [metric for metric in new_metrics if metric.model_id]
        if model_metrics:
            log_model_metrics(db, run_id, model_metrics)
    if new_tags:
        _set_tags(db, run_id, new_tags)


def change_tags(db: Connection, run_id: str, changes: Mapping[str, str | None]) -> None:
    """Set tags of a run, and remove those without a value, in an open transaction."""
    removed = [key for key, value in changes.items() if value is None]
    if removed:
        db.execute(delete(tags).where(tags.c.run_id == run_id, tags.c.key.in_(removed)))
    _set_tags(db, run_id, {key: value for key, value in changes.items() if value is not None})


def conflicts(db: Connection, run_id: str, new: Mapping[str, str]) -> dict[str, str]:
    """Return the params that a run already has with another value, and that value."""
    is_param = (params.c.run_id == run_id) & params.c.key.in_(new)
    logged = db.execute(select(params.c.key, params.c.value).where(is_param))
    return {key: value for key, value in logged if value != new[key]}


def _begin_change(db: Connection, run_id: str) -> int:
    """Return the experiment of a run that changes, or raise Invalid if the run is deleted."""
    run = db.execute(_SELECT_STAGE, {"run": run_id}).one_or_none()
    if run is None:
        raise _no_run(run_id)
    if run.stage != ACTIVE:
        raise Invalid(
            f"The run {run_id} must be in the 'active' state. Current state is {run.stage}."
        )
    note(db, Change(Noun.METRIC, run_id, job=run.job_id))
    return int(run.experiment_id)


def _log_params(db: Connection, run_id: str, new: Mapping[str, str]) -> None:
    different = conflicts(db, run_id, new)
    if different:
        raise Invalid(_describe_conflicts(run_id, new, different))
    insert_new(db, params, [{"run_id": run_id, "key": k, "value": v} for k, v in new.items()])


def _describe_conflicts(run_id: str, new: Mapping[str, str], old: Mapping[str, str]) -> str:
    if len(new) == 1:
        ((key, value),) = new.items()
        return (
            f"Changing param values is not allowed. Param with key='{key}' was already logged "
            f"with value='{old[key]}' for run ID='{run_id}'. Attempted logging new value '{value}'."
        )
    rows = [{"key": key, "old_value": old[key], "new_value": new[key]} for key in old]
    return (
        "Changing param values is not allowed. Params were already "
        f"logged='{rows}' for run ID='{run_id}'."
    )


def _set_tags(db: Connection, run_id: str, new: Mapping[str, str]) -> None:
    rows = [{"run_id": run_id, "key": key, "value": value} for key, value in new.items()]
    upsert(db, tags, *rows, replace=("value",))
    if NAME_TAG in new:
        db.execute(update(runs).where(runs.c.id == run_id).values(name=new[NAME_TAG]))


def _log_metrics(db: Connection, run_id: str, new: Sequence[Metric]) -> None:
    rows = [(metric, 0.0 if math.isnan(metric.value) else metric.value) for metric in new]
    latest: dict[str, tuple[int, int, float, bool]] = {}
    for metric, value in rows:
        point = (metric.step, metric.logged_at, value, math.isnan(metric.value))
        if metric.key not in latest or point > latest[metric.key]:
            latest[metric.key] = point
    ids = _keep_latest(db, run_id, latest)
    insert_new(
        db,
        points,
        [
            {
                "metric_id": ids[metric.key],
                "step": metric.step,
                "logged_at": metric.logged_at,
                "value": value,
                "nan": math.isnan(metric.value),
            }
            for metric, value in rows
        ],
    )


def _keep_latest(
    db: Connection, run_id: str, latest: Mapping[str, tuple[int, int, float, bool]]
) -> dict[str, int]:
    """Create missing metrics, update older ones, and return the ids of all."""
    parameters = {"run": run_id, "keys": list(latest)}
    stored = {row.key: row for row in db.execute(_SELECT_LATEST, parameters)}
    new = [_latest(run_id, key, latest[key]) for key in latest if key not in stored]
    if new:
        insert_new(db, metrics, new, key=("run_id", "key"))
    ids = {key: int(row.id) for key, row in stored.items()}
    if new:
        ids = {row.key: int(row.id) for row in db.execute(_SELECT_LATEST, parameters)}
    newer = [
        _latest(run_id, key, latest[key]) | {"metric": row.id}
        for key, row in stored.items()
        if latest[key][:3] > (row.step, row.logged_at, row.value)
    ]
    if newer:
        db.execute(_UPDATE_LATEST, newer)
    return ids


def _latest(run_id: str, key: str, point: tuple[int, int, float, bool]) -> dict[str, Any]:
    step, logged_at, value, nan = point
    row = {"run_id": run_id, "key": key, "value": value, "nan": nan}
    return row | {"step": step, "logged_at": logged_at}


def _add_dataset(
    db: Connection, run_id: str, experiment_id: int, dataset_input: DatasetInput
) -> None:
    dataset = dataset_input.dataset.model_dump()
    dataset["schema"] = dataset.pop("schema_")
    row = dataset | {"id": uuid.uuid4().hex, "experiment_id": experiment_id}
    insert_new(db, datasets, [row], key=("experiment_id", "name", "digest"))
    is_named = (datasets.c.experiment_id == experiment_id) & (datasets.c.name == row["name"])
    query = select(datasets.c.id).where(is_named, datasets.c.digest == row["digest"])
    dataset_id = db.scalars(query).one()
    edge = {"run_id": run_id, "dataset_id": dataset_id}
    of_run = select(run_datasets.c.dataset_id).where(run_datasets.c.run_id == run_id)
    known_ids = db.scalars(of_run).all()
    if dataset_id not in known_ids:
        insert_new(db, run_datasets, [edge | {"number": len(known_ids)}])
        rows = [edge | {"key": key, "value": value} for key, value in dataset_input.tags.items()]
        insert_new(db, run_dataset_tags, rows)


def _add_models(db: Connection, run_id: str, links: Sequence[ModelLink], role: str) -> None:
    rows = [{"run_id": run_id, "role": role, **link.model_dump()} for link in links]
    insert_new(db, run_models, rows)


def _load(db: Connection, ids: Sequence[str]) -> dict[str, Run]:
    rows = db.execute(select(runs).where(runs.c.id.in_(ids))).mappings().all()
    if not rows:
        return {}
    metrics_by_run, datasets_by_run = _metrics_of(db, ids), _datasets_of(db, ids)
    params_by_run, tags_by_run = _pairs_of(db, params, ids), _pairs_of(db, tags, ids)
    links = _models_of(db, ids)
    by_id: dict[str, Run] = {}
    for row in rows:
        run_id = row["id"]
        columns = {name: row[name] for name in _COLUMNS}
        by_id[run_id] = Run(
            **columns,
            experiment_id=str(row["experiment_id"]),
            metrics=tuple(metrics_by_run.get(run_id, ())),
            params=params_by_run.get(run_id, {}),
            tags=tags_by_run.get(run_id, {}),
            datasets=tuple(datasets_by_run.get(run_id, ())),
            models_in=tuple(links.get((run_id, "input"), ())),
            models_out=tuple(links.get((run_id, "output"), ())),
        )
    return by_id


def _metrics_of(db: Connection, ids: Sequence[str]) -> dict[str, list[Metric]]:
    by_run: dict[str, list[Metric]] = {}
    query = select(metrics).where(metrics.c.run_id.in_(ids)).order_by(metrics.c.key)
    for row in db.execute(query):
        value = math.nan if row.nan else row.value
        metric = Metric(row.key, value, row.logged_at, row.step)
        by_run.setdefault(row.run_id, []).append(metric)
    return by_run


def _pairs_of(db: Connection, table: Any, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    by_run: dict[str, dict[str, str]] = {}
    query = select(table.c.run_id, table.c.key, table.c.value).where(table.c.run_id.in_(ids))
    for run_id, key, value in db.execute(query.order_by(table.c.key)):
        by_run.setdefault(run_id, {})[key] = value
    return by_run


def _datasets_of(db: Connection, ids: Sequence[str]) -> dict[str, list[DatasetInput]]:
    edges = select(run_datasets.c.run_id, datasets).join(
        datasets, datasets.c.id == run_datasets.c.dataset_id
    )
    query = edges.where(run_datasets.c.run_id.in_(ids)).order_by(run_datasets.c.number)
    rows = db.execute(query).mappings().all()
    if not rows:
        return {}
    tags_by_edge: dict[tuple[str, str], dict[str, str]] = {}
    of_runs = run_dataset_tags.c.run_id.in_(ids)
    for row in db.execute(select(run_dataset_tags).where(of_runs)):
        tags_by_edge.setdefault((row.run_id, row.dataset_id), {})[row.key] = row.value
    by_run: dict[str, list[DatasetInput]] = {}
    for row in rows:
        columns = {name: row[name] for name in Dataset.model_fields if name != "schema_"}
        dataset = Dataset(**columns, schema_=row["schema"])
        edge_tags = tags_by_edge.get((row["run_id"], row["id"]), {})
        by_run.setdefault(row["run_id"], []).append(DatasetInput(dataset=dataset, tags=edge_tags))
    return by_run


def _models_of(db: Connection, ids: Sequence[str]) -> dict[tuple[str, str], list[ModelLink]]:
    by_run_and_role: dict[tuple[str, str], list[ModelLink]] = {}
    for row in db.execute(select(run_models).where(run_models.c.run_id.in_(ids))):
        link = ModelLink(model_id=row.model_id, step=row.step)
        by_run_and_role.setdefault((row.run_id, row.role), []).append(link)
    return by_run_and_role


def _no_run(run_id: str) -> NotFound:
    return NotFound(f"Run with id={run_id} not found")
