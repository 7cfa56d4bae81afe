"""Marks the tests that only `make everything` runs: they take long, or repeat what others show."""

from collections.abc import Collection
from zlib import crc32

import pytest

from tests.postgresql import postgresql_programs

# files and tests that take long, and of which the quick ones say enough about a change
_LONG = (
    "tests/chaos/test_hosts.py::test_a_link_that_is_declared_dead_recovers",
    "tests/chaos/test_pools.py::test_a_job_for_an_unreachable_host_waits_for_it",
    "tests/chaos/test_pools.py::test_a_job_placed_on_an_unreachable_host_gets_another",
    "tests/chaos/test_pools.py::test_the_job_of_a_silent_host_never_runs_twice_at_once",
    "tests/cli/test_interrupt.py",
    "tests/cli/test_job_logs.py::test_times_are_true_although_the_server_was_away",
    "tests/cli/test_notebooks.py",
    "tests/docs/test_examples.py",
    "tests/examples/",
    "tests/fuzz/",
    "tests/meta/test_pytest_plugins.py::test_durations_are_written_per_folder_and_per_test",
    "tests/meta/test_setup.py",
    "tests/mlflow/test_clients.py",
    "tests/mlflow/test_search_like_mlflow.py",
    "tests/runner/test_executions.py::test_there_is_a_limit_of_commands_at_once",
    "tests/runner/test_impostors.py",
    "tests/runner/test_layers.py",
    "tests/server/test_events.py::test_streams_and_waits_cost_nothing_while_nothing_happens",
    "tests/server/test_executions.py::test_commands_end_when_the_script_ends",
    "tests/server/test_gate.py",
    "tests/server/test_two_servers.py",
    "tests/soak/",
    "tests/store/test_job_search.py",
    "tests/store/test_track_files.py",
    "tests/testbeds/",
    "tests/trouble/",
)
_STORE = "tests/store/"
_STAGES = tuple(
    f"tests/chaos/test_stages.py::test_{stage}"
    for stage in (
        *("queued", "launching", "preparing", "running", "running_with_a_retry_left"),
        "finalizing",
    )
)
# A test kills one of these sets and spares the other. The three pairs alternate over the stages, so
# that every two components occur in each combination, and each one killed and alive at every stage.
_PAIRWISE = (
    ("server", "runner+script"),
    ("runner", "server+script"),
    ("script", "server+runner"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("random choices")
    group.addoption("--seed", type=int, default=1, help="the first seed of random rounds")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = left_to_everything(
        [item.nodeid for item in items], has_postgresql=postgresql_programs() is not None
    )
    for item in items:
        if item.nodeid in marked:
            item.add_marker("everything")


def left_to_everything(tests: Collection[str], *, has_postgresql: bool = True) -> set[str]:
    """Return which of these tests only `make everything` runs. All workers decide alike."""
    repetitions = _Repetitions(tests, has_postgresql=has_postgresql)
    return {test for test in tests if test.startswith(_LONG)} | repetitions.find()


class _Repetitions:
    """Tests of the same on other engines, hosts, stages or databases than always run."""

    def __init__(self, tests: Collection[str], *, has_postgresql: bool) -> None:
        self._tests = frozenset(tests)
        self._has_postgresql = has_postgresql

    def find(self) -> set[str]:
        checks = (
            self._repeats_docker,
            self._repeats_a_clause,
            self._repeats_a_stage,
            self._repeats_a_store,
        )
        return {test for test in self._tests if any(check(test) for check in checks)}

    def _repeats_docker(self, test: str) -> bool:
        twin = test.replace("Podman", "Docker").replace("podman", "docker")
        return twin != test and twin in self._tests

    def _repeats_a_clause(self, test: str) -> bool:
        """Each clause of the contract runs on hosts or in containers, and all of them locally."""
        docker, ssh = "test_container.py::TestDocker::", "test_ssh.py::TestSsh::"
        clause = test.rpartition("::")[2]
        if docker in test:
            return _in_the_other_half(clause) and test.replace(docker, ssh) in self._tests
        return (
            ssh in test
            and not _in_the_other_half(clause)
            and test.replace(ssh, docker) in self._tests
        )

    def _repeats_a_stage(self, test: str) -> bool:
        stage, _, parts = test.partition("[")
        if stage not in _STAGES:
            return False
        return parts.rstrip("]") not in _PAIRWISE[_STAGES.index(stage) % len(_PAIRWISE)]

    def _repeats_a_store(self, test: str) -> bool:
        """Each test of the store runs on SQLite or on PostgreSQL."""
        name, _, parameters = test.partition("[")
        uses_postgresql = self._has_postgresql and _in_the_other_half(name)
        kept, spared = ("sqlite", "postgresql")[:: -1 if uses_postgresql else 1]
        if not test.startswith(_STORE) or spared not in parameters:
            return False
        return test.replace(spared, kept) in self._tests


def _in_the_other_half(name: str) -> bool:
    return crc32(name.encode()) % 2 == 0
