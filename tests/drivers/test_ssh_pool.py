"""Which drivers share a connection: never across users, keys or host keys."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from retarget.core.links import Links
from retarget.drivers._ssh_pool import PooledConnection, SshPool
from retarget.drivers._ssh_transport import HostAddress, Login

LOGIN = Login(None, None, "key", None, None, None, None, 30.0)
ADDRESS = HostAddress("far", "ml", None)
KEY, OTHER_KEY = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"


Acquire = Callable[..., PooledConnection]


@pytest.fixture
def acquire(links: Links) -> Acquire:
    def acquire(
        address: HostAddress = ADDRESS, login: Login = LOGIN, host_keys: Mapping[str, str] = {}
    ) -> PooledConnection:
        return links.get(SshPool).acquire(address, login, root="~/x", host_keys=host_keys)

    return acquire


def test_drivers_with_the_same_settings_share_a_connection(acquire: Acquire) -> None:
    assert acquire() is acquire()
    assert acquire(host_keys={"far": KEY}) is acquire(host_keys={"far": KEY})


@pytest.mark.parametrize(
    ("address", "login"),
    [
        (replace(ADDRESS, user="root"), LOGIN),
        (replace(ADDRESS, port=2222), LOGIN),
        (ADDRESS, replace(LOGIN, user="root")),
        (ADDRESS, replace(LOGIN, key="another")),
        (ADDRESS, replace(LOGIN, jump="gate")),
    ],
)
def test_drivers_with_other_settings_do_not(
    acquire: Acquire, address: HostAddress, login: Login
) -> None:
    assert acquire() is not acquire(address, login)


def test_a_seen_host_key_selects_the_connection(acquire: Acquire) -> None:
    first = acquire()
    first[1].seen_host_keys["far"] = KEY
    assert acquire(host_keys={"far": KEY}) is first
    assert acquire(host_keys={"far": OTHER_KEY}) is not first
    assert acquire() is not first  # without host keys, a new connection is opened


def test_a_connection_without_a_seen_key_is_not_shared(acquire: Acquire) -> None:
    assert acquire() is not acquire(host_keys={"far": KEY})


def test_a_host_key_that_is_seen_again_needs_no_second_connection(acquire: Acquire) -> None:
    pinned, fresh = acquire(host_keys={"far": KEY}), acquire()
    fresh[1].seen_host_keys["far"] = KEY
    assert acquire(host_keys={"far": KEY}) is pinned
    assert acquire() is not fresh


def test_another_key_of_a_jump_host_needs_another_connection(acquire: Acquire) -> None:
    host_keys = {"far": KEY, "gate": KEY}
    before, fresh = acquire(host_keys=host_keys), acquire()
    fresh[1].seen_host_keys.update(far=KEY, gate=OTHER_KEY)
    assert acquire(host_keys=host_keys | {"gate": OTHER_KEY}) is fresh
    assert acquire(host_keys=host_keys) is before
    assert before[1].host_keys == host_keys


def test_a_pool_that_learns_another_host_key_keeps_its_connections(acquire: Acquire) -> None:
    first = acquire(host_keys={"far": KEY})
    assert acquire(host_keys={"far": KEY, "near": OTHER_KEY}) is first
    assert acquire(host_keys={"far": KEY, "near": KEY}) is not first
