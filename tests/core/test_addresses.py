"""Which servers other machines can reach without encryption."""

import pytest

from retarget.core.addresses import exposure_warning, format_listener


@pytest.mark.parametrize(
    "listener", ["127.0.0.1:5000", "127.0.0.2:1", "[::1]:5000", "localhost:5000", ""]
)
def test_a_server_that_only_this_machine_reaches_needs_no_warning(listener: str) -> None:
    assert exposure_warning(listener, "http://somewhere:5000") is None


@pytest.mark.parametrize("listener", ["0.0.0.0:5000", "[::]:5000", "192.168.1.5:80", "gpu-box:80"])
def test_a_server_on_a_network_is_warned_about_unless_its_address_is_encrypted(
    listener: str,
) -> None:
    warning = exposure_warning(listener, "http://somewhere:5000")
    assert warning is not None
    assert f"listens on {listener} without encryption" in warning
    assert exposure_warning(listener, "https://jobs.example") is None


def test_ipv6_addresses_are_in_brackets() -> None:
    assert format_listener("::1", 5000) == "[::1]:5000"
    assert format_listener("127.0.0.1", 5000) == "127.0.0.1:5000"
