"""What drivers keep open between calls, such as connections: its owners, and its end."""

import os
import threading
from typing import Any, Protocol, TypeVar

from retarget.core.errors import TargetUnreachable


class Owner(Protocol):
    """Keeps things of one sort open, for all drivers of a server. Thread-safe."""

    def __init__(self, links: "Links") -> None: ...

    def close(self) -> None:
        """Close all of it. The server stops; what runs on targets continues."""
        ...


_Owner = TypeVar("_Owner", bound=Owner)


class Links:
    """One owner of each class that drivers have asked for.

    A driver lives for one request and keeps no state. What must stay open belongs to an owner,
    which the driver's own module defines: this class knows no kind of target.
    """

    def __init__(self) -> None:
        # by process, too: a fork has neither the threads nor the connections of its parent
        self._owners: dict[tuple[int, type], Any] = {}
        self._is_closed = False
        self._lock = threading.RLock()  # an owner may ask for another one

    def get(self, owner: type[_Owner]) -> _Owner:
        """Return the owner of this class. The first call makes it."""
        key = os.getpid(), owner
        with self._lock:
            if key not in self._owners:
                if self._is_closed:
                    raise TargetUnreachable("the server is stopping")
                self._owners[key] = owner(self)
            return self._owners[key]

    def close(self) -> None:
        """Close all owners, the last one first: it may use those that were made before it."""
        with self._lock:
            self._is_closed = True
            owners = [owner for (pid, _), owner in self._owners.items() if pid == os.getpid()]
        for owner in reversed(owners):
            owner.close()
