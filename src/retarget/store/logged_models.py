"""Logged models in SQL: models as runs logged them."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Invalid, NotFound
from retarget.core.models import LoggedModel, LoggedModelStatus, ModelMetric
from retarget.core.tracking import DELETED, Metric
from retarget.store.engine import insert_new, reading, upsert, writing
from retarget.store.schema import (
    logged_model_metrics,
    logged_model_params,
    logged_model_tags,
    logged_models,
)

VERSIONS_TAG = "mlflow.modelVersions"  # lists the versions that were registered from a logged model
_IDS_PER_QUERY = 500
_OTHER_TABLES = {"params", "tags", "metrics"}  # fields that are not columns


class LoggedModels:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(self, model: LoggedModel) -> None:
        """Store a new model with its params and tags."""
        row = model.model_dump(exclude=_OTHER_TABLES) | {"experiment_id": int(model.experiment_id)}
        try:
            with writing(self.engine) as db:
                db.execute(insert(logged_models).values(row))
                _set_pairs(db, logged_model_params, model.id, model.params)
                _set_pairs(db, logged_model_tags, model.id, model.tags)
        except IntegrityError:
            raise NotFound(f"No Experiment with id={model.experiment_id} exists") from None

    def get(self, model_id: str, *, deleted: bool = False) -> LoggedModel:
        """Return a model with all that was logged about it. `deleted` allows a deleted model."""
        models = self.load([model_id])
        if not models or (models[0].stage == DELETED and not deleted):
            raise _no_model(model_id)
        return models[0]

    def load(self, ids: Sequence[str]) -> list[LoggedModel]:
        """Return these models, in this order. Missing ones are omitted."""
        by_id: dict[str, LoggedModel] = {}
        with reading(self.engine) as db:
            for start in range(0, len(ids), _IDS_PER_QUERY):
                by_id |= _load(db, ids[start : start + _IDS_PER_QUERY])
        return [by_id[model_id] for model_id in ids if model_id in by_id]

    def made_by(self, job_id: str) -> list[LoggedModel]:
        """Return the models that a job created, with or without a run, the newest first."""
        by_job = or_(logged_models.c.run_id == job_id, logged_models.c.job_id == job_id)
        query = select(logged_models.c.id).where(by_job, logged_models.c.stage != DELETED)
        newest = query.order_by(logged_models.c.created_at.desc(), logged_models.c.id)
        with reading(self.engine) as db:
            ids = list(db.scalars(newest))
        return self.load(ids)

    def finalize(self, model_id: str, status: LoggedModelStatus, *, now: int) -> LoggedModel:
        """Record how the upload of a model ended."""
        with writing(self.engine) as db:
            _change(db, model_id, status=status, changed_at=now)
            return _load(db, [model_id])[model_id]

    def delete(self, model_id: str, *, now: int) -> None:
        """Mark a model as deleted."""
        with writing(self.engine) as db:
            _change(db, model_id, stage=DELETED, changed_at=now)

    def set_tags(self, model_id: str, tags: Mapping[str, str]) -> None:
        with writing(self.engine) as db:
            _check(db, model_id)
            _set_pairs(db, logged_model_tags, model_id, tags)

    def delete_tag(self, model_id: str, key: str) -> None:
        is_tag = (logged_model_tags.c.model_id == model_id) & (logged_model_tags.c.key == key)
        with writing(self.engine) as db:
            _check(db, model_id)
            if not db.execute(delete(logged_model_tags).where(is_tag)).rowcount:
                raise NotFound(f"No tag with key {key!r} found for model with ID {model_id!r}.")

    def log_params(self, model_id: str, params: Mapping[str, str]) -> None:
        """Add params. An existing param cannot change."""
        table = logged_model_params
        is_param = (table.c.model_id == model_id) & table.c.key.in_(params)
        with writing(self.engine) as db:
            _check(db, model_id)
            for key, value in db.execute(select(table.c.key, table.c.value).where(is_param)):
                if value != params[key]:
                    raise Invalid(
                        f"Changing param values is not allowed. Param with key='{key}' was "
                        f"already logged with value='{value}' for model ID='{model_id}'."
                    )
            rows = [{"model_id": model_id, "key": k, "value": v} for k, v in params.items()]
            insert_new(db, table, rows)


def log_model_metrics(db: Connection, run_id: str, metrics: Sequence[Metric]) -> None:
    """Store what a run measured on models, in an open transaction.

    Of two values with the same step and time, the last one stays. A model must exist, but may
    belong to another experiment.
    """
    of_models = [metric for metric in metrics if metric.model_id is not None]
    _check_all(db, {str(metric.model_id) for metric in of_models})
    for metric in of_models:
        nan = math.isnan(metric.value)
        row = metric._asdict() | {"run_id": run_id, "nan": nan}
        row["value"] = 0.0 if nan else metric.value
        upsert(db, logged_model_metrics, row, replace=("value", "nan"))


def note_version(db: Connection, model_id: str, name: str, version: int) -> None:
    """Tag a logged model with a version that was registered from it, in an open transaction."""
    table = logged_model_tags
    is_tag = (table.c.model_id == model_id) & (table.c.key == VERSIONS_TAG)
    if db.execute(_select_id(model_id).with_for_update()).first() is None:
        return
    versions = _versions(db.scalar(select(table.c.value).where(is_tag)))
    new = {"name": name, "version": version}
    if new not in versions:
        _set_pairs(db, table, model_id, {VERSIONS_TAG: json.dumps([*versions, new])})


def _versions(tag: str | None) -> list[Any]:
    """Read the tag. A client may have written anything there."""
    try:
        versions = json.loads(tag or "[]")
    except ValueError:
        return []
    return list(versions) if isinstance(versions, list) else []  # pyright: ignore[reportUnknownArgumentType]


def _set_pairs(db: Connection, table: Table, model_id: str, pairs: Mapping[str, str]) -> None:
    for key, value in pairs.items():
        row = {"model_id": model_id, "key": key, "value": value}
        upsert(db, table, row, replace=("value",))


def _change(db: Connection, model_id: str, **values: Any) -> None:
    change = update(logged_models).where(logged_models.c.id == model_id).values(**values)
    if not db.execute(change).rowcount:
        raise _no_model(model_id)


def _check(db: Connection, model_id: str) -> None:
    if db.execute(_select_id(model_id)).first() is None:
        raise _no_model(model_id)


def _check_all(db: Connection, ids: set[str]) -> None:
    query = select(logged_models.c.id).where(logged_models.c.id.in_(ids))
    missing = ids - set(db.scalars(query))
    if missing:
        raise _no_model(min(missing))


def _select_id(model_id: str) -> Any:
    return select(logged_models.c.id).where(logged_models.c.id == model_id)


def _load(db: Connection, ids: Sequence[str]) -> dict[str, LoggedModel]:
    rows = db.execute(select(logged_models).where(logged_models.c.id.in_(ids))).mappings()
    columns = {row["id"]: dict(row) for row in rows}
    params, tags = _pairs(db, logged_model_params, ids), _pairs(db, logged_model_tags, ids)
    metrics = _metrics(db, ids)
    return {
        model_id: LoggedModel.model_validate(
            row
            | {"experiment_id": str(row["experiment_id"])}
            | {"params": params.get(model_id, {}), "tags": tags.get(model_id, {})}
            | {"metrics": metrics.get(model_id, ())}
        )
        for model_id, row in columns.items()
    }


def _pairs(db: Connection, table: Table, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    pairs: dict[str, dict[str, str]] = {}
    query = select(table.c.model_id, table.c.key, table.c.value).where(table.c.model_id.in_(ids))
    for model_id, key, value in db.execute(query.order_by(table.c.key)):
        pairs.setdefault(model_id, {})[key] = value
    return pairs


def _metrics(db: Connection, ids: Sequence[str]) -> dict[str, list[ModelMetric]]:
    table = logged_model_metrics
    query = select(table).where(table.c.model_id.in_(ids))
    metrics: dict[str, list[ModelMetric]] = {}
    for row in db.execute(query.order_by(table.c.logged_at, table.c.step, table.c.key)).mappings():
        fields = {name: row[name] for name in Metric._fields}
        metric = Metric(**fields)._replace(value=math.nan if row["nan"] else row["value"])
        metrics.setdefault(row["model_id"], []).append(ModelMetric(row["run_id"], metric))
    return metrics


def _no_model(model_id: str) -> NotFound:
    return NotFound(f"Logged model with ID '{model_id}' not found.")
