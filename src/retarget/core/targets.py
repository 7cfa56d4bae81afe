"""Targets: named places to run, and what is known about them."""

from collections.abc import Iterable
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.values import Value

_MOST_TAGS = 64
_LONGEST_TAG = 250  # characters of a name, and of a value


class Gpu(Value):
    id: str  # what CUDA_VISIBLE_DEVICES understands
    name: str = ""
    memory: int | None = None  # bytes


class Node(Value):
    """What one machine of a target has to give."""

    name: str = ""
    cpus: float
    memory: int  # bytes
    gpus: tuple[Gpu, ...] = ()
    reason: str = ""  # why it is set aside; empty when it can be used


class Share(Value):
    """What an attempt was given on one node."""

    node: str
    gpus: tuple[str, ...] = ()


class Facts(Value):
    """What a target said about itself when it was last checked."""

    nodes: tuple[Node, ...] = ()
    details: dict[str, str] = {}  # python, disk, engine …: for people
    # seconds of a node's silence after which its work may be tried on another one of them
    fence: float | None = None


class Target(Value):
    name: str
    kind: str
    config: dict[str, Any] = {}  # as it is stored: what is secret in it is encrypted
    tags: dict[str, str] = {}  # labels, such as a region: for people
    facts: Facts | None = None
    checked: float | None = None  # when, in seconds since 1970
    reason: str = ""  # why it cannot be used now; empty when it can


def check_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return labels that can be kept and shown, or raise Invalid with the rule."""
    if len(tags) > _MOST_TAGS:
        raise Invalid(f"tags: {len(tags)} are too many; at most {_MOST_TAGS} fit", field="tags")
    for name, value in tags.items():
        if not name.strip() or "=" in name or not name.isprintable() or len(name) > _LONGEST_TAG:
            raise Invalid(
                f"tags: {name[:70]!a} cannot name a tag; use 1 to {_LONGEST_TAG} characters "
                "that can be shown, without '='",
                field="tags",
            )
        if not value.isprintable() or len(value) > _LONGEST_TAG:
            raise Invalid(
                f"tags: the value of {name!r} must be at most {_LONGEST_TAG} characters that can "
                "be shown",
                field="tags",
            )
    return tags


def no_target(name: str, there: Iterable[str]) -> str:
    """Return the sentence for a target that is not there."""
    return f"no target named {name!r}; this server has {', '.join(there) or 'none'}"
