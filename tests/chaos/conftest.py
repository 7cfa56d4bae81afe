"""`--kills N` random rounds, from `--seed`; an arena that outlives a test that went well."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.chaos.arena import Arena

_KILLS = 10  # rounds of a plain `make test`
_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos")
    group.addoption("--kills", type=int, default=_KILLS, help="random rounds of tests/chaos")
    group.addoption("--seed", type=int, default=1, help="the first round's seed in tests/chaos")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first = int(metafunc.config.getoption("--seed", None) or 1)
        count = int(metafunc.config.getoption("--kills", None) or _KILLS)
        metafunc.parametrize("seed", range(first, first + count))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


class Arenas:
    """The one arena of this worker, replaced after a failure."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._present: Arena | None = None

    def get(self) -> Arena:
        if self._present is None:
            self._present = Arena(self._factory.mktemp("arena"))
            self._present.start()
        return self._present

    def drop(self) -> None:
        if self._present is not None:
            self._present.close()
            self._present = None


@pytest.fixture(scope="session")
def arenas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    made = Arenas(tmp_path_factory)
    yield made
    made.drop()


@pytest.fixture
def arena(arenas: Arenas, request: pytest.FixtureRequest) -> Iterator[Arena]:
    """A home with a running server, shared by tests as long as they leave it well."""
    arena = arenas.get()
    yield arena
    if request.node.stash.get(_failed, False) or not arena.is_up:
        arenas.drop()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Arena]:
    """A home of this test's own, with no server yet."""
    arena = Arena(tmp_path / "arena")
    yield arena
    arena.close()
