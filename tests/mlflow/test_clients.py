"""MLflow's clients, new and a year old, get the same from MLflow's server and from Retarget's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.mlflow.conftest import CLIENT_SECONDS, Client
from tests.server.conftest import Api

pytestmark = pytest.mark.timeout(CLIENT_SECONDS + 300)  # the first test starts MLflow's server

# Intended differences. docs/mlflow-compatibility.md has the reasons.
INTENDED = {
    "/artifacts/size of nothing",
    "/metrics/histories/down",
    "/metrics/histories/up",
    "/metrics/latest/down",
    "/metrics/latest/up",
    "/registry/aliases found",
    "/wrong_searches/'a' = 'b'/message",
    "/wrong_searches/metrics.acc > 1 OR metrics.acc < 0/message",
}


@pytest.mark.parametrize("name", ["skinny-new", "skinny-old"])
def test_the_light_client_gets_the_same_answers_and_the_same_errors(
    client: Callable[[str], Client], our_server: Api, mlflow_server: str, name: str
) -> None:
    mlflow_results, retarget_results = client(name).compare(
        "skinny_check.py", our_server, mlflow_server
    )
    mismatches = dict(differences(mlflow_results, retarget_results))
    assert not {path: values for path, values in mismatches.items() if path not in INTENDED}
    assert mismatches.keys() == INTENDED


@pytest.mark.parametrize("name", ["mlflow-new", "mlflow-old"])
def test_autologging_models_and_files_come_out_the_same(
    client: Callable[[str], Client], our_server: Api, mlflow_server: str, name: str
) -> None:
    mlflow_results, retarget_results = client(name).compare(
        "client_check.py", our_server, mlflow_server
    )
    assert not dict(differences(mlflow_results, retarget_results))


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and a message for each value that differs."""
    if not isinstance(expected, dict) or not isinstance(actual, dict):
        if actual != expected:
            yield path, f"MLflow: {expected!r}, Retarget: {actual!r}"
        return
    pair: list[dict[str, Any]] = [expected, actual]
    for key in sorted({*pair[0], *pair[1]}):
        yield from differences(pair[0].get(key), pair[1].get(key), f"{path}/{key}")
