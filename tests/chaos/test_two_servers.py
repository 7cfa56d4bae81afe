"""Two servers of one PostgreSQL are killed and paused at random moments."""

import random
import time
from collections.abc import Iterator

import pytest

from retarget.core.leases import LEASE_SECONDS
from tests.store.conftest import Cluster
from tests.testbeds.two_servers import Servers, eventually, running_servers

pytestmark = pytest.mark.chaos

_IDS = ("main", "b")
_JOBS = 12  # of a round: 25 rounds of `make everything` have 300
_ROUNDS_PER_KILL = 1 / 8


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" in metafunc.fixturenames:
        first = int(metafunc.config.option.seed)
        kills = int(metafunc.config.getoption("--kills", None) or 0)
        count = max(1, round(kills * _ROUNDS_PER_KILL))
        metafunc.parametrize("round_seed", range(first, first + count))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Servers]:
    name = cluster.create()
    with running_servers(tmp_path_factory.mktemp("servers"), cluster.url(name)) as servers:
        yield servers
    cluster.drop(name)


def test_each_job_ends_once_whichever_server_dies(round_seed: int, servers: Servers) -> None:
    rng = random.Random(round_seed)
    for server_id in set(_IDS) - set(servers.ids()):
        servers.start(server_id)
    jobs = [_submit(servers, rng) for _ in range(_JOBS // 2)]
    time.sleep(rng.uniform(0, 1.5))
    seconds = _disturb(servers, rng)
    jobs += [_submit(servers, rng) for _ in range(_JOBS - len(jobs))]
    time.sleep(rng.uniform(0, 1.5))
    _disturb(servers, rng)
    api = servers.api(servers.ids()[0])
    for job, lines in jobs:
        api.wait(job, timeout=300)
        servers.check_ended_once(api, {"id": job}, lines)
    api.cleared()
    print(f"round {round_seed}: taken over after {seconds:.1f} s")


def _submit(servers: Servers, rng: random.Random) -> tuple[str, int]:
    lines = rng.choice([1, 5, 40])
    job = servers.submit(rng.choice(servers.ids()), lines=lines, cpus=0.1)
    return str(job["id"]), lines


def _disturb(servers: Servers, rng: random.Random) -> float:
    """Kill or pause a server for longer than its lease. Return when the other one took over."""
    victim, is_paused = rng.choice(_IDS), rng.random() < 0.5
    if is_paused:
        servers.pause(victim)
    else:
        servers.kill(victim)
    other = next(server_id for server_id in _IDS if server_id != victim)
    if rng.random() < 0.3:  # it comes back before anybody notices
        seconds = 0.0
        time.sleep(rng.uniform(0, LEASE_SECONDS))
    else:
        seconds = eventually(lambda: servers.holder() == other)
    if is_paused:
        servers.resume(victim)
    else:
        servers.start(victim)
    return seconds
