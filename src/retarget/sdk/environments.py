"""Environments as users write them, read and put into the one form that a server takes."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.sdk import given
from retarget.sdk.definitions import read_conda, read_pyproject
from retarget.sdk.requirements import Line, from_lines, read_requirements
from retarget.sdk.wanted import Wanted, as_text, python_version, wrong

_Path = str | os.PathLike[str]
_FILES = ("conda", "requirements", "pyproject")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a job finds around it.

    With packages (a `conda` file, a `requirements` file, a `pyproject` file, a list) it is built
    for the job, once a machine, and `python` is the version wanted. Without, the job runs with
    the interpreter at the path `python`, or with the one that is running here.
    """

    python: _Path | None = None
    conda: _Path | None = None
    requirements: _Path | None = None
    pyproject: _Path | None = None
    packages: Sequence[str] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.packages, str):
            raise wrong("packages", f"is a list; write packages=[{self.packages!r}]")
        given.check("packages", self.packages, ((Sequence,), "a list, such as ['numpy']"))
        object.__setattr__(self, "packages", tuple(self.packages))
        rules = {"python": given.PYTHON} | dict.fromkeys(_FILES, given.PATH)
        for name, rule in rules.items():
            if getattr(self, name) is not None:
                given.check(name, getattr(self, name), rule)
        if self.name is not None:
            given.check("name", self.name, given.TEXT)
            check_name(self.name)

    @classmethod
    def from_file(cls, path: _Path, *, python: str | None = None, name: str | None = None) -> Self:
        """Take a conda file (.yml, .yaml), a requirements file (.txt) or a pyproject (.toml)."""
        given.check("path", path, given.PATH)
        match Path(path).suffix.lower():
            case ".yml" | ".yaml":
                return cls(conda=path, python=python, name=name)
            case ".txt":
                return cls(requirements=path, python=python, name=name)
            case ".toml":
                return cls(pyproject=path, python=python, name=name)
            case _:
                raise Invalid(
                    f"{path}: what is it? name a conda file .yml, a requirements file .txt "
                    "or a pyproject .toml",
                    field="environment",
                )

    def to_json(self) -> dict[str, Any]:
        """Read the files and return the definition; Invalid names file, line and what to mend."""
        named = {"name": self.name} if self.name is not None else {}
        if not self._is_built():
            path = _interpreter(self.python)
            here = sys.executable if (sys.executable or "\0").isprintable() else None
            return {"kind": "user", "python": path, "prefer": here, **named}
        return {"kind": "system", **self._wanted().to_json(), "name": self.name}

    def _is_built(self) -> bool:
        given = (self.conda, self.requirements, self.pyproject)
        return bool(self.packages) or any(path is not None for path in given)

    def _wanted(self) -> "Wanted":
        wanted = Wanted()
        if self.python is not None:
            version = python_version("python", os.fspath(self.python))
            wanted += Wanted(pythons=(("python", version),) if version else ())
        if self.conda is not None:
            wanted += read_conda(Path(self.conda))
        if self.requirements is not None:
            wanted += read_requirements(Path(self.requirements))
        if self.pyproject is not None:
            wanted += read_pyproject(Path(self.pyproject))
        lines = (Line("packages", as_text("packages", text)) for text in self.packages)
        return wanted + from_lines(lines, Path())


def _interpreter(python: _Path | None) -> str | None:
    if python is None:
        return None
    path = os.fspath(python)
    if re.fullmatch(r"[<>=!~\s]*\d[\d.,<>=!~*\s]*", path):
        raise wrong(
            "python",
            f"{path!r} is a version, which goes with packages; without packages name the "
            "interpreter's path",
        )
    return path
