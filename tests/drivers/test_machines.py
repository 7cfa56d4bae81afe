"""Which drivers share a link to a machine: none is reached as another user, or by another key."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from retarget.drivers import _machines
from retarget.drivers._machines import Reached, let_go, reach
from retarget.drivers._ssh import Login, Place

LOGIN = Login(None, None, "key", None, None, None, None, 30.0)
PLACE = Place("far", "ml", None)
KEY, OTHER = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    let_go([each for known in _machines._reached.values() for each in known])  # pyright: ignore[reportPrivateUsage]


def reached(place: Place = PLACE, login: Login = LOGIN, pins: Mapping[str, str] = {}) -> Reached:
    return reach(place, login, root="~/x", pins=pins)


def test_the_same_way_is_shared() -> None:
    assert reached() is reached()
    assert reached(pins={"far": KEY}) is reached(pins={"far": KEY})


@pytest.mark.parametrize(
    ("place", "login"),
    [
        (replace(PLACE, user="root"), LOGIN),
        (replace(PLACE, port=2222), LOGIN),
        (PLACE, replace(LOGIN, user="root")),
        (PLACE, replace(LOGIN, key="another")),
        (PLACE, replace(LOGIN, jump="gate")),
    ],
)
def test_another_way_is_not(place: Place, login: Login) -> None:
    assert reached() is not reached(place, login)


def test_what_was_met_is_taken_over_by_its_key() -> None:
    first = reached()
    first[1].met["far"] = KEY
    assert reached(pins={"far": KEY}) is first
    assert reached(pins={"far": OTHER}) is not first
    assert reached() is not first  # whoever wants to meet it anew does


def test_nobody_is_taken_over_who_was_not_met_yet() -> None:
    assert reached() is not reached(pins={"far": KEY})


def test_a_key_that_is_met_again_needs_no_second_link() -> None:
    pinned, fresh = reached(pins={"far": KEY}), reached()
    fresh[1].met["far"] = KEY
    assert reached(pins={"far": KEY}) is pinned
    assert reached() is not fresh


def test_another_key_of_a_host_on_the_way_is_another_way() -> None:
    pins = {"far": KEY, "gate": KEY}
    before, fresh = reached(pins=pins), reached()
    fresh[1].met.update(far=KEY, gate=OTHER)
    assert reached(pins=pins | {"gate": OTHER}) is fresh
    assert reached(pins=pins) is before
    assert before[1].pins == pins


def test_a_pool_that_meets_another_host_keeps_its_links() -> None:
    first = reached(pins={"far": KEY})
    assert reached(pins={"far": KEY, "near": OTHER}) is first
    assert reached(pins={"far": KEY, "near": KEY}) is not first
