"""Page tokens of MLflow's API, in MLflow's own format."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from retarget.core.errors import Invalid

_MAX_OFFSET = (1 << 63) - 1


def read_offset(token: str) -> int:
    """Return the offset in a page token; 0 for an empty token, which asks for the first page."""
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
    if not 0 <= number <= _MAX_OFFSET:
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
