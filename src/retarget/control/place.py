"""Who runs now, where, and what the others wait for. Pure: the whole policy can be read here.

Jobs start strictly in order, priority first and then age: none is overtaken for ever by smaller
ones. A job that must wait says for what, and behind whom.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from retarget.core.jobs import Attempt, Job, JobSpec, Share
from retarget.core.targets import Facts, Node
from retarget.core.units import show_amount, show_memory


@dataclass(frozen=True)
class Placement:
    """What is to happen to a queued job: it starts with these shares, or waits for a reason."""

    job: Job
    shares: tuple[Share, ...] = ()
    reason: str = ""
    behind: tuple[str, ...] = ()  # names of the jobs it waits for

    @property
    def starts(self) -> bool:
        return not self.reason


@dataclass
class _Room:
    """What one node has left."""

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


def never_fits(spec: JobSpec, facts: Facts, target: str) -> str | None:
    """Return why this could never run there, with the numbers, or None."""
    if not facts.nodes:
        return None  # an engine with a queue of its own
    if spec.nodes > len(facts.nodes):
        has = len(facts.nodes)
        return f"nodes: the job asks for {spec.nodes}; target {target!r} has {has}"
    unknown = [node for node in facts.nodes if node.reason and not node.cpus]
    if unknown:
        return None  # they have not told yet what they have
    most = _largest(facts.nodes)
    if spec.cpus > most.cpus:
        asked, has = show_amount(spec.cpus), show_amount(most.cpus)
        return f"cpus: the job asks for {asked} on each node; target {target!r} has {has}"
    if (spec.memory or 0) > most.memory:
        asked, has = show_memory(spec.memory or 0), show_memory(most.memory)
        return f"memory: the job asks for {asked} on each node; target {target!r} has {has}"
    if spec.gpus > len(most.gpus):
        return f"gpus: the job asks for {spec.gpus}; target {target!r} has {len(most.gpus)}"
    if sum(_could_hold(node, spec) for node in facts.nodes) < spec.nodes:
        return f"target {target!r} has no {spec.nodes} node(s) with all of that at once"
    return None


def place(
    queued: Sequence[Job], live: Sequence[tuple[Job, Attempt]], facts: Facts
) -> list[Placement]:
    """Decide for one target. `queued` is in order; `live` is what holds its shares now."""
    rooms = [
        _Room(node, node.cpus, node.memory, [gpu.id for gpu in node.gpus])
        for node in facts.nodes
        if not node.reason
    ]
    for job, attempt in live:
        _hold(rooms, job, attempt.shares)
    aside = [_aside(node) for node in facts.nodes if node.reason]
    decided: list[Placement] = []
    first_waiting: Job | None = None
    for job in queued:
        if first_waiting is not None:
            decided.append(_behind(job, first_waiting))
            continue
        placement = _try(job, rooms, aside)
        decided.append(placement)
        if placement.starts:
            _hold(rooms, job, placement.shares)
        else:
            first_waiting = job
    return decided


def _aside(node: Node) -> str:
    return f"{node.name} is set aside: {node.reason.removeprefix(f'{node.name}: ')}"


def _try(job: Job, rooms: list[_Room], aside: Sequence[str]) -> Placement:
    if not rooms and not aside:
        return Placement(job)  # an engine with a queue of its own
    fitting = [room for room in rooms if room.fits(job.spec)]
    if len(fitting) < job.spec.nodes:
        return _wait(job, rooms, aside)
    chosen = fitting[: job.spec.nodes]
    shares = tuple(
        Share(node=room.node.name, gpus=tuple(room.gpus[: job.spec.gpus])) for room in chosen
    )
    return Placement(job, shares=shares)


def _hold(rooms: list[_Room], job: Job, shares: Sequence[Share]) -> None:
    by_name = {room.node.name: room for room in rooms}
    for share in shares:
        if share.node in by_name:
            by_name[share.node].take(job, share.gpus)


def _wait(job: Job, rooms: list[_Room], aside: Sequence[str]) -> Placement:
    users = tuple(dict.fromkeys(name for room in rooms for name in room.users))
    wants = f"{job.spec.nodes} free nodes" if job.spec.nodes > 1 else "a node"
    if rooms:
        room = max(rooms, key=lambda room: (room.fits(job.spec), room.cpus))
        wants = "; ".join(_lacking(job.spec, room)) or wants
    others = "".join(f"; {each}" for each in aside)
    return Placement(job, reason=f"waiting for {wants}{_held_by(users)}{others}", behind=users)


def _lacking(spec: JobSpec, room: _Room) -> list[str]:
    lacking: list[str] = []
    if spec.cpus > room.cpus:
        wanted = _counted(spec.cpus, "CPU")
        has = show_amount(room.node.cpus)
        lacking.append(f"{wanted} ({show_amount(max(room.cpus, 0))} of {has} free)")
    if (spec.memory or 0) > room.memory:
        free = show_memory(max(room.memory, 0))
        has = show_memory(room.node.memory)
        lacking.append(f"{show_memory(spec.memory or 0)} of memory ({free} of {has} free)")
    if spec.gpus > len(room.gpus):
        free, has = len(room.gpus), len(room.node.gpus)
        lacking.append(f"{_counted(spec.gpus, 'GPU')} ({free} of {has} free)")
    return lacking


def _behind(job: Job, ahead: Job) -> Placement:
    why = "is ahead of it in the queue"
    if ahead.spec.priority > job.spec.priority:
        why = f"has a higher priority ({ahead.spec.priority})"
    return Placement(job, reason=f"waiting behind {ahead.name}, which {why}", behind=(ahead.name,))


def _held_by(users: Sequence[str]) -> str:
    if not users:
        return ""
    named = ", ".join(users[:3])
    return f"; held by {named}" + (f" and {len(users) - 3} more" if len(users) > 3 else "")


def _counted(number: float, noun: str) -> str:
    return f"{show_amount(number)} {noun}{'' if number == 1 else 's'}"


def _largest(nodes: Sequence[Node]) -> Node:
    return Node(
        cpus=max(node.cpus for node in nodes),
        memory=max(node.memory for node in nodes),
        gpus=max((node.gpus for node in nodes), key=len),
    )


def _could_hold(node: Node, spec: JobSpec) -> bool:
    return _Room(node, node.cpus, node.memory, [gpu.id for gpu in node.gpus]).fits(spec)
