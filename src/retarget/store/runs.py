"""Runs in SQL: what clients log is written here, and read back whole."""

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.tracking import (
    ACTIVE,
    DELETED,
    Dataset,
    DatasetInput,
    Metric,
    ModelLink,
    Run,
)
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

NAME_TAG = "mlflow.runName"
_INFO = ("id", "job_id", "name", "user", "status", "stage", "started", "ended", "location")

# Said once: to make these anew for each metric that is logged takes longer than to run them.
_STAGE = select(runs.c.stage, runs.c.experiment_id).where(runs.c.id == bindparam("run"))
_LATEST = (
    select(*metrics.c["id", "key", "step", "timestamp", "value"])
    .where(
        metrics.c.run_id == bindparam("run"), metrics.c.key.in_(bindparam("keys", expanding=True))
    )
    .with_for_update()
)
_RENEW = (
    update(metrics)
    .where(metrics.c.id == bindparam("metric"))
    .values({name: bindparam(name) for name in ("value", "nan", "step", "timestamp")})
)


class Runs:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(self, run: Run) -> None:
        """Keep a new run with its tags; the name of a run is a tag too."""
        try:
            with writing(self.engine) as db:
                create_in(db, [run])
        except IntegrityError:
            raise Conflict(f"Run with id={run.id} exists already") from None

    def get(self, run_id: str) -> Run:
        """Return a run with all that was logged to it."""
        found = self.load([run_id])
        if not found:
            raise _no_run(run_id)
        return found[0]

    def load(self, ids: Sequence[str]) -> list[Run]:
        """Return these runs, in this order; those that are gone are left out."""
        with reading(self.engine) as db:
            found = _load(db, ids)
        return [found[run_id] for run_id in ids if run_id in found]

    def owner(self, run_id: str) -> str | None:
        """Return the job that made a run, or None if a client outside a job did."""
        with reading(self.engine) as db:
            row = db.execute(select(runs.c.job_id).where(runs.c.id == run_id)).one_or_none()
        if row is None:
            raise _no_run(run_id)
        return row[0]

    def update(self, run_id: str, change: Mapping[str, Any]) -> Run:
        """Change the status, the end or the name of a run."""
        with writing(self.engine) as db:
            _check_active(db, run_id)
            if change:
                db.execute(update(runs).where(runs.c.id == run_id).values(**change))
            if "name" in change:
                _set_tags(db, run_id, {NAME_TAG: change["name"]})
            return _load(db, [run_id])[run_id]

    def delete(self, run_id: str, *, now: int) -> None:
        """Mark a run as deleted; `restore` brings it back."""
        self._mark(run_id, stage=DELETED, deleted=now)

    def restore(self, run_id: str) -> None:
        self._mark(run_id, stage=ACTIVE, deleted=None)

    def log(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write all of it, or nothing. What was written before, word for word, changes nothing."""
        with writing(self.engine) as db:
            log_in(db, run_id, metrics, params or {}, tags or {})

    def delete_tag(self, run_id: str, key: str) -> None:
        with writing(self.engine) as db:
            _check_active(db, run_id)
            which = (tags.c.run_id == run_id) & (tags.c.key == key)
            if not db.execute(delete(tags).where(which)).rowcount:
                raise NotFound(f"No tag with name: {key} in run with id {run_id}")

    def append_to_tag(self, run_id: str, key: str, join: Any) -> None:
        """Replace a tag's value by `join(value)`; None is given when there is none."""
        with writing(self.engine) as db:
            _check_active(db, run_id)
            which = (tags.c.run_id == run_id) & (tags.c.key == key)
            seen = db.scalar(select(tags.c.value).where(which).with_for_update())
            _set_tags(db, run_id, {key: join(seen)})

    def add_inputs(
        self, run_id: str, given: Sequence[DatasetInput], models: Sequence[ModelLink]
    ) -> None:
        """Note what a run was given: datasets, once each, and logged models."""
        with writing(self.engine) as db:
            experiment_id = _check_active(db, run_id)
            for each in given:
                _add_dataset(db, run_id, experiment_id, each)
            _add_models(db, run_id, models, "input")

    def add_outputs(self, run_id: str, models: Sequence[ModelLink]) -> None:
        """Note which logged models a run made."""
        with writing(self.engine) as db:
            _check_active(db, run_id)
            _add_models(db, run_id, models, "output")

    def _mark(self, run_id: str, **values: Any) -> None:
        with writing(self.engine) as db:
            if not db.execute(update(runs).where(runs.c.id == run_id).values(**values)).rowcount:
                raise _no_run(run_id)


def create_in(db: Connection, new: Sequence[Run]) -> None:
    """Keep new runs, in a transaction that is open."""
    rows = [
        run.model_dump(include=set(_INFO)) | {"experiment_id": int(run.experiment_id)}
        for run in new
    ]
    db.execute(insert(runs), rows)
    named = [(run.id, tag) for run in new for tag in {**run.tags, NAME_TAG: run.name}.items()]
    db.execute(insert(tags), [{"run_id": of, "key": k, "value": v} for of, (k, v) in named])


def log_in(
    db: Connection,
    run_id: str,
    new_metrics: Sequence[Metric],
    new_params: Mapping[str, str],
    new_tags: Mapping[str, str],
) -> None:
    """Write what was logged to a run, in a transaction that is open."""
    _check_active(db, run_id)
    if new_params:
        _log_params(db, run_id, new_params)
    if new_metrics:
        _log_metrics(db, run_id, new_metrics)
        about_models = [metric for metric in new_metrics if metric.model_id]
        if about_models:
            log_model_metrics(db, run_id, about_models)
    if new_tags:
        _set_tags(db, run_id, new_tags)
        if NAME_TAG in new_tags:
            named = update(runs).where(runs.c.id == run_id)
            db.execute(named.values(name=new_tags[NAME_TAG]))


def conflicts(db: Connection, run_id: str, new: Mapping[str, str]) -> dict[str, str]:
    """Return the params that a run has with another value already, with that value."""
    which = (params.c.run_id == run_id) & params.c.key.in_(new)
    seen = db.execute(select(params.c.key, params.c.value).where(which))
    return {key: value for key, value in seen if value != new[key]}


def _check_active(db: Connection, run_id: str) -> int:
    """Return the experiment of a run that may be written to."""
    found = db.execute(_STAGE, {"run": run_id}).one_or_none()
    if found is None:
        raise _no_run(run_id)
    if found.stage != ACTIVE:
        raise Invalid(
            f"The run {run_id} must be in the 'active' state. Current state is {found.stage}."
        )
    return int(found.experiment_id)


def _log_params(db: Connection, run_id: str, new: Mapping[str, str]) -> None:
    different = conflicts(db, run_id, new)
    if different:
        raise Invalid(_changed(run_id, new, different))
    insert_new(db, params, [{"run_id": run_id, "key": k, "value": v} for k, v in new.items()])


def _changed(run_id: str, new: Mapping[str, str], old: Mapping[str, str]) -> str:
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
    for key, value in new.items():
        row = {"run_id": run_id, "key": key, "value": value}
        upsert(db, tags, row, replace=("value",))


def _log_metrics(db: Connection, run_id: str, new: Sequence[Metric]) -> None:
    rows = [(each, 0.0 if math.isnan(each.value) else each.value) for each in new]
    latest: dict[str, tuple[int, int, float, bool]] = {}
    for each, value in rows:
        point = (each.step, each.timestamp, value, math.isnan(each.value))
        if each.key not in latest or point > latest[each.key]:
            latest[each.key] = point
    ids = _keep_latest(db, run_id, latest)
    insert_new(
        db,
        points,
        [
            {
                "metric_id": ids[each.key],
                "step": each.step,
                "timestamp": each.timestamp,
                "value": value,
                "nan": math.isnan(each.value),
            }
            for each, value in rows
        ],
    )


def _keep_latest(
    db: Connection, run_id: str, latest: Mapping[str, tuple[int, int, float, bool]]
) -> dict[str, int]:
    """Make the metrics there are none of, renew what is older, and return the id of each."""
    mine = {"run": run_id, "keys": list(latest)}
    seen = {row.key: row for row in db.execute(_LATEST, mine)}
    made = [_latest(run_id, key, latest[key]) for key in latest if key not in seen]
    if made:
        insert_new(db, metrics, made, key=("run_id", "key"))
    ids = {key: int(row.id) for key, row in seen.items()}
    if made:
        ids = {row.key: int(row.id) for row in db.execute(_LATEST, mine)}
    newer = [
        _latest(run_id, key, latest[key]) | {"metric": row.id}
        for key, row in seen.items()
        if latest[key][:3] > (row.step, row.timestamp, row.value)
    ]
    if newer:
        db.execute(_RENEW, newer)
    return ids


def _latest(run_id: str, key: str, point: tuple[int, int, float, bool]) -> dict[str, Any]:
    step, timestamp, value, nan = point
    known = {"run_id": run_id, "key": key, "value": value, "nan": nan}
    return known | {"step": step, "timestamp": timestamp}


def _add_dataset(db: Connection, run_id: str, experiment_id: int, given: DatasetInput) -> None:
    dataset = given.dataset.model_dump()
    dataset["schema"] = dataset.pop("schema_")
    row = dataset | {"id": uuid.uuid4().hex, "experiment_id": experiment_id}
    insert_new(db, datasets, [row], key=("experiment_id", "name", "digest"))
    which = (datasets.c.experiment_id == experiment_id) & (datasets.c.name == row["name"])
    found = db.scalars(select(datasets.c.id).where(which, datasets.c.digest == row["digest"])).one()
    edge = {"run_id": run_id, "dataset_id": found}
    of_run = select(run_datasets.c.dataset_id).where(run_datasets.c.run_id == run_id)
    there = db.scalars(of_run).all()
    if found not in there:
        insert_new(db, run_datasets, [edge | {"number": len(there)}])
        words = [edge | {"key": key, "value": value} for key, value in given.tags.items()]
        insert_new(db, run_dataset_tags, words)


def _add_models(db: Connection, run_id: str, links: Sequence[ModelLink], role: str) -> None:
    rows = [{"run_id": run_id, "role": role, **link.model_dump()} for link in links]
    insert_new(db, run_models, rows)


# -- reading


def _load(db: Connection, ids: Sequence[str]) -> dict[str, Run]:
    rows = db.execute(select(runs).where(runs.c.id.in_(ids))).mappings().all()
    if not rows:
        return {}
    logged = _metrics_of(db, ids)
    given, words = _pairs_of(db, params, ids), _pairs_of(db, tags, ids)
    fed = _datasets_of(db, ids)
    links = _models_of(db, ids)
    found: dict[str, Run] = {}
    for row in rows:
        run_id = row["id"]
        known = {name: row[name] for name in _INFO}
        found[run_id] = Run(
            **known,
            experiment_id=str(row["experiment_id"]),
            metrics=tuple(logged.get(run_id, ())),
            params=given.get(run_id, {}),
            tags=words.get(run_id, {}),
            datasets=tuple(fed.get(run_id, ())),
            models_in=tuple(links.get((run_id, "input"), ())),
            models_out=tuple(links.get((run_id, "output"), ())),
        )
    return found


def _metrics_of(db: Connection, ids: Sequence[str]) -> dict[str, list[Metric]]:
    found: dict[str, list[Metric]] = {}
    query = select(metrics).where(metrics.c.run_id.in_(ids)).order_by(metrics.c.key)
    for row in db.execute(query):
        value = math.nan if row.nan else row.value
        metric = Metric(row.key, value, row.timestamp, row.step)
        found.setdefault(row.run_id, []).append(metric)
    return found


def _pairs_of(db: Connection, table: Any, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    query = select(table.c.run_id, table.c.key, table.c.value).where(table.c.run_id.in_(ids))
    for run_id, key, value in db.execute(query.order_by(table.c.key)):
        found.setdefault(run_id, {})[key] = value
    return found


def _datasets_of(db: Connection, ids: Sequence[str]) -> dict[str, list[DatasetInput]]:
    edges = select(run_datasets.c.run_id, datasets).join(
        datasets, datasets.c.id == run_datasets.c.dataset_id
    )
    mine = edges.where(run_datasets.c.run_id.in_(ids)).order_by(run_datasets.c.number)
    rows = db.execute(mine).mappings().all()
    if not rows:
        return {}
    words: dict[tuple[str, str], dict[str, str]] = {}
    which = run_dataset_tags.c.run_id.in_(ids)
    for row in db.execute(select(run_dataset_tags).where(which)):
        words.setdefault((row.run_id, row.dataset_id), {})[row.key] = row.value
    found: dict[str, list[DatasetInput]] = {}
    for row in rows:
        known = {name: row[name] for name in Dataset.model_fields if name != "schema_"}
        dataset = Dataset(**known, schema_=row["schema"])
        told = words.get((row["run_id"], row["id"]), {})
        found.setdefault(row["run_id"], []).append(DatasetInput(dataset=dataset, tags=told))
    return found


def _models_of(db: Connection, ids: Sequence[str]) -> dict[tuple[str, str], list[ModelLink]]:
    found: dict[tuple[str, str], list[ModelLink]] = {}
    for row in db.execute(select(run_models).where(run_models.c.run_id.in_(ids))):
        link = ModelLink(model_id=row.model_id, step=row.step)
        found.setdefault((row.run_id, row.role), []).append(link)
    return found


def _no_run(run_id: str) -> NotFound:
    return NotFound(f"Run with id={run_id} not found")
