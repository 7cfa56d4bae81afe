"""The dependencies of the control functions, created once by the composition root."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from retarget.blobs.folder import Blobs
from retarget.blobs.snapshots import Snapshots
from retarget.blobs.streams import Streams
from retarget.blobs.uploads import Uploads
from retarget.control.leases import LeaseKeeper
from retarget.core.conda_policy import AUTO
from retarget.core.driver import ActingLease, ActsUnderLease, Driver
from retarget.core.kept import DEFAULT_KEEP_LIMIT
from retarget.core.leases import Lease, lease_name
from retarget.core.targets import Target
from retarget.store.artifacts import Artifacts
from retarget.store.environments import Environments
from retarget.store.experiment_choices import ExperimentChoices
from retarget.store.experiments import Experiments
from retarget.store.jobs import Jobs
from retarget.store.kept import KeptFiles
from retarget.store.locks import Locks
from retarget.store.logged_models import LoggedModels
from retarget.store.metrics import Metrics
from retarget.store.models import Models
from retarget.store.node_reports import NodeReports
from retarget.store.outputs import Outputs
from retarget.store.overview import Overview
from retarget.store.runs import Runs
from retarget.store.search import Searches
from retarget.store.secrets import Secrets
from retarget.store.target_locks import TargetLocks
from retarget.store.targets import Targets
from retarget.store.track import TrackFiles


@dataclass(frozen=True)
class Context:
    jobs: Jobs
    node_reports: NodeReports
    outputs: Outputs
    targets: Targets
    environments: Environments
    locks: Locks
    experiments: Experiments
    runs: Runs
    metrics: Metrics
    track: TrackFiles
    overview: Overview
    artifacts: Artifacts
    logged_models: LoggedModels
    models: Models
    searches: Searches
    secrets: Secrets
    kept_files: KeptFiles
    target_locks: TargetLocks
    experiment_choices: ExperimentChoices
    leases: LeaseKeeper
    blobs: Blobs
    snapshots: Snapshots
    streams: Streams
    uploads: Uploads
    connect: Callable[[Target], Driver]
    url: str  # the address of this server for runners
    secret: bytes  # the key that the credentials of attempts are derived from
    wake: Callable[[], None]  # wakes the loop: there is something to do
    notify: Callable[
        [str], None
    ]  # announces that this job's log has changed; rows do it themselves
    sync: Callable[[], None]  # makes everything recorded so far outlive a power cut
    # settings that the server sets itself, by the name of the target that it creates itself
    managed_settings: Mapping[str, frozenset[str]] = field(
        default_factory=dict[str, frozenset[str]]
    )
    conda_policy: str = AUTO  # whether PyPI may replace conda channels
    keep_limit: int = DEFAULT_KEEP_LIMIT  # bytes that a job may keep outside of outputs/
    now: Callable[[], float] = time.time

    def driver(self, target: str) -> Driver:
        return self.connect(self.targets.find(target))

    def under(self, lease: Lease) -> "Context":
        """Return the context of what is decided under this lease.

        Its writes fail, and hosts refuse its requests, once another server has taken the lease.
        """
        return replace(
            self,
            jobs=self.jobs.under(lease),
            targets=self.targets.under(lease),
            connect=partial(_connect_under, self, lease),
        )


def _connect_under(context: Context, lease: Lease, target: Target) -> Driver:
    context.leases.check(lease)
    driver = context.connect(target)
    if isinstance(driver, ActsUnderLease):
        name = lease_name(context.secret, lease.target)
        driver.act_under(ActingLease(name, lease.epoch, partial(context.leases.check, lease)))
    return driver
