"""What to do about a file that a job could not open. Pure functions of paths."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from posixpath import basename, dirname, join, normpath

from retarget.core.exclusions import ALWAYS, OTHERS, notebook_folder
from retarget.core.jobs import JobSpec

_MAX_NAMES = 5  # of paths in a hint
_MAX_GUESSES = 2000  # files of a folder that a missing one is compared with


def explain_file(path: str, reason: str, spec: JobSpec, files: Sequence[str]) -> str:
    """Return what to do about a missing file with this relative path."""
    folder = notebook_folder(reason)
    path_in_code = normpath(join(folder or "", path))
    if path_in_code == ".." or path_in_code.startswith("../"):
        return _outside(path, path_in_code, spec, is_notebook=folder is not None)
    guess = _similar(path_in_code, files)
    question = f"; did you mean {guess}?" if guess else ""
    start = "a copy of the code folder" if folder is None else "its own folder there"
    program = "script" if folder is None else "notebook"
    where = f"the {program} starts in {start}, and relative paths begin there"
    if re.fullmatch(r"[\w+-]+", path) and not guess:  # subprocess says the same of a program
        where += f"; if {path} is a program, install it on the target"
    return f"{path} is not among the files that were sent{question or f'; {where}'}"


def explain_no_input(spec: JobSpec) -> str:
    """Return what to do if a pattern such as `data/*.csv` matched no file."""
    hint = f"if a pattern matched no file: only {code_folder(spec)} is sent"
    excluded = [row.path for row in spec.excluded if row.rule != ALWAYS and row.path != OTHERS]
    if excluded:
        return f"{hint}, without {_listed(excluded)}; to send a path, use --include PATH"
    paths = spec.surroundings.paths if spec.surroundings else ()
    outside = [path for path in paths if path.endswith("/")]
    if outside:
        return f"{hint}, not {_listed(outside)}; to send the folder above it, use --code .."
    return hint


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else ""
    return ", ".join(paths[:_MAX_NAMES]) + more


def code_folder(spec: JobSpec) -> str:
    """Return `the code folder notebooks/`, or without its name if it is not known."""
    folder = spec.surroundings.folder if spec.surroundings else ""
    return f"the code folder {folder}/" if folder else "the code folder"


def _outside(path: str, path_in_code: str, spec: JobSpec, *, is_notebook: bool) -> str:
    names = path_in_code.split("/")
    parents = "/".join(name for name in names if name == "..")
    below = "/".join(name for name in names if name != "..")
    # a notebook starts in its own folder, so its paths stay true
    change = "" if is_notebook or not below else f" and open {below!r}: paths begin at that folder"
    return (
        f"{path} is outside of {code_folder(spec)}, and only that is sent; send the folder above "
        f"it with --code {parents}{change}"
    )


def _similar(path: str, files: Sequence[str]) -> str | None:
    """Return a file that was sent and that may be meant: `configs/base.yaml`."""
    same_name = [file for file in files if basename(file) == basename(path) and file != path]
    if same_name:
        return (get_close_matches(path, same_name[:_MAX_GUESSES], 1, 0.0) or same_name)[0]
    neighbors = [file for file in files if dirname(file) == dirname(path)][:_MAX_GUESSES]
    matches = get_close_matches(path, neighbors, 1, 0.8)
    return matches[0] if matches else None
