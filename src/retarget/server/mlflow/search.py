"""MLflow's API: searches."""

from collections.abc import Sequence
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.filters import (
    OnDataset,
    Order,
    Search,
    check_orders,
    experiment_id,
    parse_filter,
    parse_orders,
)
from retarget.core.grammars import (
    EXPERIMENTS,
    LOGGED_MODELS,
    MODELS,
    RUNS,
    VERSIONS,
    Grammar,
    Kind,
)
from retarget.core.pages import read_offset, read_token, write_token
from retarget.core.tracking import ACTIVE, DELETED
from retarget.server.mlflow.app import RouteTable
from retarget.server.mlflow.logged_models import show_logged_model
from retarget.server.mlflow.registry import show_model, show_version
from retarget.server.mlflow.request import MlflowRequest, missing, wrong_type
from retarget.server.mlflow.show import show_experiment, show_run
from retarget.store.run_search import Scope

_MAX_RESULTS = 50_000
_MAX_MODELS = 1_000
_MAX_VERSIONS = 200_000
_MAX_EXPERIMENTS = 20  # of a search for datasets
_MAX_DATASETS = 100  # of a search for logged models
_LOAD_BATCH_RUNS = 1_000

_VIEWS = {
    "ACTIVE_ONLY": [ACTIVE],
    "DELETED_ONLY": [DELETED],
    "ALL": [ACTIVE, DELETED],
}
_VIEWS_BY_NUMBER = {str(number): stages for number, stages in enumerate(_VIEWS.values(), start=1)}
# The fields that a page token of logged models shares with the search, and MLflow's messages.
_TOKEN_FIELDS = {
    "experiment_ids": ("Experiment IDs", "do not match the requested experiment IDs"),
    "filter_string": ("Filter string", "does not match the requested filter string"),
    "order_by": ("Order by", "does not match the requested order by"),
}


def runs(request: MlflowRequest) -> dict[str, Any]:
    request.forget_experiment()
    search = _search(request, RUNS, _limit(request, 1_000, maximum=_MAX_RESULTS))
    scope = Scope(_experiment_ids(request), _stages(request, "run_view_type"))
    ids = request.context.store.searches.runs(search, scope)
    token, ids = _next_token(ids, search), ids[: search.limit]
    starts = range(0, len(ids), _LOAD_BATCH_RUNS)
    batches = [ids[start : start + _LOAD_BATCH_RUNS] for start in starts]
    loaded = [run for batch in batches for run in request.context.store.runs.load(batch)]
    return _page("runs", [show_run(run) for run in loaded], token)


def experiments(request: MlflowRequest) -> dict[str, Any]:
    limit = _limit(request, 0)
    if limit > _MAX_RESULTS:
        raise Invalid(f"{_supplied(limit)} It must be at most {_MAX_RESULTS}", field="max_results")
    search = _search(request, EXPERIMENTS, limit)
    ids = request.context.store.searches.experiments(search, _stages(request, "view_type"))
    loaded = request.context.store.experiments.load(ids[: search.limit])
    rows = [show_experiment(experiment) for experiment in loaded]
    return _page("experiments", rows, _next_token(ids, search))


def models(request: MlflowRequest) -> dict[str, Any]:
    search = _search(request, MODELS, _limit(request, 100, maximum=_MAX_MODELS))
    names = request.context.store.searches.models(search)
    loaded = request.context.store.models.load(names[: search.limit])
    rows = [show_model(model) for model in loaded]
    return _page("registered_models", rows, _next_token(names, search))


def versions(request: MlflowRequest) -> dict[str, Any]:
    search = _search(request, VERSIONS, _limit(request, _MAX_VERSIONS, maximum=_MAX_VERSIONS))
    pairs = request.context.store.searches.versions(search)
    loaded = request.context.store.models.load_versions(pairs[: search.limit])
    rows = [show_version(version) for version in loaded]
    return _page("model_versions", rows, _next_token(pairs, search))


def logged_models(request: MlflowRequest) -> dict[str, Any]:
    ids = request.strings("experiment_ids")
    if not ids:
        raise missing("experiment_ids")
    orders = [_read_order(row) for row in request.rows("order_by")]
    check_orders(len(orders))
    query = {
        "experiment_ids": ids,
        "filter_string": request.string("filter") or None,
        "order_by": orders or None,
    }
    search = Search(
        parse_filter(request.string("filter"), LOGGED_MODELS),
        tuple(_logged_order(order) for order in orders),
        _limit(request, 50, maximum=_MAX_RESULTS) if request.body.get("max_results") else 50,
        _page_offset(request.string("page_token"), query),
    )
    experiment_ids = [experiment_id(value) for value in ids]
    model_ids = request.context.store.searches.logged_models(
        search, experiment_ids, _datasets(request)
    )
    models = request.context.store.logged_models.load(model_ids[: search.limit])
    more = len(model_ids) > search.limit
    token = write_token(query | {"offset": search.offset + search.limit}) if more else None
    return _page("models", [show_logged_model(model) for model in models], token)


def datasets(request: MlflowRequest) -> dict[str, Any]:
    ids = request.strings("experiment_ids")
    if not ids:
        raise Invalid("SearchDatasets request must specify at least one experiment_id.")
    if len(ids) > _MAX_EXPERIMENTS:
        raise Invalid(
            f"SearchDatasets request cannot specify more than {_MAX_EXPERIMENTS} experiment_ids. "
            f"Received {len(ids)} experiment_ids."
        )
    uses = [
        use._asdict() for use in request.context.store.searches.datasets(_experiment_ids(request))
    ]
    rows = [{name: value for name, value in use.items() if value is not None} for use in uses]
    return _page("dataset_summaries", rows, None)


def _search(request: MlflowRequest, grammar: Grammar, limit: int) -> Search:
    return Search(
        parse_filter(request.string("filter"), grammar),
        parse_orders(request.strings("order_by"), grammar),
        limit,
        read_offset(request.string("page_token")),
    )


def _limit(request: MlflowRequest, default: int, *, maximum: int | None = None) -> int:
    limit = request.integer("max_results", default) or 0
    if maximum is not None and limit > maximum:
        raise wrong_type("max_results", request.body["max_results"])
    if limit < 1:
        raise Invalid(f"{_supplied(limit)} It must be a positive integer", field="max_results")
    return limit


def _supplied(limit: int) -> str:
    return f"Invalid value {limit} for parameter 'max_results' supplied."


def _stages(request: MlflowRequest, name: str) -> list[str]:
    view = request.body.get(name, "ACTIVE_ONLY")
    if not isinstance(view, str | int):
        raise wrong_type(name, view)
    stages = _VIEWS.get(view) if isinstance(view, str) else None
    stages = stages or _VIEWS_BY_NUMBER.get(str(view))
    if stages is None:
        raise wrong_type(name, view)
    return stages


def _experiment_ids(request: MlflowRequest) -> list[int]:
    return [experiment_id(value) for value in request.strings("experiment_ids")]


def _next_token(results: Sequence[Any], search: Search) -> str | None:
    if len(results) <= search.limit:
        return None
    return write_token({"offset": search.offset + search.limit})


def _page(name: str, rows: list[dict[str, Any]], token: str | None) -> dict[str, Any]:
    page: dict[str, Any] = {name: rows} if rows else {}
    return page | ({"next_page_token": token} if token else {})


def _read_order(row: dict[str, Any]) -> dict[str, Any]:
    """Return an order of a search for logged models, as its page token holds it."""
    name, ascending = row.get("field_name"), row.get("ascending", True)
    dataset = [row.get("dataset_name") or None, row.get("dataset_digest") or None]
    if not isinstance(name, str) or not isinstance(ascending, bool):
        raise wrong_type("order_by", row)
    if not all(value is None or isinstance(value, str) for value in dataset):
        raise wrong_type("order_by", row)
    keys = ("field_name", "ascending", "dataset_name", "dataset_digest")
    return dict(zip(keys, (name, ascending, *dataset), strict=True))


def _logged_order(row: dict[str, Any]) -> Order:
    name, ascending = row["field_name"], row["ascending"]
    kind, dot, key = name.partition(".")
    if dot and kind != "metrics":
        raise Invalid(f"Invalid order by field name: {name}. Only metrics are supported.")
    if dot:
        dataset = row["dataset_name"]
        on = OnDataset(dataset, row["dataset_digest"] or "") if dataset else None
        return Order(Kind.METRIC, key, ascending, on)
    key = LOGGED_MODELS.aliases.get(name, name)
    if key not in LOGGED_MODELS.order_attributes:
        raise Invalid(f"Invalid order by field name: {name}")
    return Order(Kind.ATTRIBUTE, key, ascending)


def _datasets(request: MlflowRequest) -> list[OnDataset]:
    datasets: list[OnDataset] = []
    rows = request.rows("datasets")
    if len(rows) > _MAX_DATASETS:
        raise Invalid(
            f"`datasets` has {len(rows)} items; at most {_MAX_DATASETS} are allowed",
            field="datasets",
        )
    for row in rows:
        name, digest = row.get("dataset_name"), row.get("dataset_digest") or ""
        if not name:
            raise Invalid("`dataset_name` in the `datasets` clause must be specified.")
        if not isinstance(name, str) or not isinstance(digest, str):
            raise wrong_type("datasets", row)
        datasets.append(OnDataset(name, digest))
    return datasets


def _page_offset(token: str, query: dict[str, Any]) -> int:
    """Return the offset of a page of logged models. The token must be of the same search."""
    if not token:
        return 0
    parsed = read_token(token)
    for name, (label, mismatch) in _TOKEN_FIELDS.items():
        if (parsed.get(name) or None) != query[name]:
            raise Invalid(
                f"{label} in the page token {mismatch}. "
                f"Expected: {query[name]}. Found: {parsed.get(name)}"
            )
    return read_offset(token)


ROUTES: RouteTable = [
    ("POST", "/mlflow/runs/search", runs),
    ("GET", "/mlflow/experiments/search", experiments),
    ("POST", "/mlflow/experiments/search", experiments),
    ("POST", "/mlflow/experiments/search-datasets", datasets),
    ("GET", "/mlflow/registered-models/search", models),
    ("GET", "/mlflow/model-versions/search", versions),
    ("POST", "/mlflow/logged-models/search", logged_models),
]
