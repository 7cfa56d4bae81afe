"""What control works with: made once, by the composition root, and handed to every rule."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from retarget.blobs.folder import Blobs
from retarget.blobs.snapshots import Snapshots
from retarget.blobs.streams import Streams
from retarget.blobs.uploads import Uploads
from retarget.core.driver import Driver
from retarget.core.targets import Target
from retarget.store.artifacts import Artifacts
from retarget.store.environments import Environments
from retarget.store.experiments import Experiments
from retarget.store.jobs import Jobs
from retarget.store.logged_models import LoggedModels
from retarget.store.members import Members
from retarget.store.metrics import Metrics
from retarget.store.models import Models
from retarget.store.outputs import Outputs
from retarget.store.overview import Overview
from retarget.store.runs import Runs
from retarget.store.search import Searches
from retarget.store.targets import Targets
from retarget.store.track import TrackFiles


class Moving:
    """The targets that come, change or go just now, one step of each at a time.

    Meanwhile the loop places nothing on them, and clears nothing away.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._turn = threading.Condition()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @contextmanager
    def turn(self, name: str) -> Generator[None]:
        """Wait until nobody else moves this target, and move it."""
        with self._turn:
            self._turn.wait_for(lambda: name not in self._names)
            self._names.add(name)
        try:
            yield
        finally:
            with self._turn:
                self._names.remove(name)
                self._turn.notify_all()


@dataclass(frozen=True)
class Parts:
    jobs: Jobs
    members: Members
    outputs: Outputs
    targets: Targets
    environments: Environments
    experiments: Experiments
    runs: Runs
    metrics: Metrics
    track: TrackFiles
    overview: Overview
    artifacts: Artifacts
    logged_models: LoggedModels
    models: Models
    searches: Searches
    blobs: Blobs
    snapshots: Snapshots
    streams: Streams
    uploads: Uploads
    connect: Callable[[Target], Driver]
    url: str  # where runners find this server
    secret: bytes  # what the tokens of attempts are derived from
    wake: Callable[[], None]  # there is something for the loop to do
    notify: Callable[[str], None]  # this job has moved, or said something
    # the targets that this server makes itself, each with the settings that it sets itself
    own: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    moving: Moving = field(default_factory=Moving)
    now: Callable[[], float] = time.time

    def driver(self, target: str) -> Driver:
        return self.connect(self.targets.find(target))
