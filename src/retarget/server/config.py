"""Reads the settings of a server: variables first, then config.toml, then defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retarget.core.config import MAX_CONFIG_BYTES, parse_config, resolve
from retarget.core.errors import Invalid
from retarget.core.home import Home


def read_settings(home: Home, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each setting by its name, or raise Invalid with where it is wrong."""
    path = str(home.config)
    try:
        is_file = home.config.is_file()
        content = _read(home.config) if is_file else b""
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from None
    if not is_file and home.config.exists():
        raise Invalid(f"{path} is not a regular file")
    if len(content) > MAX_CONFIG_BYTES:
        raise Invalid(f"{path} has more than {MAX_CONFIG_BYTES:,} bytes")
    values = resolve(parse_config(content, path), environ, path)
    return {name: resolved.value for name, resolved in values.items()}


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CONFIG_BYTES + 1)
