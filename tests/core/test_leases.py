"""The rules of leases."""

import pytest

from retarget.core.leases import (
    LEASE_SECONDS,
    MARGIN_SECONDS,
    RENEWAL_SECONDS,
    FreeTarget,
    ServerRecord,
    Validity,
    lease_name,
    may_take,
    next_epoch,
)


def server(server_id: str, host: str) -> ServerRecord:
    return ServerRecord(
        id=server_id,
        incarnation=f"{server_id}-1",
        host=host,
        host_name=host,
        pid=1,
        url="http://127.0.0.1:1",
        version="1",
        identity="home",
        home="/home",
    )


@pytest.mark.parametrize(
    ("host", "holder", "allowed"),
    [
        (None, "main", True),  # any server can reach it
        (None, None, True),  # nobody ever had it
        ("here", "main", True),  # belongs to this machine
        ("there", "main", False),  # belongs to another machine, whose server may come back
        ("there", "other", True),  # its last holder, now on this machine: a container that moved
    ],
)
def test_a_part_of_a_machine_belongs_to_the_servers_of_that_machine(
    host: str | None, holder: str | None, allowed: bool
) -> None:
    free = FreeTarget(target="local", epoch=7, host=host, holder=holder)
    assert may_take(free, server("other", "here")) is allowed


def test_each_epoch_is_higher_than_the_last_one() -> None:
    assert next_epoch(None, 5.0) == 5000
    assert next_epoch(5000, 5.0) == 5001
    assert next_epoch(9000, 5.0) == 9001  # the clock of the database was set back
    assert next_epoch(3, 5.0) == 5000  # the database was restored: hosts know later epochs than 3


def test_a_server_stops_acting_before_others_may_take_its_leases() -> None:
    validity = Validity()
    assert validity.is_over(0.0)  # it has not renewed yet
    validity.renew(sent_at=100.0)
    ends_at = 100.0 + LEASE_SECONDS - MARGIN_SECONDS
    assert not validity.is_over(ends_at - 0.001)
    assert validity.is_over(ends_at)
    validity.renew(sent_at=ends_at)
    assert not validity.is_over(ends_at)


def test_a_lease_outlives_two_failed_renewals() -> None:
    assert 3 * RENEWAL_SECONDS < LEASE_SECONDS - MARGIN_SECONDS


def test_two_databases_have_different_names_for_the_same_target() -> None:
    names = {lease_name(b"a", "gpu"), lease_name(b"b", "gpu"), lease_name(b"a", "lab")}
    assert len(names) == 3
    assert lease_name(b"x" * 200, "gpu") == lease_name(b"x" * 200, "gpu")
