"""What drivers keep open: one owner of each class, until the server stops."""

import os
from contextlib import closing

import pytest

from retarget.core.errors import TargetUnreachable
from retarget.core.links import Links

CLOSED: list[str] = []


class Engines:
    def __init__(self, links: Links) -> None:
        pass

    def close(self) -> None:
        CLOSED.append("engines")


class Agents:
    def __init__(self, links: Links) -> None:
        self.engines = links.get(Engines)

    def close(self) -> None:
        CLOSED.append("agents")


def test_all_drivers_share_one_owner_of_each_class() -> None:
    links = Links()
    assert links.get(Agents) is links.get(Agents)
    assert links.get(Agents).engines is links.get(Engines)
    assert Links().get(Engines) is not links.get(Engines)


def test_an_owner_is_closed_before_those_that_it_uses() -> None:
    CLOSED.clear()
    with closing(Links()) as links:
        links.get(Agents)
    assert CLOSED == ["agents", "engines"]


def test_nothing_is_opened_after_the_end() -> None:
    links = Links()
    links.close()
    with pytest.raises(TargetUnreachable, match="the server is stopping"):
        links.get(Engines)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork with threads
def test_a_forked_process_has_owners_of_its_own() -> None:
    links = Links()
    engines = links.get(Engines)
    child = os.fork()
    if child == 0:
        os._exit(links.get(Engines) is engines)
    assert os.waitpid(child, 0)[1] == 0
