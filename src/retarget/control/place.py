"""Decides which queued jobs start, on which nodes, and why the others wait. Pure functions.

Jobs start strictly in order of priority, then age: smaller jobs never overtake a large one. A job
that waits says what it waits for, and which jobs are ahead of it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from retarget.core.jobs import Allocation, Attempt, Job, JobSpec
from retarget.core.targets import Gpu, Inventory, Node, NodeState, NodeType
from retarget.core.units import show_amount, show_memory

_MIN_MEMORY = 2**20  # no interpreter starts with less: a smaller number lacks its unit


@dataclass(frozen=True)
class Shortage:
    """One resource of which the node that comes closest has too little."""

    resource: Literal["cpus", "memory", "gpus"]
    requested: float
    free: float
    total: float


@dataclass(frozen=True)
class Demand:
    """What a waiting job needs beyond what is free: so many nodes, each with these resources."""

    nodes: int
    cpus: float
    memory: int
    gpus: int
    shortages: tuple[Shortage, ...] = ()  # of the node that comes closest, if one could hold it
    node_types: tuple[str, ...] = ()  # of which the target could add a node that would hold it


@dataclass(frozen=True)
class Placement:
    """The decision about a queued job: it starts with these allocations, or waits for a demand."""

    job: Job
    allocations: tuple[Allocation, ...] = ()
    demand: Demand | None = None
    reason: str = ""  # the demand in a sentence
    behind: tuple[str, ...] = ()  # names of the jobs it waits for

    @property
    def starts(self) -> bool:
        return self.demand is None


@dataclass
class _Free:
    """The free resources of one node."""

    node: Node
    cpus: float
    memory: int
    gpus: list[str]
    users: list[str] = field(default_factory=list[str])

    def fits(self, spec: JobSpec) -> bool:
        return (
            self.cpus >= spec.cpus
            and self.memory >= (spec.memory or 0)
            and len(self.gpus) >= spec.gpus
        )

    def take(self, job: Job, gpus: Iterable[str]) -> None:
        self.cpus -= job.spec.cpus
        self.memory -= job.spec.memory or 0
        self.gpus = [gpu for gpu in self.gpus if gpu not in set(gpus)]
        self.users.append(job.name)


def never_fits(spec: JobSpec, inventory: Inventory, target: str) -> str | None:
    """Return why this job can never run on the target, with the numbers, or None."""
    if spec.memory is not None and spec.memory < _MIN_MEMORY:
        requested, minimum = show_memory(spec.memory), show_memory(_MIN_MEMORY)
        return f"memory: the job requests {requested} per node; the minimum is {minimum}"
    if inventory.own_queue or not (inventory.nodes or inventory.node_types):
        return None  # the target decides, or it is not known yet what nodes it will have
    possible = _possible_nodes(inventory)
    if spec.nodes > sum(count for _, count in possible):
        available = sum(count for _, count in possible)
        verb = "can have" if inventory.node_types else "has"
        return f"nodes: the job requests {spec.nodes}; target {target!r} {verb} {available}"
    if any(not node.is_ready and not node.cpus for node in inventory.nodes):
        return None  # their resources are not known yet
    return _exceeds(spec, possible, target)


def place(
    queued: Sequence[Job], live: Sequence[tuple[Job, Attempt]], inventory: Inventory
) -> list[Placement]:
    """Decide for one target. `queued` is in order; `live` holds allocations now."""
    if inventory.own_queue:
        return [Placement(job) for job in queued]
    nodes = [_free(node) for node in inventory.nodes if node.is_ready]
    for job, attempt in live:
        _hold(nodes, job, attempt.allocations)
    placements: list[Placement] = []
    first_waiting: Job | None = None
    for job in queued:
        if first_waiting is not None:
            placements.append(_behind(job, first_waiting))
            continue
        placement = _try(job, nodes, inventory)
        placements.append(placement)
        if placement.starts:
            _hold(nodes, job, placement.allocations)
        else:
            first_waiting = job
    return placements


def waiting_reason(target: str) -> str:
    """Return the reason of a job far back in the queue. Those at its head get a better one."""
    return f"waiting in the queue of {target}"


def _try(job: Job, nodes: list[_Free], inventory: Inventory) -> Placement:
    fitting = [node for node in nodes if node.fits(job.spec)]
    if len(fitting) < job.spec.nodes:
        return _wait(job, nodes, len(fitting), inventory)
    chosen = fitting[: job.spec.nodes]
    allocations = tuple(
        Allocation(node=free.node.name, gpus=tuple(free.gpus[: job.spec.gpus])) for free in chosen
    )
    return Placement(job, allocations=allocations)


def _hold(nodes: list[_Free], job: Job, allocations: Sequence[Allocation]) -> None:
    by_name = {free.node.name: free for free in nodes}
    for allocation in allocations:
        if allocation.node in by_name:
            by_name[allocation.node].take(job, allocation.gpus)


def _wait(job: Job, nodes: list[_Free], fitting: int, inventory: Inventory) -> Placement:
    users = tuple(dict.fromkeys(name for node in nodes for name in node.users))
    demand = replace(
        _demand(job.spec, nodes=job.spec.nodes - fitting),
        shortages=_shortages(job.spec, nodes),
        node_types=_addable(job.spec, inventory),
    )
    unavailable = [_explain(node) for node in inventory.nodes if not node.is_ready]
    missing = _describe(demand, job.spec, has_nodes=bool(inventory.nodes))
    reason = "; ".join([f"waiting for {missing}{_held_by(users)}", *unavailable])
    return Placement(job, demand=demand, reason=reason, behind=users)


def _demand(spec: JobSpec, *, nodes: int) -> Demand:
    return Demand(nodes=nodes, cpus=spec.cpus, memory=spec.memory or 0, gpus=spec.gpus)


def _shortages(spec: JobSpec, nodes: Sequence[_Free]) -> tuple[Shortage, ...]:
    """Return what the node that comes closest lacks; nothing if only more nodes are missing."""
    if not nodes:
        return ()
    best = max(nodes, key=lambda node: (node.fits(spec), _could_hold(node.node, spec), node.cpus))
    amounts: list[Shortage] = [
        Shortage("cpus", spec.cpus, max(best.cpus, 0), best.node.cpus),
        Shortage("memory", spec.memory or 0, max(best.memory, 0), best.node.memory),
        Shortage("gpus", spec.gpus, len(best.gpus), len(best.node.gpus)),
    ]
    return tuple(amount for amount in amounts if amount.requested > amount.free)


def _addable(spec: JobSpec, inventory: Inventory) -> tuple[str, ...]:
    """Return the node types of which the target can add a node that would hold the job."""
    counts = Counter(node.type for node in inventory.nodes)
    return tuple(
        node_type.name
        for node_type in inventory.node_types
        if counts[node_type.name] < node_type.max_nodes and _could_hold(_node_of(node_type), spec)
    )


def _describe(demand: Demand, spec: JobSpec, *, has_nodes: bool) -> str:
    """Return what a job waits for, in words."""
    hopeless = any(shortage.requested > shortage.total for shortage in demand.shortages)
    if demand.node_types and (hopeless or not has_nodes):
        return f"a node of type {' or '.join(demand.node_types)}"
    if demand.shortages:
        return "; ".join(_describe_shortage(shortage) for shortage in demand.shortages)
    if not has_nodes:
        return f"a node; target {spec.target!r} has none now"
    return f"{spec.nodes} free nodes" if spec.nodes > 1 else "a node"


def _describe_shortage(shortage: Shortage) -> str:
    if shortage.resource == "memory":
        requested, free, total = (
            show_memory(int(amount))
            for amount in (shortage.requested, shortage.free, shortage.total)
        )
        return f"{requested} of memory ({free} of {total} free)"
    noun = "CPU" if shortage.resource == "cpus" else "GPU"
    free, total = show_amount(shortage.free), show_amount(shortage.total)
    return f"{_counted(shortage.requested, noun)} ({free} of {total} free)"


def _behind(job: Job, ahead: Job) -> Placement:
    why = "was submitted earlier"
    if ahead.spec.priority > job.spec.priority:
        why = f"has a higher priority ({ahead.spec.priority})"
    return Placement(
        job,
        demand=_demand(job.spec, nodes=job.spec.nodes),
        reason=f"waiting behind {ahead.name}, which {why}",
        behind=(ahead.name,),
    )


def _explain(node: Node) -> str:
    why = node.unavailable.removeprefix(f"{node.name}: ")
    return (
        f"{node.name} is {node.state.value if node.state is not NodeState.READY else 'unavailable'}"
        + (f": {why}" if why else "")
    )


def _held_by(users: Sequence[str]) -> str:
    if not users:
        return ""
    names = ", ".join(users[:3])
    return f"; held by {names}" + (f" and {len(users) - 3} more" if len(users) > 3 else "")


def _counted(number: float, noun: str) -> str:
    return f"{show_amount(number)} {noun}{'' if number == 1 else 's'}"


def _exceeds(spec: JobSpec, possible: Sequence[tuple[Node, int]], target: str) -> str | None:
    nodes = [node for node, count in possible if count]
    largest = _largest(nodes)
    if spec.cpus > largest.cpus:
        requested, available = show_amount(spec.cpus), show_amount(largest.cpus)
        return f"cpus: the job requests {requested} per node; target {target!r} has {available}"
    if (spec.memory or 0) > largest.memory:
        requested, available = show_memory(spec.memory or 0), show_memory(largest.memory)
        return f"memory: the job requests {requested} per node; target {target!r} has {available}"
    if spec.gpus > len(largest.gpus):
        available = len(largest.gpus)
        return f"gpus: the job requests {spec.gpus} per node; target {target!r} has {available}"
    if sum(count for node, count in possible if _could_hold(node, spec)) < spec.nodes:
        return f"target {target!r} does not have {spec.nodes} node(s) with all of these resources"
    return None


def _possible_nodes(inventory: Inventory) -> list[tuple[Node, int]]:
    """Return the nodes that a target can have at once, each with how many of its kind."""
    types = {node_type.name for node_type in inventory.node_types}
    of_types = Counter(node.type for node in inventory.nodes)
    return [(node, 1) for node in inventory.nodes if node.type not in types] + [
        (_node_of(node_type), max(node_type.max_nodes, of_types[node_type.name]))
        for node_type in inventory.node_types
    ]


def _node_of(node_type: NodeType) -> Node:
    gpus = tuple(Gpu(id=str(number)) for number in range(node_type.gpus))
    return Node(cpus=node_type.cpus, memory=node_type.memory, gpus=gpus)


def _largest(nodes: Sequence[Node]) -> Node:
    return Node(
        cpus=max(node.cpus for node in nodes),
        memory=max(node.memory for node in nodes),
        gpus=max((node.gpus for node in nodes), key=len),
    )


def _free(node: Node) -> _Free:
    return _Free(node, node.cpus, node.memory, [gpu.id for gpu in node.gpus])


def _could_hold(node: Node, spec: JobSpec) -> bool:
    return _free(node).fits(spec)
