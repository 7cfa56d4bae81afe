"""Checks targets: new ones at once, and again those that cannot be used or may have changed."""

import math
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from retarget.control.attempt_table import AttemptTable
from retarget.control.context import Context
from retarget.control.executors import Lane, TargetExecutors
from retarget.control.known_targets import KnownTargets
from retarget.control.targets import check
from retarget.core.errors import NotFound, TargetUnreachable
from retarget.core.jobs import Attempt
from retarget.core.targets import Inventory, Target

_UNUSABLE_RECHECK_SECONDS = 15.0  # for a target or node that cannot be used, or without nodes
_POOL_RECHECK_SECONDS = 60.0  # for a target whose nodes may change
_SILENT_RECHECK_SECONDS = 3.0  # for a target with a silent launch


class TargetChecks:
    """Thread-safe: the loop starts checks, and launches that failed wait for one.

    One lock per target lets the launches that failed together share a check.
    """

    def __init__(
        self, table: AttemptTable, executors: TargetExecutors, targets: KnownTargets
    ) -> None:
        self._table = table
        self._executors = executors
        self._targets = targets
        self._started_at: dict[str, float] = {}  # when this server last started a check of a target
        # of the last check of each target: when it began, and what it returned
        self._results: dict[str, tuple[float, Inventory | None]] = {}
        self._locks = defaultdict[str, threading.Lock](threading.Lock)

    def start_due(self, targets: Sequence[Target]) -> None:
        """Start a check of the targets that are due for one."""
        now, silent = self._table.clock(), self._table.silent_targets()
        for target in targets:
            started_at = self._started_at.get(target.name)
            if started_at is None or now - started_at > _recheck_seconds(target, silent):
                self._started_at[target.name] = now
                self._executors.submit(
                    target.name,
                    Lane.WATCH,
                    f"check {target.name}",
                    partial(_check, self._targets.context(target.name), target),
                )

    def is_unavailable(self, context: Context, attempt: Attempt, *, since: float) -> bool:
        """Return whether a node of the attempt is unavailable, as of a check that began `since`."""
        with self._locks[attempt.target]:
            started_at, inventory = self._results.get(attempt.target, (-math.inf, None))
            if started_at < since:
                started_at = self._started_at[attempt.target] = self._table.clock()
                inventory = None
                with suppress(TargetUnreachable):
                    inventory = check(context, context.store.targets.find(attempt.target))
                self._results[attempt.target] = started_at, inventory
        if inventory is None:
            return True
        available = {node.name for node in inventory.nodes if node.is_ready}
        return any(allocation.node not in available for allocation in attempt.allocations)


def _check(context: Context, target: Target) -> None:
    with suppress(TargetUnreachable, NotFound):  # stored as the target's reason; detached
        check(context, target)
    context.bus.wake()


def _recheck_seconds(target: Target, silent: set[str]) -> float:
    inventory = target.inventory or Inventory(own_queue=True)
    has_no_nodes = not (inventory.own_queue or inventory.nodes or inventory.node_types)
    if target.reason or has_no_nodes or not all(node.is_ready for node in inventory.nodes):
        return _UNUSABLE_RECHECK_SECONDS
    if target.name in silent:
        return _SILENT_RECHECK_SECONDS
    return _POOL_RECHECK_SECONDS if inventory.has_changing_nodes else math.inf
