"""Reads the settings of a server: variables first, then config.toml, then defaults."""

from collections.abc import Mapping
from typing import Any

from retarget.control.home_files import read_home_file
from retarget.core.config import parse_config, resolve
from retarget.core.home import Home


def read_settings(home: Home, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each setting by its name, or raise Invalid with where it is wrong."""
    path = str(home.config)
    values = resolve(parse_config(read_home_file(home.config), path), environ, path)
    return {name: resolved.value for name, resolved in values.items()}
