"""Marks the tests that only `make everything` runs: they take long, or repeat what others show."""

from collections.abc import Collection
from zlib import crc32

import pytest

from tests.postgresql import postgresql_programs

# files and tests that take long, and of which the quick ones say enough about a change
_LONG = (
    "tests/chaos/test_hosts.py::test_a_link_that_is_declared_dead_recovers",
    "tests/chaos/test_hosts.py::test_launching[reboot]",
    "tests/chaos/test_pools.py::test_a_job_for_an_unreachable_host_waits_for_it",
    "tests/chaos/test_pools.py::test_a_job_placed_on_an_unreachable_host_gets_another",
    "tests/chaos/test_pools.py::test_the_job_of_a_silent_host_never_runs_twice_at_once",
    "tests/cli/test_config.py::test_a_home_does_not_start_on_an_empty_database_by_mistake",
    "tests/cli/test_config.py::test_a_home_may_leave_its_own_database",
    "tests/cli/test_interrupt.py",
    "tests/cli/test_job_logs.py::test_each_line_has_the_time_when_it_was_written",
    "tests/cli/test_job_logs.py::test_times_are_true_although_the_server_was_away",
    "tests/cli/test_looks.py",
    "tests/cli/test_notebooks.py",
    "tests/cli/test_run.py::test_a_closed_pipe_is_silent",
    "tests/cli/test_run.py::test_following_survives_a_killed_server",
    "tests/cli/test_run.py::test_following_survives_a_stopped_server",
    "tests/cli/test_server.py::test_a_server_of_another_version_is_reported",
    "tests/cli/test_server.py::test_a_server_on_all_interfaces_warns_once_in_each_place",
    "tests/cli/test_server.py::test_start_takes_an_address_and_a_port",
    "tests/cli/test_tracking.py::test_logged_control_characters_do_not_reach_the_terminal",
    "tests/cli/test_tracking.py::test_metrics_are_drawn_within_the_screen",
    "tests/docs/test_examples.py",
    "tests/examples/",
    "tests/fuzz/",
    "tests/meta/test_pytest_plugins.py::test_durations_are_written_per_folder_and_per_test",
    "tests/meta/test_setup.py",
    "tests/mlflow/test_clients.py",
    "tests/mlflow/test_search_like_mlflow.py",
    "tests/runner/test_relay.py::test_the_token_never_reaches_an_impostor",
    "tests/runner/test_executions.py::test_there_is_a_limit_of_commands_at_once",
    "tests/runner/test_impostors.py",
    "tests/runner/test_layers.py",
    "tests/sdk/test_client.py::test_many_jobs_are_sent_and_waited_for_together",
    "tests/sdk/test_client.py::test_ranks_are_followed_concurrently",
    "tests/sdk/test_exclusions.py::test_a_huge_folder_costs_a_submit_almost_nothing",
    "tests/server/test_events.py::test_streams_and_waits_cost_nothing_while_nothing_happens",
    "tests/server/test_executions.py::test_a_client_that_is_killed_hangs_up",
    "tests/server/test_executions.py::test_commands_end_when_the_script_ends",
    "tests/server/test_executions.py::test_many_commands_run_at_once",
    "tests/server/test_gate.py",
    "tests/server/test_two_servers.py",
    "tests/soak/",
    "tests/store/test_event_relay.py::test_a_connection_that_broke_is_restored_with_a_reset",
    "tests/store/test_event_relay.py::test_two_real_servers_exchange_events",
    "tests/store/test_event_relay.py::test_a_quiet_relay_does_nothing",
    "tests/store/test_job_search.py",
    "tests/store/test_outage.py",
    "tests/store/test_served_database.py",
    "tests/store/test_track_files.py",
    "tests/targets/test_executions.py::test_a_command_runs_beside_the_script[podman-box]",
    "tests/targets/test_executions.py::test_a_cut_link_ends_the_command_and_not_the_job",
    "tests/testbeds/",
    "tests/trouble/",
)
_EQUIVALENTS = {"Podman": "Docker", "podman": "docker", "skinny-old": "skinny-new"}
_STORE = "tests/store/"
_LOCAL = "tests/drivers/test_local.py::TestLocal"
_REMOTE = ("tests/drivers/test_ssh.py::TestSsh", "tests/drivers/test_container.py::TestDocker")
_STAGES = tuple(
    f"tests/chaos/test_stages.py::test_{stage}"
    for stage in (
        *("queued", "launching", "preparing", "running", "running_with_a_retry_left"),
        "finalizing",
    )
)
# A test kills one of these sets and not the other. The three pairs alternate over the stages, so
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
    marked = select_for_everything(
        [item.nodeid for item in items], has_postgresql=postgresql_programs() is not None
    )
    for item in items:
        if item.nodeid in marked:
            item.add_marker("everything")


def select_for_everything(tests: Collection[str], *, has_postgresql: bool = True) -> set[str]:
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
            self._repeats_an_equivalent,
            self._repeats_a_clause,
            self._repeats_a_stage,
            self._repeats_a_store,
        )
        return {test for test in self._tests if any(check(test) for check in checks)}

    def _repeats_an_equivalent(self, test: str) -> bool:
        equivalent = test
        for name, usual in _EQUIVALENTS.items():
            equivalent = equivalent.replace(name, usual)
        return equivalent != test and equivalent in self._tests

    def _repeats_a_clause(self, test: str) -> bool:
        """Each clause of the contract runs locally, a third also on hosts, a third in Docker."""
        place, _, clause = test.rpartition("::")
        if place not in _REMOTE or f"{_LOCAL}::{clause}" not in self._tests:
            return False
        third = crc32(clause.encode()) % 3
        return place not in _REMOTE[third : third + 1]

    def _repeats_a_stage(self, test: str) -> bool:
        stage, _, parts = test.partition("[")
        if stage not in _STAGES:
            return False
        return parts.rstrip("]") not in _PAIRWISE[_STAGES.index(stage) % len(_PAIRWISE)]

    def _repeats_a_store(self, test: str) -> bool:
        """Each test of the store runs on SQLite or on PostgreSQL."""
        name, _, parameters = test.partition("[")
        uses_postgresql = self._has_postgresql and _in_the_other_half(name)
        database, other = ("sqlite", "postgresql")[:: -1 if uses_postgresql else 1]
        if not test.startswith(_STORE) or other not in parameters:
            return False
        return test.replace(other, database) in self._tests


def _in_the_other_half(name: str) -> bool:
    return crc32(name.encode()) % 2 == 0
