"""The targets as the loop knows them, and the leases under which it acts on them."""

import math
from collections.abc import Mapping

from retarget.control.attempt_table import AttemptTable
from retarget.control.context import Context
from retarget.core.leases import Lease
from retarget.core.targets import Target


class KnownTargets:
    """The loop changes it. `find` may be called from any thread, as it reads one attribute once.

    The loop takes the context of a target when it decides what to do. What a thread does then, and
    its writes, count only as long as the lease of that moment is not taken over.
    """

    def __init__(self, context: Context, table: AttemptTable, *, interval_seconds: float) -> None:
        self._context = context
        self._table = table
        self._interval_seconds = interval_seconds
        self._targets: dict[str, Target] = {}  # replaced, never changed
        self._placements: dict[str, int] = {}  # placement counter of each target, if known
        self._locked: set[str] = set()  # targets that are being changed
        self._read = (-1, -math.inf)  # change counter and time of the last read
        self._leases: Mapping[str, Lease] = {}  # that this server holds
        self._contexts: dict[str, Context] = {}  # for what is done under each of them

    def refresh(self) -> list[Target]:
        """Return the targets that this server looks after.

        They are read after a change by this server, and once per interval. Launches on a target
        whose settings have changed are looked up again, and so are all after a change of its lease.
        """
        self._refresh_leases()
        now = self._table.clock()
        changes = self._context.store.targets.changes + self._context.store.target_locks.changes
        if changes != self._read[0] or now - self._read[1] >= self._interval_seconds:
            self._read = changes, now
            # read before the settings: a target that changes in between rejects placements
            self._placements = self._context.store.targets.all_placements()
            self._locked = self._context.store.target_locks.held()
            before = self._targets
            self._targets = {target.name: target for target in self._context.store.targets.list()}
            changed = {
                name
                for name, target in self._targets.items()
                if name in before and target.config != before[name].config
            }
            if changed:
                self._table.change_settings(changed)
        return [target for name, target in self._targets.items() if name in self._contexts]

    def _refresh_leases(self) -> None:
        before, self._leases = self._leases, self._context.links.leases.held()
        if self._leases == before:
            return
        changed = {name for name, lease in self._leases.items() if before.get(name) != lease}
        lost = before.keys() - self._leases.keys()
        contexts = {name: self._context.under(self._leases[name]) for name in changed}
        replaced = changed | lost
        unchanged = {name: old for name, old in self._contexts.items() if name not in replaced}
        self._contexts = unchanged | contexts
        self._table.drop(replaced)
        self.expire()

    def is_held(self, name: str) -> bool:
        """Whether this server looks after the target."""
        return name in self._contexts

    def is_known(self, name: str) -> bool:
        """Whether the target existed at the last read."""
        return name in self._targets

    def is_locked(self, name: str) -> bool:
        """Whether the target is being attached, changed or detached."""
        return name in self._locked

    def context(self, name: str) -> Context:
        """Return the context of what is decided now about a target that this server looks after."""
        return self._contexts[name]

    def expire(self) -> None:
        """Read the targets again in the next round."""
        self._read = -1, -math.inf

    def find(self, name: str) -> Target:
        """Return a target, or raise NotFound."""
        return self._targets.get(name) or self._context.store.targets.find(name)

    def placements(self, name: str) -> int:
        """Return how many attempts were ever placed on a target, as `Jobs.place` needs it."""
        return self._placements.get(name, -1)

    def count_placement(self, name: str) -> None:
        self._placements[name] += 1
