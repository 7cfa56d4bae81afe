"""Marks the longer tests, which `make long` and CI run and `make test` does not."""

import pytest

_LONG = (
    "tests/docs/test_examples.py",
    "tests/examples/",
    "tests/fuzz/",
    "tests/meta/",
    "tests/mlflow/test_clients.py",
    "tests/mlflow/test_search_like_mlflow.py",
    "tests/cli/test_interrupt.py",
    "tests/cli/test_notebooks.py",
    "tests/runner/test_impostors.py",
    "tests/runner/test_layers.py",
    "tests/server/test_gate.py",
    "tests/soak/",
    "tests/store/test_job_search.py",
    "tests/store/test_track_files.py",
    "tests/testbeds/",
    "tests/trouble/",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_LONG):
            item.add_marker("long")
