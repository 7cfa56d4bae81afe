"""Notebooks as scripts: what runs them, and which of them can be run."""

import json
from pathlib import Path
from typing import Any, cast

from retarget.core.errors import Invalid

SUFFIX = ".ipynb"
PROGRAM = ("python", "-m", "retarget_notebook")  # every job finds this module: runner/notebook.py
PACKAGES = ("papermill", "ipykernel")  # what the program needs


def check_notebook(path: Path) -> None:
    """Raise Invalid unless the file is a notebook in Python."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise Invalid(f"cannot run {path.name!r}: it is not a notebook: {error}") from None
    notebook = _mapping(content)
    if "cells" not in notebook and "worksheets" not in notebook:  # the latter before nbformat 4
        raise Invalid(f"cannot run {path.name!r}: it is not a notebook: it has no cells")
    language = _language(_mapping(notebook.get("metadata")))
    if not language.lower().startswith(("python", "ipython")):
        raise Invalid(
            f"cannot run {path.name!r}: its language is {language}; Retarget runs notebooks in "
            "Python only"
        )


def _language(metadata: dict[str, Any]) -> str:
    """Return the language of a notebook, which is Python unless it names another one."""
    names = (
        _mapping(metadata.get("kernelspec")).get("language"),
        _mapping(metadata.get("language_info")).get("name"),
    )
    return next((name for name in names if isinstance(name, str) and name), "python")


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
