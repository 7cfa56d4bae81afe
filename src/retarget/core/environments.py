"""Environments: what the user's process finds around it, as a value with a digest."""

import json
import re
from typing import Literal, Self

from blake3 import blake3
from pydantic import field_validator, model_validator

from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.core.snapshots import is_digest
from retarget.core.values import Value

_LONGEST = 65_536  # characters of a line: a requirement may come with many hashes
# [host[:port]/]path[:tag][@digest]; not one that a command line takes for an option
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,500}")
_NO_PARTS = {"", ".", ".."}


class Environment(Value):
    """A normalised definition.

    `user`: an interpreter that is there already; checked, never touched. `system`: packages
    that the runner installs once per machine, under their digest. `image`: a container image,
    pulled or built from a Dockerfile, and perhaps packages on top of it.
    """

    kind: Literal["user", "system", "image"] = "user"
    python: str | None = None  # user: the interpreter's path; else: the version wanted
    prefer: str | None = None  # user: an interpreter to take if it is there, such as the client's
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()  # conda match specs
    pip: tuple[str, ...] = ()  # lines of a requirements file
    image: str | None = None
    dockerfile: str | None = None  # its path within the context
    context: str | None = None  # digest of the manifest of the folder to build from
    name: str | None = None

    @field_validator("channels", "conda", "pip")
    @classmethod
    def _single_lines(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        for line in lines:
            if not line.strip() or not line.isprintable() or len(line) > _LONGEST:
                raise ValueError(f"{line[:80]!r} is not one line of text, or too long")
        return lines

    @field_validator("python", "prefer")
    @classmethod
    def _single_line(cls, text: str | None) -> str | None:
        return None if text is None else cls._single_lines((text,))[0]

    @field_validator("image")
    @classmethod
    def _an_image(cls, image: str | None) -> str | None:
        if image is not None and not _IMAGE.fullmatch(image):
            raise ValueError(
                f"{image[:80]!r} is not the name of an image; write one such as python:3.12-slim"
            )
        return image

    @field_validator("dockerfile")
    @classmethod
    def _a_path(cls, path: str | None) -> str | None:
        if path is not None and (not path.isprintable() or _NO_PARTS & set(path.split("/"))):
            raise ValueError(f"{path[:80]!r} is not a path within the context")
        return path

    @field_validator("context")
    @classmethod
    def _a_manifest(cls, digest: str | None) -> str | None:
        if digest is not None and not is_digest(digest):
            raise ValueError(f"{digest[:80]!r} is not the digest of a snapshot")
        return digest

    @field_validator("name")
    @classmethod
    def _a_name(cls, name: str | None) -> str | None:
        try:
            return None if name is None else check_name(name)
        except Invalid as error:
            raise ValueError(str(error).partition(": ")[2]) from None

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "user" and (self.channels or self.conda or self.pip):
            raise ValueError("a user-managed environment takes an interpreter and no packages")
        if self.kind != "user" and self.prefer:
            raise ValueError(f"a {self.kind}-managed environment has no preferred interpreter")
        if (self.kind == "image") != ((self.image, self.dockerfile) != (None, None)):
            raise ValueError("an image or a dockerfile makes an environment of the kind 'image'")
        if self.image is not None and self.dockerfile is not None:
            raise ValueError("image and dockerfile exclude each other; name one of them")
        if (self.dockerfile is None) != (self.context is None):
            raise ValueError("a dockerfile and its context go together")
        return self

    @property
    def digest(self) -> str | None:
        """Name what is built or pulled by its content; a user-managed one has no digest."""
        return None if self.kind == "user" else digest_of(self)


def digest_of(environment: Environment) -> str:
    """Return the digest of everything that decides what would be built."""
    content = environment.model_dump(include={"python", "channels", "conda", "pip"})
    if environment.kind == "image":  # only then: the digests of the others stay what they were
        content |= environment.model_dump(include={"image", "dockerfile", "context"})
    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
