"""Every route of MLflow's API with fields that are valid, nearly valid and invalid."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget.server.mlflow
from retarget.server.mlflow import ROUTE_TABLES
from retarget.server.mlflow.app import PREFIXES
from tests.fuzz.mutated import noise
from tests.server.conftest import Api, serving

_SOURCES = Path(retarget.server.mlflow.__file__).parent.glob("*.py")
_READ = re.compile(r'\b(?:request\.\w+|get|rows|pairs|flag)\("(\w+)"')
_FIELDS = sorted({name for path in _SOURCES for name in _READ.findall(path.read_text())})
_ARTIFACTS_PATH = "/mlflow-artifacts/artifacts"
_ROWS = [
    *((method, address) for table in ROUTE_TABLES for method, address, _ in table),
    *((method, f"{_ARTIFACTS_PATH}/{{path:path}}") for method in ("GET", "PUT", "DELETE")),
    ("GET", _ARTIFACTS_PATH),
]
_RUN, _MODEL = "a" * 32, "a-model"
# A route ignores the fields of the others, so one body is valid for nearly all.
_RIGHT: dict[str, Any] = {
    **{"run_id": _RUN, "run_uuid": _RUN, "experiment_id": "0", "experiment_ids": ["0"]},
    **{"name": _MODEL, "version": "1", "alias": "best", "stage": "Staging", "new_name": "b"},
    **{"source": f"models:/{_MODEL}/1", "run_ids": [_RUN], "metric_key": "loss", "path": "a"},
    **{"key": "loss", "value": "1", "timestamp": 1, "step": 0, "max_results": 5, "num_parts": 1},
    **{"filter": "name LIKE 'a%'", "order_by": ["name ASC"], "status": "FINISHED", "end_time": 9},
    "metrics": [{"key": "loss", "value": 1.0, "timestamp": 1, "step": 0}],
    "params": [{"key": "lr", "value": "0.1"}],
    "tags": [{"key": "a", "value": "b"}],
    "datasets": [{"dataset": {"name": "d", "digest": "1", "source_type": "s", "source": "x"}}],
    "model_json": json.dumps({"run_id": _RUN, "artifact_path": "m", "utc_time_created": "now"}),
}

_TEXTS = st.one_of(
    st.sampled_from([_RUN, _MODEL, "0", "1", "loss", "FINISHED", "ACTIVE_ONLY", "best", ""]),
    st.sampled_from(["runs:/a/b", f"models:/{_MODEL}/1", "metrics.loss > 1", "name ASC", "a/b"]),
    st.text(max_size=6),
)
_SCALARS = st.one_of(
    _TEXTS, _TEXTS, st.none(), st.booleans(), st.integers(), st.floats(), st.just(2**63)
)
_NAMES = st.sampled_from([*_FIELDS, "key", "value", "step", "timestamp", "name"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=4)
    ),
    max_leaves=8,
)
_WRONG = st.dictionaries(_NAMES, _VALUES, max_size=3)
_OMITTED = st.sets(st.sampled_from(sorted(_RIGHT)), max_size=2)


def _nearly_right(wrong: dict[str, Any], omitted: set[str]) -> dict[str, Any]:
    return {name: value for name, value in _RIGHT.items() if name not in omitted} | wrong


_BODIES = st.one_of(st.builds(_nearly_right, _WRONG, _OMITTED), _WRONG)
_BYTES = noise(json.dumps({"run_id": _RUN, "metrics": [{"key": "a", "value": 1}]}).encode())


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with a run and a model that the cases can use."""
    with serving(tmp_path_factory.mktemp("home")) as api:
        prefix = "/api/2.0/mlflow"
        api.ask("POST", f"{prefix}/runs/create", {"experiment_id": "0", "run_id": _RUN})
        api.ask("POST", f"{prefix}/registered-models/create", {"name": _MODEL})
        yield api


@given(
    row=st.sampled_from(_ROWS),
    prefix=st.sampled_from(PREFIXES),
    body=_BODIES,
    raw=st.one_of(st.none(), st.none(), st.none(), _BYTES),
    path_values=st.lists(_TEXTS, min_size=4, max_size=4),
)
def test_every_address_answers_or_refuses(
    api: Api,
    row: tuple[str, str],
    prefix: str,
    body: dict[str, Any],
    raw: bytes | None,
    path_values: list[str],
) -> None:
    method, address = row
    values = iter(path_values)
    path = prefix + re.sub(r"\{.*?\}", lambda _: _quoted(next(values)), address)
    content = raw if raw is not None else json.dumps(body).encode()
    if method == "GET":
        path, content = f"{path}?{urlencode(body, doseq=True, errors='replace')}", b""
    status, answer = _request(api, method, path, content)
    assert status < 500 or status == 501, answer
    if (
        status >= 400 and "%0A" not in path
    ):  # a path with a line break is not routed to MLflow's API
        assert {"error_code", "message"} <= json.loads(answer).keys()


def _request(api: Api, method: str, path: str, content: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(api.url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, body=content, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace") or "x"
