"""Test suites that a plug-in runs over its own drivers, as this package does."""

import pytest

# Before any of them is imported, so that a failing assertion shows what it compared.
for _name in ("harness", "ending", "receiver", "running", "surviving"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

from retarget.testing.driver_contract import DriverContract  # noqa: E402
from retarget.testing.harness import Connect, ContractHarness  # noqa: E402
from retarget.testing.receiver import Receiver, Reports  # noqa: E402

__all__ = ["Connect", "ContractHarness", "DriverContract", "Receiver", "Reports"]
