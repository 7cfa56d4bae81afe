"""Whether the machine of the server can build from conda channels now."""

import importlib
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec

from retarget.core.links import Links
from retarget.runner.channels import unreachable_channel

_PATIENCE_SECONDS = 5.0  # a name server may take much longer
_VALID_SECONDS = 20.0
NO_RATTLER = (
    "py-rattler is not installed on this machine (pip install '.[conda]' in a clone of Retarget)"
)


def has_rattler() -> bool:
    """Return whether py-rattler is installed; one that was installed a moment ago counts."""
    importlib.invalidate_caches()
    return find_spec("rattler") is not None


class CondaChannels:
    """What the last reachability checks of this machine have shown."""

    def __init__(self, links: Links) -> None:
        # by channels: until when, and the obstacle
        self._results: dict[tuple[str, ...], tuple[float, str]] = {}

    def obstacle(self, channels: Sequence[str]) -> str:
        """Return why channels cannot be used on this machine; empty if they can.

        A reachability check counts for some seconds: a submission asks more than once.
        """
        if not has_rattler():
            return NO_RATTLER
        key = tuple(channels)
        valid_until, obstacle = self._results.get(key, (0.0, ""))
        if time.monotonic() < valid_until:
            return obstacle
        obstacle = _check(key)
        self._results[key] = (time.monotonic() + _VALID_SECONDS, obstacle)
        return obstacle

    def close(self) -> None:
        self._results.clear()


def _check(channels: tuple[str, ...]) -> str:
    answers: list[str] = []
    check = threading.Thread(
        target=lambda: answers.append(unreachable_channel(channels)), daemon=True
    )
    check.start()
    check.join(_PATIENCE_SECONDS)
    return answers[0] if answers else f"{', '.join(channels)} did not answer in time"
