"""The `retarget` package that a job imports: the installed one, or else only `track`.

The runner appends the folder of this file to PYTHONPATH, which comes before the packages of the
environment. So this module looks for a Retarget that is installed there, and becomes it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'retarget' has no attribute {name!r}")
    if name == "track":
        from importlib import import_module

        return import_module("retarget.track")
    # not AttributeError: `from retarget import …` would swallow its message
    raise ImportError(
        f"cannot import {name!r}: Retarget is not installed in this job's environment, so only "
        "retarget.track is available; to use the SDK, run the job with a Python that has Retarget"
    )


def _find_installed() -> ModuleSpec | None:
    stand_ins = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    others = [path for path in sys.path if os.path.dirname(os.path.abspath(path)) != stand_ins]
    for finder in sys.meta_path:
        paths = others if finder is PathFinder else None
        spec = finder.find_spec("retarget", paths) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None and spec.origin is not None:
            return spec
    return None


def _become(spec: ModuleSpec) -> None:
    module = sys.modules[__name__]
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    module.__path__ = spec.submodule_search_locations or []
    assert spec.loader is not None
    spec.loader.exec_module(module)


_installed = _find_installed()
if _installed is not None:
    _become(_installed)
