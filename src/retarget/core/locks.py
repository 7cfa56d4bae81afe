"""Locks: the resolved versions of an environment, for one platform and one Python."""

import json
import re
from typing import Annotated, Literal

from blake3 import blake3
from pydantic import Field, field_validator

from retarget.core.values import Value

MAX_LOCKED_PACKAGES = 10_000
_MAX_LINE_LENGTH = 4096
# `name==version` or `name @ address`: never an option or a path, because a runner installs them
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*(?:==[\w.!+-]+| @ [a-z+]+://\S+)", re.ASCII)
# `channel/subdir::name==version=build`
_CONDA_PACKAGE = re.compile(r"\S+::[\w.-]+==[\w.!+-]+=[\w.+-]+", re.ASCII)
_Lines = Annotated[tuple[str, ...], Field(max_length=MAX_LOCKED_PACKAGES)]
_Text = Annotated[str, Field(pattern=r"^[\w.+-]{1,100}$")]


class Lock(Value):
    """What an environment resolved to. `source`: where the packages came from.

    `conda`: its channels, with packages of pip on top. `pypi`: PyPI instead of the channels.
    """

    platform: _Text  # linux-x86_64
    python: Annotated[str, Field(pattern=r"^\d+\.\d+[\w.+]{0,40}$")]  # 3.11.7
    source: Literal["pip", "conda", "pypi"] = "pip"
    packages: _Lines = ()  # of pip: `name==version`, or `name @ address`
    conda: _Lines = ()  # `channel/subdir::name==version=build`

    @field_validator("packages")
    @classmethod
    def _check_packages(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        return _checked(lines, _PACKAGE)

    @field_validator("conda")
    @classmethod
    def _check_conda(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        return _checked(lines, _CONDA_PACKAGE)

    @property
    def id(self) -> str:
        """The digest of the content."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return blake3(content.encode()).hexdigest()[:32]

    @property
    def python_minor(self) -> str:
        """The Python version that the lock is for, such as 3.11."""
        return ".".join(self.python.split(".")[:2])


def _checked(lines: tuple[str, ...], rule: re.Pattern[str]) -> tuple[str, ...]:
    for line in lines:
        if len(line) > _MAX_LINE_LENGTH or not rule.fullmatch(line):
            raise ValueError(f"{line[:80]!r} is not a package with its version")
    return lines
