"""Environments as users write them, read and put into the one form that a server takes."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.sdk import given
from retarget.sdk.definitions import read_conda, read_pyproject
from retarget.sdk.requirements import Line, from_lines, read_requirements
from retarget.sdk.wanted import Wanted, as_text, python_version, wrong

if TYPE_CHECKING:
    from retarget.sdk.snapshot import Scan

_Path = str | os.PathLike[str]
_FILES = ("conda", "requirements", "pyproject", "dockerfile", "context")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a job finds around it.

    With packages (a `conda` file, a `requirements` file, a `pyproject` file, a list) it is built
    for the job, once a machine, and `python` is the version wanted. Without, the job runs with
    the interpreter at the path `python`, or with the one that is running here.

    With an `image`, or a `dockerfile` and the folder it is built from, `context`, the job runs in
    a container; packages are then added to what the image has.
    """

    python: _Path | None = None
    conda: _Path | None = None
    requirements: _Path | None = None
    pyproject: _Path | None = None
    packages: Sequence[str] = ()
    image: str | None = None
    dockerfile: _Path | None = None
    context: _Path | None = None  # by default the Dockerfile's own folder
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
        self._check_image()
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
        if self.image is not None or self.dockerfile is not None:
            return {"kind": "image", **self._wanted().to_json(), **self._in_container(), **named}
        if not self._is_built():
            path = _interpreter(self.python)
            here = sys.executable if (sys.executable or "\0").isprintable() else None
            return {"kind": "user", "python": path, "prefer": here, **named}
        return {"kind": "system", **self._wanted().to_json(), "name": self.name}

    def scan_context(self, cache: Path | None = None) -> "Scan | None":
        """Read the folder that the image is built from; None without a Dockerfile."""
        from retarget.sdk.snapshot import scan

        if self.dockerfile is None:
            return None
        folder, inside = self._context()
        found = scan(folder, cache=cache, context=True)
        if not any(entry.path == inside for entry in found.manifest.entries):
            raise wrong("dockerfile", f"there is no file {inside!r} in {folder}")
        return found

    def _check_image(self) -> None:
        if self.image is not None:
            given.check("image", self.image, given.TEXT)
            if not self.image.strip():
                raise wrong("image", "is empty; name one such as python:3.12-slim")
            if self.dockerfile is not None:
                raise wrong("image", "it and dockerfile exclude each other; name one of them")
        if self.context is not None and self.dockerfile is None:
            raise wrong("context", "goes with a dockerfile; name it, too")

    def _in_container(self) -> dict[str, Any]:
        found = self.scan_context()
        if found is None:
            return {"image": self.image}
        return {"dockerfile": self._context()[1], "context": found.manifest.digest}

    def _context(self) -> tuple[Path, str]:
        """Return the folder, and the path of the Dockerfile in it, which may begin in either."""
        named = Path(self.dockerfile or "")
        folder = named.absolute().parent if self.context is None else Path(self.context).absolute()
        if not folder.is_dir():
            raise wrong("context", f"there is no folder {str(folder)!r}")
        found = [path for path in (named.absolute(), folder / named) if os.path.isfile(path)]
        if not found:
            raise wrong("dockerfile", f"there is no file {str(named)!r}")
        inside = os.path.relpath(os.path.realpath(found[0]), os.path.realpath(folder))
        if inside.startswith(".."):
            raise wrong(
                "dockerfile", f"{str(named)!r} is not in the context {folder}; move it there"
            )
        return folder, inside

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
