"""Defines environments, and turns them into the form that a server accepts."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.sdk import arguments
from retarget.sdk.display import Columns, Displayable
from retarget.sdk.environment_draft import EnvironmentDraft, as_string, python_version, wrong
from retarget.sdk.environment_files import read_conda, read_pyproject
from retarget.sdk.interpreter import own_interpreter
from retarget.sdk.local_paths import with_extras
from retarget.sdk.requirements import Line, from_lines, read_requirements

if TYPE_CHECKING:
    from retarget.sdk.own_packages import Expanded
    from retarget.sdk.snapshot import Scan

_Path = str | os.PathLike[str]
_VERSION = re.compile(r"[<>=!~\s]*\d[\d.,<>=!~*\s]*")
_FILES = ("conda", "requirements", "pyproject", "dockerfile", "context")


@dataclass(frozen=True, kw_only=True, repr=False)
class Environment(Displayable):
    """The Python environment of a job: packages, an interpreter, or a container image.

    With packages or a Python version, the environment is built once per machine; `packages=[]`
    builds one without packages. Otherwise the job runs with the interpreter at the path `python`;
    by default with the Python that runs this code. With an image or a Dockerfile, the job runs in a
    container, and packages are installed on top of the image.

    Args:
        python: A version such as `"3.11"` or `">=3.10"`, or the path of an interpreter.
        conda: A conda environment file.
        requirements: A pip requirements file.
        pyproject: A `pyproject.toml` file; its `project.dependencies` are installed.
        packages: Requirements in the format of pip, such as `["numpy>=2", "pandas"]`.
        image: The name of a container image, such as `python:3.12-slim`.
        dockerfile: A Dockerfile to build the image from, instead of `image`.
        context: The folder that the image is built from; by default the folder of the Dockerfile.
        name: A name for the environment.
        conda_from_pypi: Install what PyPI has of the conda packages, and build without the others.
    """

    python: _Path | None = None
    conda: _Path | None = None
    requirements: _Path | None = None
    pyproject: _Path | None = None
    packages: Sequence[str] | None = None
    image: str | None = None
    dockerfile: _Path | None = None
    context: _Path | None = None
    name: str | None = None
    conda_from_pypi: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.packages, str):
            raise wrong("packages", f"must be a list; write packages=[{self.packages!r}]")
        if self.packages is not None:
            arguments.check("packages", self.packages, ((Sequence,), "a list, such as ['numpy']"))
            object.__setattr__(self, "packages", tuple(self.packages))
        rules = {"python": arguments.PYTHON} | dict.fromkeys(_FILES, arguments.PATH)
        for name, rule in rules.items():
            if getattr(self, name) is not None:
                arguments.check(name, getattr(self, name), rule)
        self._check_image()
        if self.name is not None:
            arguments.check("name", self.name, arguments.TEXT)
            check_name(self.name)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._columns().items())
        return f"Environment({options})"

    def _columns(self) -> Columns:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if name == "packages" else _plain(value)
            for name, value in values.items()
            if value is not None and value is not False
        }

    @classmethod
    def from_file(cls, path: _Path, *, python: str | None = None, name: str | None = None) -> Self:
        """Read a conda (.yml, .yaml), a requirements (.txt) or a pyproject (.toml) file.

        A folder stands for the pyproject file in it, and `.[dev]` for a project with its extras.
        """
        arguments.check("path", path, arguments.PATH)
        project = with_extras(os.fspath(path))
        if project is not None:
            return cls(packages=[project], python=python, name=name)
        match Path(path).suffix.lower():
            case ".yml" | ".yaml":
                return cls(conda=path, python=python, name=name)
            case ".txt":
                return cls(requirements=path, python=python, name=name)
            case ".toml":
                return cls(pyproject=path, python=python, name=name)
            case _ if os.path.isdir(path):
                return cls(pyproject=Path(path, "pyproject.toml"), python=python, name=name)
            case _:
                raise Invalid(
                    f"{path}: unknown type of file; name a conda file (.yml, .yaml), a "
                    "requirements file (.txt) or a pyproject file (.toml)",
                    field="environment",
                )

    def to_json(self, code: Path | None = None) -> dict[str, Any]:
        """Read the files and return the definition; Invalid names the file and the line.

        The user's own packages in the folder `code` are not part of it.
        """
        name = {"name": self.name} if self.name is not None else {}
        if self.image is not None or self.dockerfile is not None:
            return {
                "kind": "image",
                **self.expanded(code).draft.to_json(),
                **self._image_source(),
                **name,
            }
        if not self._is_built():
            path = None if self.python is None else os.fspath(self.python)
            current = own_interpreter()
            current = current if (current or "\0").isprintable() else None
            return {"kind": "user", "python": path, "prefer": current, **name}
        return {"kind": "system", **self.expanded(code).draft.to_json(), "name": self.name}

    def scan_context(self, cache: Path | None = None) -> "Scan | None":
        """Read the folder that the image is built from; return None without a Dockerfile."""
        from retarget.sdk.snapshot import scan

        if self.dockerfile is None:
            return None
        folder, inside = self._context()
        result = scan(folder, cache=cache, context=True)
        if not any(entry.path == inside for entry in result.manifest.entries):
            raise wrong("dockerfile", f"file {inside!r} not found in {folder}")
        return result

    def _check_image(self) -> None:
        if self.image is not None:
            arguments.check("image", self.image, arguments.TEXT)
            if not self.image.strip():
                raise wrong("image", "is empty; pass a name such as python:3.12-slim")
            if self.dockerfile is not None:
                raise wrong("image", "cannot be combined with dockerfile; pass one of them")
        if self.context is not None and self.dockerfile is None:
            raise wrong("context", "needs a dockerfile; pass that too")

    def _image_source(self) -> dict[str, Any]:
        scan = self.scan_context()
        if scan is None:
            return {"image": self.image}
        return {"dockerfile": self._context()[1], "context": scan.manifest.digest}

    def _context(self) -> tuple[Path, str]:
        """Return the context, and the path of the Dockerfile in it.

        The Dockerfile may be relative to the current folder or to the context.
        """
        dockerfile = Path(self.dockerfile or "")
        default = dockerfile.absolute().parent
        folder = default if self.context is None else Path(self.context).absolute()
        if not folder.is_dir():
            raise wrong("context", f"folder {str(folder)!r} not found")
        candidates = (dockerfile.absolute(), folder / dockerfile)
        files = [path for path in candidates if os.path.isfile(path)]
        if not files:
            raise wrong("dockerfile", f"file {str(dockerfile)!r} not found")
        inside = os.path.relpath(os.path.realpath(files[0]), os.path.realpath(folder))
        if inside.startswith(".."):
            raise wrong(
                "dockerfile", f"{str(dockerfile)!r} is not in the context {folder}; move it there"
            )
        return folder, inside

    def _is_built(self) -> bool:
        sources = (self.conda, self.requirements, self.pyproject, self.packages)
        is_version = self.python is not None and _VERSION.fullmatch(os.fspath(self.python))
        return bool(is_version) or any(source is not None for source in sources)

    def refuse_own_packages(self, use: str) -> None:
        """Raise Invalid if packages are named by a path: only the code of a job has them."""
        for package in replace(self, pyproject=None).expanded().packages:
            raise wrong(
                package.source,
                f"{package.path} is a package on this machine, which {use} cannot contain; name it "
                "where you submit a job",
            )

    def expanded(self, code: Path | None = None) -> "Expanded":
        """Read the files, and those of the user's own packages, which are not part of a build."""
        from retarget.sdk.own_packages import Expanded, with_own_packages

        if not (self._is_built() or self.image or self.dockerfile):
            return Expanded(EnvironmentDraft())
        return with_own_packages(self._draft(), code)

    def _draft(self) -> EnvironmentDraft:
        draft = EnvironmentDraft()
        if self.python is not None:
            version = python_version("python", os.fspath(self.python))
            draft += EnvironmentDraft(pythons=(("python", version),) if version else ())
        if self.conda is not None:
            draft += read_conda(Path(self.conda))
        if self.requirements is not None:
            draft += read_requirements(Path(self.requirements))
        if self.pyproject is not None:
            draft += read_pyproject(Path(self.pyproject))
        lines = (Line("packages", as_string("packages", text)) for text in self.packages or ())
        draft += EnvironmentDraft(conda_from_pypi=self.conda_from_pypi)
        return draft + from_lines(lines, Path())


def environment_from(definition: Mapping[str, Any]) -> Environment:
    """Return the environment that a mapping defines: `{"python": "3.12", "packages": ["numpy"]}`.

    Its keys are the arguments of `Environment`; Invalid names an unknown one.
    """
    from difflib import get_close_matches

    known = [field.name for field in fields(Environment)]
    for key in definition:
        if key not in known:
            matches = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {matches[0]!r}?" if matches else f"keys are {', '.join(known)}"
            raise wrong("environment", f"unknown key {key!r}; {hint}")
    return Environment(**definition)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
