"""MLflow's searches in SQL: they find ids, in order; who asks then loads what they stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Select,
    Table,
    and_,
    case,
    false,
    or_,
    select,
)

from retarget.core.filters import Clause, OnDataset, Order, Search
from retarget.core.grammars import Kind
from retarget.core.tracking import DELETED
from retarget.store.comparisons import compare, directed
from retarget.store.engine import reading
from retarget.store.run_search import CONTEXT_TAG, SIZES, Scope, Sizes, find_runs
from retarget.store.schema import (
    datasets,
    experiment_tags,
    experiments,
    logged_model_metrics,
    logged_model_params,
    logged_model_tags,
    logged_models,
    model_tags,
    model_version_tags,
    model_versions,
    models,
    run_dataset_tags,
    run_datasets,
)

_PROMPT_TAG = "mlflow.prompt.is_prompt"  # tells MLflow's prompts from models
_MOST_DATASETS = 1000


class DatasetUse(NamedTuple):
    experiment_id: str
    name: str
    digest: str
    context: str | None


class Searches:
    """Each search returns the page that was asked for, and one more if there is another page."""

    def __init__(self, engine: Engine, sizes: Sizes = SIZES) -> None:
        self.engine = engine
        self.sizes = sizes

    def runs(self, search: Search, scope: Scope) -> list[str]:
        """Return ids of runs."""
        with reading(self.engine) as db:
            return find_runs(db, search, scope, self.sizes)

    def experiments(self, search: Search, stages: Sequence[str]) -> list[str]:
        """Return ids of experiments."""
        query = select(experiments.c.id).where(experiments.c.stage.in_(stages))
        with reading(self.engine) as db:
            return [str(row[0]) for row in _page(db, query, search, _EXPERIMENT)]

    def models(self, search: Search) -> list[str]:
        """Return names of registered models."""
        search, no_prompts = _part_prompts(search, model_tags, models.c.name)
        with reading(self.engine) as db:
            rows = _page(db, select(models.c.name).where(*no_prompts), search, _MODEL)
            return [row[0] for row in rows]

    def versions(self, search: Search) -> list[tuple[str, int]]:
        """Return names and numbers of versions of registered models."""
        table = model_versions
        search, no_prompts = _part_prompts(search, model_version_tags, table.c.name)
        query = select(table.c.name, table.c.version).where(*no_prompts)
        with reading(self.engine) as db:
            return [(row[0], row[1]) for row in _page(db, query, search, _VERSION)]

    def logged_models(
        self, search: Search, experiment_ids: Sequence[int], on: Sequence[OnDataset] = ()
    ) -> list[str]:
        """Return ids of logged models; with `on`, of those measured on one of these datasets."""
        query = select(logged_models.c.id).where(
            logged_models.c.stage != DELETED, logged_models.c.experiment_id.in_(experiment_ids)
        )
        measured = [clause for clause in search.clauses if clause.kind == Kind.METRIC]
        others = tuple(clause for clause in search.clauses if clause.kind != Kind.METRIC)
        with reading(self.engine) as db:
            for clause in measured:
                query = query.where(_measured(on, _metric_holds(clause, db.dialect)))
            if on and not measured:
                query = query.where(_measured(on))
            rows = _page(db, query, replace(search, clauses=others), _LOGGED_MODEL)
            return [row[0] for row in rows]

    def datasets(self, experiment_ids: Sequence[int]) -> list[DatasetUse]:
        """Return which datasets the runs of some experiments were given, and what for."""
        context = and_(
            run_dataset_tags.c.run_id == run_datasets.c.run_id,
            run_dataset_tags.c.dataset_id == datasets.c.id,
            run_dataset_tags.c.key == CONTEXT_TAG,
        )
        columns = datasets.c["experiment_id", "name", "digest"]
        query = (
            select(*columns, run_dataset_tags.c.value)
            .join(run_datasets, run_datasets.c.dataset_id == datasets.c.id)
            .outerjoin(run_dataset_tags, context)
            .where(datasets.c.experiment_id.in_(experiment_ids))
            .distinct()
        )
        with reading(self.engine) as db:
            rows: Any = db.execute(query.limit(_MOST_DATASETS))
            return [DatasetUse(str(row[0]), *row[1:]) for row in rows]


class _Part(NamedTuple):
    """A table with keys and values of something, and which of its rows are."""

    table: Table
    mine: ColumnElement[bool]


@dataclass(frozen=True)
class _Noun:
    """What is searched for, and how it is ordered."""

    columns: Mapping[str, ColumnElement[Any]]
    parts: Mapping[Kind, _Part]
    ties: tuple[Order, ...]  # what decides in the end
    usual: tuple[Order, ...] = ()  # the order when none was asked for


def _by(key: str, *, ascending: bool) -> Order:
    return Order(Kind.ATTRIBUTE, key, ascending)


_EXPERIMENT = _Noun(
    columns={
        "name": experiments.c.name,
        "experiment_id": experiments.c.id,
        "creation_time": experiments.c.created,
        "last_update_time": experiments.c.changed,
    },
    parts={
        Kind.TAG: _Part(experiment_tags, experiment_tags.c.experiment_id == experiments.c.id),
    },
    ties=(_by("experiment_id", ascending=False),),
    usual=(_by("creation_time", ascending=False), _by("experiment_id", ascending=True)),
)
_MODEL = _Noun(
    columns={"name": models.c.name, "last_updated_timestamp": models.c.changed},
    parts={Kind.TAG: _Part(model_tags, model_tags.c.name == models.c.name)},
    ties=(_by("name", ascending=True),),
)
_VERSION = _Noun(
    columns={
        "name": model_versions.c.name,
        "version_number": model_versions.c.version,
        "run_id": model_versions.c.run_id,
        "source_path": model_versions.c.source,
        "creation_timestamp": model_versions.c.created,
        "last_updated_timestamp": model_versions.c.changed,
    },
    parts={
        Kind.TAG: _Part(
            model_version_tags,
            (model_version_tags.c.name == model_versions.c.name)
            & (model_version_tags.c.version == model_versions.c.version),
        ),
    },
    ties=(_by("name", ascending=True), _by("version_number", ascending=False)),
    usual=(_by("last_updated_timestamp", ascending=False),),
)
_LOGGED_MODEL = _Noun(
    columns={
        "model_id": logged_models.c.id,
        "name": logged_models.c.name,
        "model_type": logged_models.c.type,
        "status": logged_models.c.status,
        "status_message": logged_models.c.message,
        "source_run_id": logged_models.c.run_id,
        "experiment_id": logged_models.c.experiment_id,
        "artifact_location": logged_models.c.location,
        "creation_timestamp": logged_models.c.created,
        "last_updated_timestamp": logged_models.c.changed,
    },
    parts={
        Kind.TAG: _Part(logged_model_tags, logged_model_tags.c.model_id == logged_models.c.id),
        Kind.PARAM: _Part(
            logged_model_params, logged_model_params.c.model_id == logged_models.c.id
        ),
    },
    ties=(_by("creation_timestamp", ascending=False), _by("model_id", ascending=True)),
)


def _page(
    db: Connection, query: Select[*tuple[Any, ...]], search: Search, noun: _Noun
) -> Sequence[Any]:
    for clause in search.clauses:
        query = query.where(_holds(clause, noun, db.dialect))
    orders = search.orders or noun.usual
    named = {order.key for order in orders if order.kind == Kind.ATTRIBUTE}
    for order in (*orders, *(tie for tie in noun.ties if tie.key not in named)):
        column = _value(order, noun)
        query = query.order_by(directed(column, db.dialect, ascending=order.ascending))
    return db.execute(query.offset(search.offset).limit(search.limit + 1)).all()


def _holds(clause: Clause, noun: _Noun, dialect: Dialect) -> ColumnElement[bool]:
    if clause.kind == Kind.ATTRIBUTE:
        return compare(noun.columns[clause.key], clause.op, clause.value, dialect)
    table, mine = noun.parts[clause.kind]
    rows = select(table.c.key).where(mine, table.c.key == clause.key)
    if clause.value is None:
        return ~rows.exists() if clause.op == "IS NULL" else rows.exists()
    return rows.where(compare(table.c.value, clause.op, clause.value, dialect)).exists()


def _value(order: Order, noun: _Noun) -> ColumnElement[Any]:
    if order.kind == Kind.ATTRIBUTE:
        return noun.columns[order.key]
    table = logged_model_metrics
    number = case((table.c.nan == false(), table.c.value))
    latest = select(number).where(
        table.c.model_id == logged_models.c.id,
        table.c.key == order.key,
        *([_on(order.on)] if order.on else []),
    )
    newest = (table.c.timestamp.desc(), table.c.step.desc(), table.c.run_id)
    return latest.order_by(*newest).limit(1).scalar_subquery()


def _measured(on: Sequence[OnDataset], *holds: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return whether a logged model has such a metric, on one of these datasets if any are."""
    rows = select(logged_model_metrics.c.key).where(
        logged_model_metrics.c.model_id == logged_models.c.id, *holds
    )
    if on:
        rows = rows.where(or_(*(_on(each) for each in on)))
    return rows.exists()


def _metric_holds(clause: Clause, dialect: Dialect) -> ColumnElement[bool]:
    table = logged_model_metrics
    holds = compare(table.c.value, clause.op, clause.value, dialect)
    return and_(table.c.key == clause.key, table.c.nan == false(), holds)


def _on(dataset: OnDataset) -> ColumnElement[bool]:
    named = logged_model_metrics.c.dataset_name == dataset.name
    if not dataset.digest:
        return named
    return and_(named, logged_model_metrics.c.dataset_digest == dataset.digest)


def _part_prompts(
    search: Search, tags: Table, name: ColumnElement[str]
) -> tuple[Search, list[ColumnElement[bool]]]:
    """Leave MLflow's prompts out, which are models with a tag, unless they are asked for."""
    about = [clause for clause in search.clauses if clause[:2] == (Kind.TAG, _PROMPT_TAG)]
    if about and (about[0].op, str(about[0].value).lower()) in (("=", "true"), ("!=", "false")):
        return search, []
    others = tuple(clause for clause in search.clauses if clause not in about)
    prompts = select(tags.c.name).where(tags.c.key == _PROMPT_TAG, tags.c.value == "true")
    return replace(search, clauses=others), [name.not_in(prompts)]
