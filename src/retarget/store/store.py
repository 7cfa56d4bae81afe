"""The store: every noun in SQL, over one engine."""

from collections.abc import Callable
from copy import copy

from sqlalchemy import Engine

from retarget.core.leases import Lease
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


class Store:
    """`server` returns the incarnation of this server, which holds its locks on targets."""

    def __init__(self, engine: Engine, *, server: Callable[[], str]) -> None:
        self.jobs = Jobs(engine)
        self.node_reports = NodeReports(engine)
        self.outputs = Outputs(engine)
        self.targets = Targets(engine)
        self.environments = Environments(engine)
        self.locks = Locks(engine)
        self.experiments = Experiments(engine)
        self.runs = Runs(engine)
        self.metrics = Metrics(engine)
        self.track = TrackFiles(engine)
        self.overview = Overview(engine)
        self.artifacts = Artifacts(engine)
        self.logged_models = LoggedModels(engine)
        self.models = Models(engine)
        self.searches = Searches(engine)
        self.secrets = Secrets(engine)
        self.kept_files = KeptFiles(engine)
        self.target_locks = TargetLocks(engine, server=server)
        self.experiment_choices = ExperimentChoices(engine)

    def under(self, lease: Lease) -> "Store":
        """Return the store for what is decided under this lease.

        Writes to jobs and targets fail once another server has taken it.
        """
        store = copy(self)
        store.jobs = self.jobs.under(lease)
        store.targets = self.targets.under(lease)
        return store
