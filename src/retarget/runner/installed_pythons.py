"""Finds the Pythons of this machine that are not on the PATH, so that uv downloads none of them."""

from __future__ import annotations

import glob
import os
import re
import sys
from typing import Mapping

_FOLDERS = (
    "/usr/local/bin",
    "/usr/bin",
    "{pyenv}/versions/*/bin",
    "{home}/.asdf/installs/python/*/bin",
    "{home}/.local/share/mise/installs/python/*/bin",
    "{home}/.local/bin",
    "{home}/mini*/bin",  # miniconda3, miniforge3
    "{home}/anaconda*/bin",
    "/opt/python*/bin",
    "/opt/python/*/bin",
    "/opt/*conda*/bin",
    "/opt/*forge*/bin",
)


def search_path(environ: Mapping[str, str]) -> str:
    """Return the PATH, followed by the folders where Pythons are usually installed."""
    folders = environ.get("PATH", "").split(os.pathsep)
    folders.append(os.path.dirname(os.path.realpath(sys.executable)))
    home = glob.escape(environ.get("HOME") or os.path.expanduser("~"))
    pyenv = glob.escape(environ.get("PYENV_ROOT", "")) or f"{home}/.pyenv"
    for pattern in _FOLDERS:
        matches = glob.glob(pattern.format(home=home, pyenv=pyenv))
        folders += sorted(filter(_has_python, matches), key=_numbers, reverse=True)
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))


def _has_python(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "python3"))


def _numbers(folder: str) -> list[int]:
    """Return the numbers in a path: the newest version of Python comes first."""
    return [int(number) for number in re.findall(r"\d+", folder)]
