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
from retarget.server.mlflow.app import Table
from retarget.server.mlflow.ask import Ask, missing, wrong_type
from retarget.server.mlflow.logged_models import show_logged_model
from retarget.server.mlflow.registry import show_model, show_version
from retarget.server.mlflow.show import show_experiment, show_run
from retarget.store.run_search import Scope

_MOST = 50_000
_MOST_MODELS = 1_000
_MOST_VERSIONS = 200_000
_MOST_EXPERIMENTS = 20  # in a search for datasets
_MOST_ON = 100  # datasets that logged models were measured on
_PIECE = 1_000  # runs that are loaded at once

_VIEWS = {
    "ACTIVE_ONLY": [ACTIVE],
    "DELETED_ONLY": [DELETED],
    "ALL": [ACTIVE, DELETED],
}
_NUMBERED = {str(number): stages for number, stages in enumerate(_VIEWS.values(), start=1)}
# What the token of a page of logged models must have in common with the search.
_TOLD = {
    "experiment_ids": ("Experiment IDs", "do not match the requested experiment IDs"),
    "filter_string": ("Filter string", "does not match the requested filter string"),
    "order_by": ("Order by", "does not match the requested order by"),
}


def runs(ask: Ask) -> dict[str, Any]:
    ask.looks_around()
    search = _search(ask, RUNS, _size(ask, 1_000, most=_MOST))
    scope = Scope(_experiment_ids(ask), _stages(ask, "run_view_type"))
    ids = ask.parts.searches.runs(search, scope)
    token, ids = _next(ids, search), ids[: search.limit]
    pieces = [ids[at : at + _PIECE] for at in range(0, len(ids), _PIECE)]
    found = [run for piece in pieces for run in ask.parts.runs.load(piece)]
    return _page("runs", [show_run(run) for run in found], token)


def experiments(ask: Ask) -> dict[str, Any]:
    limit = _size(ask, 0)
    if limit > _MOST:
        raise Invalid(f"{_supplied(limit)} It must be at most {_MOST}", field="max_results")
    search = _search(ask, EXPERIMENTS, limit)
    ids = ask.parts.searches.experiments(search, _stages(ask, "view_type"))
    found = ask.parts.experiments.load(ids[: search.limit])
    return _page("experiments", [show_experiment(each) for each in found], _next(ids, search))


def models(ask: Ask) -> dict[str, Any]:
    search = _search(ask, MODELS, _size(ask, 100, most=_MOST_MODELS))
    names = ask.parts.searches.models(search)
    found = ask.parts.models.load(names[: search.limit])
    return _page("registered_models", [show_model(each) for each in found], _next(names, search))


def versions(ask: Ask) -> dict[str, Any]:
    search = _search(ask, VERSIONS, _size(ask, _MOST_VERSIONS, most=_MOST_VERSIONS))
    pairs = ask.parts.searches.versions(search)
    found = ask.parts.models.load_versions(pairs[: search.limit])
    return _page("model_versions", [show_version(each) for each in found], _next(pairs, search))


def logged_models(ask: Ask) -> dict[str, Any]:
    ids = ask.texts("experiment_ids")
    if not ids:
        raise missing("experiment_ids")
    rows = [_ordering(row) for row in ask.rows("order_by")]
    check_orders(len(rows))
    asked = {
        "experiment_ids": ids,
        "filter_string": ask.text("filter") or None,
        "order_by": rows or None,
    }
    search = Search(
        parse_filter(ask.text("filter"), LOGGED_MODELS),
        tuple(_logged_order(row) for row in rows),
        _size(ask, 50, most=_MOST) if ask.body.get("max_results") else 50,
        _begin(ask.text("page_token"), asked),
    )
    numbers = [experiment_id(each) for each in ids]
    found = ask.parts.searches.logged_models(search, numbers, _datasets(ask))
    models = ask.parts.logged_models.load(found[: search.limit])
    more = len(found) > search.limit
    token = write_token(asked | {"offset": search.offset + search.limit}) if more else None
    return _page("models", [show_logged_model(model) for model in models], token)


def datasets(ask: Ask) -> dict[str, Any]:
    ids = ask.texts("experiment_ids")
    if not ids:
        raise Invalid("SearchDatasets request must specify at least one experiment_id.")
    if len(ids) > _MOST_EXPERIMENTS:
        raise Invalid(
            f"SearchDatasets request cannot specify more than {_MOST_EXPERIMENTS} experiment_ids. "
            f"Received {len(ids)} experiment_ids."
        )
    uses = [use._asdict() for use in ask.parts.searches.datasets(_experiment_ids(ask))]
    shown = [{name: value for name, value in use.items() if value is not None} for use in uses]
    return _page("dataset_summaries", shown, None)


def _search(ask: Ask, grammar: Grammar, limit: int) -> Search:
    return Search(
        parse_filter(ask.text("filter"), grammar),
        parse_orders(ask.texts("order_by"), grammar),
        limit,
        read_offset(ask.text("page_token")),
    )


def _size(ask: Ask, default: int, *, most: int | None = None) -> int:
    limit = ask.whole("max_results", default) or 0
    if most is not None and limit > most:
        raise wrong_type("max_results", ask.body["max_results"])
    if limit < 1:
        raise Invalid(f"{_supplied(limit)} It must be a positive integer", field="max_results")
    return limit


def _supplied(limit: int) -> str:
    return f"Invalid value {limit} for parameter 'max_results' supplied."


def _stages(ask: Ask, name: str) -> list[str]:
    view = ask.body.get(name, "ACTIVE_ONLY")
    if not isinstance(view, str | int):
        raise wrong_type(name, view)
    stages = _VIEWS.get(view) if isinstance(view, str) else None
    stages = stages or _NUMBERED.get(str(view))
    if stages is None:
        raise wrong_type(name, view)
    return stages


def _experiment_ids(ask: Ask) -> list[int]:
    return [experiment_id(each) for each in ask.texts("experiment_ids")]


def _next(found: Sequence[Any], search: Search) -> str | None:
    if len(found) <= search.limit:
        return None
    return write_token({"offset": search.offset + search.limit})


def _page(name: str, shown: list[dict[str, Any]], token: str | None) -> dict[str, Any]:
    page: dict[str, Any] = {name: shown} if shown else {}
    return page | ({"next_page_token": token} if token else {})


def _ordering(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a search for logged models is ordered by, as its page token tells it."""
    name, ascending = row.get("field_name"), row.get("ascending", True)
    given = [row.get("dataset_name") or None, row.get("dataset_digest") or None]
    if not isinstance(name, str) or not isinstance(ascending, bool):
        raise wrong_type("order_by", row)
    if not all(each is None or isinstance(each, str) for each in given):
        raise wrong_type("order_by", row)
    keys = ("field_name", "ascending", "dataset_name", "dataset_digest")
    return dict(zip(keys, (name, ascending, *given), strict=True))


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
    if key not in LOGGED_MODELS.orders:
        raise Invalid(f"Invalid order by field name: {name}")
    return Order(Kind.ATTRIBUTE, key, ascending)


def _datasets(ask: Ask) -> list[OnDataset]:
    found: list[OnDataset] = []
    given = ask.rows("datasets")
    if len(given) > _MOST_ON:
        raise Invalid(f"`datasets` names {len(given)}; at most {_MOST_ON} can be", field="datasets")
    for row in given:
        name, digest = row.get("dataset_name"), row.get("dataset_digest") or ""
        if not name:
            raise Invalid("`dataset_name` in the `datasets` clause must be specified.")
        if not isinstance(name, str) or not isinstance(digest, str):
            raise wrong_type("datasets", row)
        found.append(OnDataset(name, digest))
    return found


def _begin(token: str, asked: dict[str, Any]) -> int:
    """Return where a page of logged models begins; its token must be of this very search."""
    if not token:
        return 0
    parsed = read_token(token)
    for name, (one, other) in _TOLD.items():
        if (parsed.get(name) or None) != asked[name]:
            raise Invalid(
                f"{one} in the page token {other}. "
                f"Expected: {asked[name]}. Found: {parsed.get(name)}"
            )
    return read_offset(token)


TABLE: Table = [
    ("POST", "/mlflow/runs/search", runs),
    ("GET", "/mlflow/experiments/search", experiments),
    ("POST", "/mlflow/experiments/search", experiments),
    ("POST", "/mlflow/experiments/search-datasets", datasets),
    ("GET", "/mlflow/registered-models/search", models),
    ("GET", "/mlflow/model-versions/search", versions),
    ("POST", "/mlflow/logged-models/search", logged_models),
]
