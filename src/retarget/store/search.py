"""MLflow's searches in SQL. They return ordered ids; the caller loads the objects."""

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
from retarget.core.job_queries import JobQuery, LoggedKey
from retarget.core.tracking import DELETED
from retarget.store.comparisons import compare, directed
from retarget.store.engine import reading
from retarget.store.job_search import find_jobs, read_logged
from retarget.store.run_search import CONTEXT_TAG, THRESHOLDS, Scope, Thresholds, find_runs
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

_PROMPT_TAG = "mlflow.prompt.is_prompt"  # marks MLflow's prompts, which are stored as models
_MAX_DATASETS = 1000


class DatasetUse(NamedTuple):
    experiment_id: str
    name: str
    digest: str
    context: str | None


class Searches:
    """Each search returns one page, and one more row if there is another page."""

    def __init__(self, engine: Engine, thresholds: Thresholds = THRESHOLDS) -> None:
        self.engine = engine
        self.sizes = thresholds

    def runs(self, search: Search, scope: Scope) -> list[str]:
        """Return ids of runs."""
        with reading(self.engine) as db:
            return find_runs(db, search, scope, self.sizes)

    def jobs(self, query: JobQuery) -> list[str]:
        """Return ids of jobs."""
        with reading(self.engine) as db:
            return find_jobs(db, query)

    def logged(
        self, ids: Sequence[str], keys: Sequence[LoggedKey]
    ) -> dict[str, dict[str, float | str]]:
        """Return what these jobs logged under these keys, by id."""
        with reading(self.engine) as db:
            return read_logged(db, ids, keys)

    def experiments(self, search: Search, stages: Sequence[str]) -> list[str]:
        """Return ids of experiments."""
        query = select(experiments.c.id).where(experiments.c.stage.in_(stages))
        with reading(self.engine) as db:
            return [str(row[0]) for row in _page(db, query, search, _EXPERIMENT)]

    def models(self, search: Search) -> list[str]:
        """Return names of registered models."""
        search, no_prompts = _exclude_prompts(search, model_tags, models.c.name)
        with reading(self.engine) as db:
            rows = _page(db, select(models.c.name).where(*no_prompts), search, _MODEL)
            return [row[0] for row in rows]

    def versions(self, search: Search) -> list[tuple[str, int]]:
        """Return names and numbers of versions of registered models."""
        table = model_versions
        search, no_prompts = _exclude_prompts(search, model_version_tags, table.c.name)
        query = select(table.c.name, table.c.version).where(*no_prompts)
        with reading(self.engine) as db:
            return [(row[0], row[1]) for row in _page(db, query, search, _VERSION)]

    def logged_models(
        self, search: Search, experiment_ids: Sequence[int], on: Sequence[OnDataset] = ()
    ) -> list[str]:
        """Return ids of logged models. With `on`, only models measured on one of these datasets."""
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
        """Return the datasets that the runs of some experiments used, and what for."""
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
            rows: Any = db.execute(query.limit(_MAX_DATASETS))
            return [DatasetUse(str(row[0]), *row[1:]) for row in rows]


class _PairTable(NamedTuple):
    """A table of keys and values, and the condition that joins it to what is searched."""

    table: Table
    joined: ColumnElement[bool]


@dataclass(frozen=True)
class _Searched:
    """How one kind of object is searched and ordered."""

    columns: Mapping[str, ColumnElement[Any]]
    pair_tables: Mapping[Kind, _PairTable]
    tie_breakers: tuple[Order, ...]  # applied after the requested order
    default_order: tuple[Order, ...] = ()  # used if no order was requested


def _by_attribute(key: str, *, ascending: bool) -> Order:
    return Order(Kind.ATTRIBUTE, key, ascending)


_EXPERIMENT = _Searched(
    columns={
        "name": experiments.c.name,
        "experiment_id": experiments.c.id,
        "creation_time": experiments.c.created_at,
        "last_update_time": experiments.c.changed_at,
    },
    pair_tables={
        Kind.TAG: _PairTable(experiment_tags, experiment_tags.c.experiment_id == experiments.c.id),
    },
    tie_breakers=(_by_attribute("experiment_id", ascending=False),),
    default_order=(
        _by_attribute("creation_time", ascending=False),
        _by_attribute("experiment_id", ascending=True),
    ),
)
_MODEL = _Searched(
    columns={"name": models.c.name, "last_updated_timestamp": models.c.changed_at},
    pair_tables={Kind.TAG: _PairTable(model_tags, model_tags.c.name == models.c.name)},
    tie_breakers=(_by_attribute("name", ascending=True),),
)
_VERSION = _Searched(
    columns={
        "name": model_versions.c.name,
        "version_number": model_versions.c.version,
        "run_id": model_versions.c.run_id,
        "source_path": model_versions.c.source,
        "creation_timestamp": model_versions.c.created_at,
        "last_updated_timestamp": model_versions.c.changed_at,
    },
    pair_tables={
        Kind.TAG: _PairTable(
            model_version_tags,
            (model_version_tags.c.name == model_versions.c.name)
            & (model_version_tags.c.version == model_versions.c.version),
        ),
    },
    tie_breakers=(
        _by_attribute("name", ascending=True),
        _by_attribute("version_number", ascending=False),
    ),
    default_order=(_by_attribute("last_updated_timestamp", ascending=False),),
)
_LOGGED_MODEL = _Searched(
    columns={
        "model_id": logged_models.c.id,
        "name": logged_models.c.name,
        "model_type": logged_models.c.type,
        "status": logged_models.c.status,
        "status_message": logged_models.c.message,
        "source_run_id": logged_models.c.run_id,
        "experiment_id": logged_models.c.experiment_id,
        "artifact_location": logged_models.c.location,
        "creation_timestamp": logged_models.c.created_at,
        "last_updated_timestamp": logged_models.c.changed_at,
    },
    pair_tables={
        Kind.TAG: _PairTable(logged_model_tags, logged_model_tags.c.model_id == logged_models.c.id),
        Kind.PARAM: _PairTable(
            logged_model_params, logged_model_params.c.model_id == logged_models.c.id
        ),
    },
    tie_breakers=(
        _by_attribute("creation_timestamp", ascending=False),
        _by_attribute("model_id", ascending=True),
    ),
)


def _page(
    db: Connection, query: Select[*tuple[Any, ...]], search: Search, searched: _Searched
) -> Sequence[Any]:
    for clause in search.clauses:
        query = query.where(_holds(clause, searched, db.dialect))
    orders = search.orders or searched.default_order
    ordered_keys = {order.key for order in orders if order.kind == Kind.ATTRIBUTE}
    for order in (*orders, *(tie for tie in searched.tie_breakers if tie.key not in ordered_keys)):
        column = _value(order, searched)
        query = query.order_by(directed(column, db.dialect, ascending=order.ascending))
    return db.execute(query.offset(search.offset).limit(search.limit + 1)).all()


def _holds(clause: Clause, searched: _Searched, dialect: Dialect) -> ColumnElement[bool]:
    if clause.kind == Kind.ATTRIBUTE:
        return compare(searched.columns[clause.key], clause.op, clause.value, dialect)
    table, joined = searched.pair_tables[clause.kind]
    rows = select(table.c.key).where(joined, table.c.key == clause.key)
    if clause.value is None:
        return ~rows.exists() if clause.op == "IS NULL" else rows.exists()
    return rows.where(compare(table.c.value, clause.op, clause.value, dialect)).exists()


def _value(order: Order, searched: _Searched) -> ColumnElement[Any]:
    if order.kind == Kind.ATTRIBUTE:
        return searched.columns[order.key]
    table = logged_model_metrics
    number = case((table.c.nan == false(), table.c.value))
    latest = select(number).where(
        table.c.model_id == logged_models.c.id,
        table.c.key == order.key,
        *([_on_dataset(order.on)] if order.on else []),
    )
    newest = (table.c.logged_at.desc(), table.c.step.desc(), table.c.run_id)
    return latest.order_by(*newest).limit(1).scalar_subquery()


def _measured(on: Sequence[OnDataset], *holds: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a logged model has such a metric on one of the datasets."""
    rows = select(logged_model_metrics.c.key).where(
        logged_model_metrics.c.model_id == logged_models.c.id, *holds
    )
    if on:
        rows = rows.where(or_(*(_on_dataset(dataset) for dataset in on)))
    return rows.exists()


def _metric_holds(clause: Clause, dialect: Dialect) -> ColumnElement[bool]:
    table = logged_model_metrics
    holds = compare(table.c.value, clause.op, clause.value, dialect)
    return and_(table.c.key == clause.key, table.c.nan == false(), holds)


def _on_dataset(dataset: OnDataset) -> ColumnElement[bool]:
    has_name = logged_model_metrics.c.dataset_name == dataset.name
    if not dataset.digest:
        return has_name
    return and_(has_name, logged_model_metrics.c.dataset_digest == dataset.digest)


def _exclude_prompts(
    search: Search, tags: Table, name: ColumnElement[str]
) -> tuple[Search, list[ColumnElement[bool]]]:
    """Exclude MLflow's prompts, which are models with a tag, unless the search is for them."""
    on_prompts = [clause for clause in search.clauses if clause[:2] == (Kind.TAG, _PROMPT_TAG)]
    if on_prompts and (on_prompts[0].op, str(on_prompts[0].value).lower()) in (
        ("=", "true"),
        ("!=", "false"),
    ):
        return search, []
    others = tuple(clause for clause in search.clauses if clause not in on_prompts)
    prompts = select(tags.c.name).where(tags.c.key == _PROMPT_TAG, tags.c.value == "true")
    return replace(search, clauses=others), [name.not_in(prompts)]
