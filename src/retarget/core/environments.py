"""Environments: packages, an interpreter or an image, as a value with a digest."""

import json
import re
from typing import Annotated, Literal, Self

from blake3 import blake3
from pydantic import Field, field_validator, model_validator

from retarget.core.credentials import credentials_refused, has_credentials
from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.core.snapshots import is_digest
from retarget.core.values import Value

_MAX_LINE_LENGTH = 65_536  # a requirement may have many hashes
# [host[:port]/]path[:tag][@digest]; never one that looks like a command-line option
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,500}")
_BAD_SEGMENTS = {"", ".", ".."}
_MAX_NUMBER = 2**31 - 1


class Environment(Value):
    """A normalized definition.

    `user`: an existing interpreter, which is checked and never changed. `system`: packages that
    the runner installs once per host, under their digest. `image`: a container image, pulled or
    built from a Dockerfile, optionally with packages on top of it.
    """

    kind: Literal["user", "system", "image"] = "user"
    python: str | None = None  # user: the interpreter's path; otherwise: the required version
    prefer: str | None = None  # user: an interpreter to use if it exists, such as the client's
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()  # conda match specs
    pip: tuple[str, ...] = ()  # lines of a requirements file
    image: str | None = None
    dockerfile: str | None = None  # its path within the context
    context: str | None = None  # digest of the manifest of the folder to build from
    name: str | None = None
    # the version that it has under its name
    version: Annotated[int, Field(strict=True, ge=1, le=_MAX_NUMBER)] | None = None
    # how often `environment update` resolved the same requirements again
    resolution: Annotated[int, Field(strict=True, ge=0, le=_MAX_NUMBER)] = 0
    # take what PyPI has of the conda packages, and build without the others
    conda_from_pypi: Annotated[bool, Field(strict=True)] = False

    @field_validator("channels", "conda", "pip")
    @classmethod
    def _check_lines(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        for line in lines:
            if not line.strip() or not line.isprintable() or len(line) > _MAX_LINE_LENGTH:
                raise ValueError(f"{line[:80]!r} is not a single line, or it is too long")
            if has_credentials(line):
                raise ValueError(credentials_refused(line))
        return lines

    @field_validator("python", "prefer")
    @classmethod
    def _check_line(cls, text: str | None) -> str | None:
        return None if text is None else cls._check_lines((text,))[0]

    @field_validator("image")
    @classmethod
    def _check_image(cls, image: str | None) -> str | None:
        if image is not None and not _IMAGE.fullmatch(image):
            raise ValueError(
                f"{image[:80]!r} is not an image name; write one such as python:3.12-slim"
            )
        return image

    @field_validator("dockerfile")
    @classmethod
    def _check_dockerfile(cls, path: str | None) -> str | None:
        if path is not None and (not path.isprintable() or _BAD_SEGMENTS & set(path.split("/"))):
            raise ValueError(f"{path[:80]!r} is not a path within the context")
        return path

    @field_validator("context")
    @classmethod
    def _check_context(cls, digest: str | None) -> str | None:
        if digest is not None and not is_digest(digest):
            raise ValueError(f"{digest[:80]!r} is not the digest of a snapshot")
        return digest

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        try:
            return None if name is None else check_name(name)
        except Invalid as error:
            raise ValueError(str(error).partition(": ")[2]) from None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "user" and (self.channels or self.conda or self.pip):
            raise ValueError("a user-managed environment has an interpreter and no packages")
        if self.kind != "user" and self.prefer:
            raise ValueError(f"a {self.kind}-managed environment has no preferred interpreter")
        if (self.kind == "image") != ((self.image, self.dockerfile) != (None, None)):
            raise ValueError("kind 'image' needs an image or a dockerfile; no other kind has one")
        if self.image is not None and self.dockerfile is not None:
            raise ValueError("image and dockerfile exclude each other; set one of them")
        if (self.dockerfile is None) != (self.context is None):
            raise ValueError("dockerfile and context must be set together")
        return self

    @property
    def label(self) -> str | None:
        """The name, with the version if it has one: `torch:3`."""
        return f"{self.name}:{self.version}" if self.name and self.version else self.name

    @property
    def digest(self) -> str | None:
        """Identify what is built or pulled by its content. None for a user-managed environment."""
        return None if self.kind == "user" else digest_of(self)


def digest_of(environment: Environment) -> str:
    """Return the digest of everything that determines what is built."""
    content = environment.model_dump(include={"python", "channels", "conda", "pip"})
    if environment.kind == "image":  # only then: the digests of other kinds must stay as they were
        content |= environment.model_dump(include={"image", "dockerfile", "context"})
    if environment.resolution:  # only then, for the same reason
        content["resolution"] = environment.resolution
    if environment.conda_from_pypi:
        content["conda_from_pypi"] = True
    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
