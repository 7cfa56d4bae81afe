"""Places the jobs at the head of each queue, and explains why the others wait."""

from collections.abc import Iterator, Sequence

from retarget.control.attempt_table import AttemptTable
from retarget.control.context import Context
from retarget.control.known_targets import KnownTargets
from retarget.control.place import Placement, place, waiting_reason
from retarget.core.errors import Conflict
from retarget.core.jobs import Attempt, Job
from retarget.core.names import attempt_key
from retarget.core.targets import Target

_MAX_EXPLAINED_JOBS = 64  # at the head of a queue: they get a detailed reason
_MAX_PLACED_JOBS = 2  # of a queue, in a round between two polls

Pair = tuple[Job, Attempt]
Reason = tuple[Job, str]


class Placer:
    """Only the loop calls it, from its one thread."""

    def __init__(self, context: Context, table: AttemptTable, targets: KnownTargets) -> None:
        self._context = context
        self._table = table
        self._targets = targets

    def place(self, targets: Sequence[Target], *, explain: bool) -> tuple[list[Pair], list[Reason]]:
        """Place what fits. Return the live attempts, and the reasons of the jobs that wait.

        The reasons are complete only with `explain`: they take longer than placing.
        """
        limit = _MAX_EXPLAINED_JOBS if explain else _MAX_PLACED_JOBS
        targets = [target for target in targets if not self._targets.is_locked(target.name)]
        queues = {
            target.name: self._context.store.jobs.queued(target.name, limit=limit)
            for target in targets
        }
        live = [
            pair
            for pair in self._context.store.jobs.live()
            if self._targets.is_held(pair[1].target)
        ]
        reasons = list[Reason]()
        self._table.keep(attempt for _, attempt in live)
        for target in targets:
            queued = queues[target.name]
            if queued and (target.inventory is None or target.reason):
                reason = f"target {target.name!r} cannot be used: {target.reason}"
                reasons += [(job, reason) for job in queued]
            elif queued and target.inventory is not None:
                on_target = [pair for pair in live if pair[1].target == target.name]
                placements = place(queued, on_target, target.inventory)
                live += self._start_all(target, placements)
                if explain or not placements[0].starts:  # not in each round while jobs start
                    reasons += _reasons(target, placements, explain=explain)
                if len(queued) == limit and placements[-1].starts:
                    self._context.bus.wake()  # more jobs may fit than this round looked at
        return live, reasons

    def _start_all(self, target: Target, placements: Sequence[Placement]) -> Iterator[Pair]:
        for placement in placements:
            if placement.starts:
                try:
                    started = self._start(placement, target)
                except Conflict:  # a user or another server changed it: next round
                    self._targets.expire()
                    return
                self._targets.count_placement(target.name)
                yield started

    def _start(self, placement: Placement, target: Target) -> Pair:
        job, now = placement.job, self._context.clock()
        attempt = Attempt(
            key=attempt_key(job.id, job.attempt + 1),
            job_id=job.id,
            number=job.attempt + 1,
            target=target.name,
            allocations=placement.allocations,
            lost_after_seconds=_lost_after(job, target),
            created_at=now,
        )
        placed = self._targets.context(target.name).store.jobs.place(
            job,
            attempt,
            reason=f"starting the runner on {target.name}",
            now=now,
            placements=self._targets.placements(target.name),
        )
        self._table.add(attempt)
        return placed, attempt


def _lost_after(job: Job, target: Target) -> float | None:
    """Return the limit of the next attempt. Without a retry after it, it waits for its host."""
    if target.inventory is None or not job.retries_left:
        return None
    return target.inventory.lost_after_seconds


def _reasons(target: Target, placements: Sequence[Placement], *, explain: bool) -> list[Reason]:
    """Return the reasons of the jobs that wait: all of them, or only those without one."""
    initial = waiting_reason(target.name)
    waiting = [placement for placement in placements if not placement.starts]
    return [
        (placement.job, placement.reason)
        for placement in waiting
        if explain or placement.job.reason == initial
    ]
