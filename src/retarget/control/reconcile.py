"""The reconcile loop: has attempts placed, launched, watched, canceled and cleaned up.

Events wake it; its timer is only the fallback. Nothing is lost when it is killed: every step can
be derived from the store and repeated.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from itertools import groupby

from retarget.control.attempt_table import AttemptTable
from retarget.control.cleaner import Cleaner
from retarget.control.context import Context
from retarget.control.executors import TargetExecutors
from retarget.control.known_targets import KnownTargets
from retarget.control.launcher import Launcher
from retarget.control.placer import Placer
from retarget.control.target_checks import TargetChecks
from retarget.control.watcher import Watcher
from retarget.core.errors import DatabaseUnreachable, RetargetError

_log = logging.getLogger(__name__)
_INTERVAL_SECONDS = 1.0  # between two polls of the targets


class Loop:
    """One thread decides what is due and writes placements; all work on targets is in others."""

    def __init__(
        self,
        context: Context,
        work_available: threading.Event,
        *,
        interval_seconds: float = _INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._work_available = work_available  # `context.bus.wake` sets it
        self._stopping = threading.Event()
        self._context = context
        self._clock = clock
        self._polled = -math.inf
        self._table = table = AttemptTable(clock=clock)
        self._executors = executors = TargetExecutors()
        self._targets = KnownTargets(context, table, interval_seconds=interval_seconds)
        self._checks = TargetChecks(table, executors, self._targets)
        self._placer = Placer(context, table, self._targets)
        self._launcher = Launcher(
            table,
            executors=executors,
            targets=self._targets,
            checks=self._checks,
            retry_seconds=interval_seconds,
        )
        self._watcher = Watcher(table, executors, self._targets)
        self._cleaner = Cleaner(context, table, executors, self._targets)
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)

    def start(self) -> None:
        self._work_available.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop the loop. The next one continues its work."""
        self._stopping.set()
        self._work_available.set()
        self._thread.join(timeout=10)
        self._executors.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._work_available.wait(self._seconds_until_due())
            self._work_available.clear()
            try:
                self.round()
            except DatabaseUnreachable:  # is logged where it was detected
                self._stopping.wait(self._interval_seconds)
            except RetargetError as error:
                _log.error("a round of the reconcile loop failed: %s", error)
                self._stopping.wait(self._interval_seconds)
            except Exception:  # noqa: BLE001 - the edge of the loop: one failed round must not be the last
                _log.exception("a round of the reconcile loop failed")
                self._stopping.wait(self._interval_seconds)

    def _seconds_until_due(self) -> float:
        launch = self._table.next_launch() - self._clock()
        return max(0.0, min(self._interval_seconds, launch))

    def round(self) -> None:
        """Do everything that is due now."""
        now = self._clock()
        due = now - self._polled >= self._interval_seconds
        targets = self._targets.refresh()
        self._checks.start_due(targets)
        live, reasons = self._placer.place(targets, explain=due)
        self._launcher.launch(live)
        self._watcher.cancel(live)
        for target, group in groupby(reasons, key=lambda reason: reason[0].spec.target):
            self._targets.context(target).store.jobs.explain_all(list(group))
        if due:
            self._polled = now
            self._watcher.poll(live)
            self._cleaner.clean(idle=not reasons)
