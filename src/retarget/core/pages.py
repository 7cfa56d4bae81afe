"""The tokens by which a client of MLflow's API asks for the next page. They look like MLflow's."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from retarget.core.errors import Invalid

_LARGEST = (1 << 63) - 1


def read_offset(token: str) -> int:
    """Return where a page begins, which the answer with the page before it told."""
    if not token:
        return 0
    parsed = read_token(token)
    offset = parsed.get("offset")
    if not offset:
        raise Invalid(f"Invalid page token, parsed value={parsed}")
    try:
        number = int(offset)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= _LARGEST:
        raise Invalid(f"Invalid page token, not stringable {offset}")
    return number


def read_token(token: str) -> dict[str, Any]:
    try:
        decoded = base64.b64decode(token.encode())
    except (binascii.Error, UnicodeError):
        raise Invalid("Invalid page token, could not base64-decode") from None
    try:
        parsed = json.loads(decoded)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise Invalid(f"Invalid page token, decoded value={decoded}")
    return parsed  # pyright: ignore[reportUnknownVariableType]


def write_token(content: Mapping[str, Any]) -> str:
    return base64.b64encode(json.dumps(content).encode()).decode()
