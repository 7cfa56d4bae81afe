"""Targets, their nodes, and what is known about them."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, cast

from pydantic import model_validator

from retarget.core.errors import Invalid
from retarget.core.values import Value

_MAX_TAGS = 64
_MAX_TAG_LENGTH = 250  # characters of a name, and of a value


class Gpu(Value):
    id: str  # as in CUDA_VISIBLE_DEVICES
    name: str = ""
    memory: int | None = None  # bytes


class NodeState(StrEnum):
    STARTING = "starting"  # it will take work soon
    READY = "ready"
    LEAVING = "leaving"  # it takes no more work
    UNAVAILABLE = "unavailable"  # something is wrong with it


class Node(Value):
    """The resources of one node, and its state."""

    name: str = ""
    cpus: float
    memory: int  # bytes
    gpus: tuple[Gpu, ...] = ()
    unavailable: str = ""  # why it takes no work now; empty if it does
    state: NodeState = NodeState.READY  # UNAVAILABLE if `unavailable` says why
    changed_at: float | None = None  # when it came into this state; the server sets it at a check
    type: str = ""  # the name of its node type, on a target that has such

    @model_validator(mode="before")
    @classmethod
    def _derive_state(cls, values: Any) -> Any:
        if isinstance(values, dict):
            fields = cast("dict[str, Any]", values)
            if fields.get("unavailable") and "state" not in fields:
                return fields | {"state": NodeState.UNAVAILABLE}
        return cast("Any", values)

    @property
    def is_ready(self) -> bool:
        return self.state is NodeState.READY and not self.unavailable

    def at(self, now: float, before: "Node | None") -> "Node":
        """Return this node as it was found now; `before` is what was known of it, if anything.

        An unavailable node keeps the resources that it had.
        """
        if before is None:
            return self.model_copy(update={"changed_at": now})
        is_new = before.state is not self.state or before.changed_at is None
        changed_at = now if is_new else before.changed_at
        if not self.unavailable:
            return self.model_copy(update={"changed_at": changed_at})
        change = {"unavailable": self.unavailable, "state": self.state, "changed_at": changed_at}
        return before.model_copy(update=change)


class NodeType(Value):
    """What a target can have nodes of: it adds and removes such nodes as jobs need them."""

    name: str
    cpus: float
    memory: int  # bytes
    gpus: int = 0  # how many
    gpu_name: str = ""
    min_nodes: int = 0  # it always has as many
    max_nodes: int  # it never has more


class Allocation(Value):
    """What an attempt was allocated on one node."""

    node: str
    gpus: tuple[str, ...] = ()


class Inventory(Value):
    """What a target has, as of its last check.

    No nodes means that it has none now: jobs wait for one. With `own_queue` it takes every job and
    decides itself when it starts; nodes are then only displayed.
    """

    nodes: tuple[Node, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    own_queue: bool = False
    details: dict[str, str] = {}  # python, disk, engine …: only displayed
    # a node silent for longer than this is lost: its work may be retried on another node
    lost_after_seconds: float | None = None

    @property
    def has_changing_nodes(self) -> bool:
        """Return whether jobs may find other nodes here than the last one did."""
        return not self.own_queue and (len(self.nodes) != 1 or bool(self.node_types))

    def at(self, now: float, before: "Inventory | None") -> "Inventory":
        """Return this inventory with the time since when each node is in its state."""
        known = {node.name: node for node in before.nodes} if before else {}
        nodes = tuple(node.at(now, known.get(node.name)) for node in self.nodes)
        return self.model_copy(update={"nodes": nodes})


class Target(Value):
    name: str
    kind: str
    config: dict[str, Any] = {}  # as it is stored: secrets are encrypted
    tags: dict[str, str] = {}  # labels such as a region: only displayed
    inventory: Inventory | None = None
    checked_at: float | None = None  # in seconds since 1970
    reason: str = ""  # why it cannot be used now; empty when it can


def check_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags, or raise Invalid with the rule that one of them breaks."""
    if len(tags) > _MAX_TAGS:
        raise Invalid(f"tags: at most {_MAX_TAGS} are allowed, got {len(tags)}", field="tags")
    for name, value in tags.items():
        if not name.strip() or "=" in name or not name.isprintable() or len(name) > _MAX_TAG_LENGTH:
            raise Invalid(
                f"tags: {name[:70]!a} is not a valid name; use 1 to {_MAX_TAG_LENGTH} printable "
                "characters without '='",
                field="tags",
            )
        if not value.isprintable() or len(value) > _MAX_TAG_LENGTH:
            raise Invalid(
                f"tags: the value of {name!r} must have at most {_MAX_TAG_LENGTH} printable "
                "characters",
                field="tags",
            )
    return tags


def no_target(name: str, names: Iterable[str]) -> str:
    """Return the message for a target that does not exist."""
    return f"no target named {name!r}; this server has {', '.join(names) or 'none'}"
