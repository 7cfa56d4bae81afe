"""Environments: what the user's process finds around it, as a value with a digest."""

import json
from typing import Literal, Self

from blake3 import blake3
from pydantic import field_validator, model_validator

from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.core.values import Value

_LONGEST = 65_536  # characters of a line: a requirement may come with many hashes


class Environment(Value):
    """A normalised definition.

    `user`: an interpreter that is there already; checked, never touched. `system`: packages
    that the runner installs once per machine, under their digest.
    """

    kind: Literal["user", "system"] = "user"
    python: str | None = None  # user: the interpreter's path; system: the version wanted
    prefer: str | None = None  # user: an interpreter to take if it is there, such as the client's
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()  # conda match specs
    pip: tuple[str, ...] = ()  # lines of a requirements file
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
        if self.kind == "system" and self.prefer:
            raise ValueError("a system-managed environment has no preferred interpreter")
        return self

    @property
    def digest(self) -> str | None:
        """Name a system-managed environment by its content; a user-managed one has no digest."""
        return None if self.kind == "user" else digest_of(self)


def digest_of(environment: Environment) -> str:
    """Return the digest of everything that decides what would be built."""
    content = environment.model_dump(include={"python", "channels", "conda", "pip"})
    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
