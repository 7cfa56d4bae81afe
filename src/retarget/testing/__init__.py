"""Suites that a plug-in runs over its own parts, as this package does over its own."""

import pytest

# Before any of them is imported, so that a failing clause shows what it compared.
for _name in ("bench", "ending", "receiver", "running", "surviving"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

from retarget.testing.bench import Bench, Connect  # noqa: E402
from retarget.testing.driver_contract import DriverContract  # noqa: E402
from retarget.testing.receiver import Receiver, Reports  # noqa: E402

__all__ = ["Bench", "Connect", "DriverContract", "Receiver", "Reports"]
