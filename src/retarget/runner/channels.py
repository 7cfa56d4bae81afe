"""Finds out whether conda channels can be reached from this machine."""

from __future__ import annotations

import os
import ssl
import sys
from typing import Iterable
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

_TIMEOUT_SECONDS = 5.0
_PROXY_REFUSES = 407
_SERVER_ERROR = 500


def unreachable_channel(channels: Iterable[str]) -> str:
    """Return the first channel that cannot be reached, and why; empty if all can."""
    for channel in channels:
        reason = _obstacle(channel)
        if reason:
            return f"channel {channel} cannot be reached: {reason}"
    return ""


def check(channels: list[str]) -> int:
    """Print which channel cannot be reached and return 1, or return 0."""
    reason = unreachable_channel(channels)
    if reason:
        sys.stdout.write(f"{reason}\n")
    return 1 if reason else 0


def _obstacle(channel: str) -> str:
    address = _address(channel)
    if address.startswith("file://"):
        folder = address[len("file://") :]
        return "" if os.path.isdir(folder) else f"{folder} does not exist"
    request = Request(f"{address}/noarch/repodata.json.zst", method="HEAD")
    try:
        urlopen(request, timeout=_TIMEOUT_SECONDS).close()
    except HTTPError as error:  # an answer: whether it has the packages is the solver's question
        with error:
            refuses = error.code >= _SERVER_ERROR or error.code == _PROXY_REFUSES
            return f"HTTP status {error.code}" if refuses else ""
    except (OSError, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        # py-rattler may trust other certificates than this Python
        return "" if isinstance(cause, ssl.SSLError) else _without_number(cause)
    return ""


def _without_number(cause: object) -> str:
    return str(getattr(cause, "strerror", None) or cause)


def _address(channel: str) -> str:
    if channel.startswith("/"):
        return f"file://{channel}"
    if channel.startswith("file://"):
        return channel
    if channel.startswith(("http://", "https://")):
        return channel.rstrip("/")
    return f"https://conda.anaconda.org/{channel}"
