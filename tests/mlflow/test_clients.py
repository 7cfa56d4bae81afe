"""MLflow's clients, new and a year old, see no difference between MLflow's server and ours."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.mlflow.conftest import Client
from tests.server.conftest import Api

pytestmark = pytest.mark.timeout(600)  # whoever comes first starts MLflow's server

# What differs on purpose: docs/mlflow-compatibility.md says why.
DECIDED = {
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
    theirs, ours = client(name).compare("skinny_check.py", our_server, mlflow_server)
    found = dict(differences(theirs, ours))
    assert not {place: both for place, both in found.items() if place not in DECIDED}
    assert found.keys() == DECIDED


@pytest.mark.parametrize("name", ["mlflow-new", "mlflow-old"])
def test_autologging_models_and_files_come_out_the_same(
    client: Callable[[str], Client], our_server: Api, mlflow_server: str, name: str
) -> None:
    theirs, ours = client(name).compare("client_check.py", our_server, mlflow_server)
    assert not dict(differences(theirs, ours))


def differences(theirs: Any, ours: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Tell, value by value, where ours is not what theirs is."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        if ours != theirs:
            yield place, f"MLflow says {theirs!r}, we say {ours!r}"
        return
    both: list[dict[str, Any]] = [theirs, ours]
    for key in sorted({*both[0], *both[1]}):
        yield from differences(both[0].get(key), both[1].get(key), f"{place}/{key}")
