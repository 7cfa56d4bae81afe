"""Shortens the traceback of an error in a notebook to the line that called this package."""

import os
import sys
import traceback
from itertools import pairwise

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def render(error: BaseException) -> list[str]:
    """Return the lines that a notebook shows: the calling line of the user, and the message."""
    frames = traceback.extract_tb(error.__traceback__)
    return [*_frame_lines(_caller(frames)), *f"{_public_name(error)}: {error}".splitlines()]


def _caller(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """Return the last frame before the first one of this package; else the last frame."""
    for caller, frame in pairwise(frames):
        if os.path.abspath(frame.filename).startswith(_PACKAGE):
            return caller
    return frames[-1] if frames else None


def _frame_lines(frame: traceback.FrameSummary | None) -> list[str]:
    if frame is None:
        return []
    function = "" if frame.name == "<module>" else f", in {frame.name}"
    return [f"{_source(frame.filename)}, line {frame.lineno}{function}", f"    {frame.line}", ""]


def _source(filename: str) -> str:
    """Return `Cell In[3]` for a cell of a notebook, as IPython does, else `File …`."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(get_ipython() if get_ipython else None, "compile", None)
    name_of = getattr(compiler, "format_code_name", None)
    return " ".join((name_of(filename) if name_of else None) or ("File", filename))


def _public_name(error: BaseException) -> str:
    """Return the name of the class that a user can catch: a private subclass has no meaning."""
    return next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))
