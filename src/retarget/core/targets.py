"""Targets: named places to run, and what is known about them."""

from collections.abc import Iterable
from typing import Any

from retarget.core.values import Value


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
    config: dict[str, Any] = {}
    facts: Facts | None = None
    checked: float | None = None  # when, in seconds since 1970
    reason: str = ""  # why it cannot be used now; empty when it can


def no_target(name: str, there: Iterable[str]) -> str:
    """Return the sentence for a target that is not there."""
    return f"no target named {name!r}; this server has {', '.join(there) or 'none'}"
