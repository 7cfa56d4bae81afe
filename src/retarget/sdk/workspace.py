"""The workspace: where one submits, and finds everything again."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from retarget.core.errors import Invalid
from retarget.core.home import Home, home_from
from retarget.core.states import JobState
from retarget.sdk import given
from retarget.sdk.background import Background
from retarget.sdk.http import Address, Connection, Elsewhere, Server
from retarget.sdk.jobs import Job, Jobs, wait_all
from retarget.sdk.models import Model, list_models, read_model
from retarget.sdk.records import KnownEnvironment, rows, view
from retarget.sdk.registry import Environments, send_context
from retarget.sdk.targets import Targets
from retarget.sdk.tracking import Experiment, list_experiments, read_experiment

if TYPE_CHECKING:  # what only a submission needs is imported there: most commands do without
    from retarget.sdk.environments import Environment
    from retarget.sdk.snapshot import Scan
    from retarget.sdk.submission import Options, Progress, Reading, Script, Work

_PLAN = {"target": str, "kind": str, "launch": dict[str, Any], "native": dict[str, Any]}
Folder = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose code the server already has."""

    spec: dict[str, Any]


class Workspace:
    """A server and all that is on it.

    Without `url` it is the one that `RETARGET_URL` and `RETARGET_TOKEN` name, else the one of this
    machine, which is started in the background when it is first needed.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self._home = home_from(os.environ)
        server = _server(self._home, url, token)
        self._connection = Connection(server, is_strange=isinstance(server, Elsewhere))

    @property
    def url(self) -> str:
        return self._connection.address.url

    @property
    def tracking_uri(self) -> str:
        """The address for `mlflow.set_tracking_uri`.

        MLflow's client takes the token from the variable MLFLOW_TRACKING_TOKEN, so it is put there.
        """
        address = self._connection.address
        os.environ["MLFLOW_TRACKING_TOKEN"] = address.token
        return address.url

    @property
    def jobs(self) -> Jobs:
        return Jobs(self._connection)

    @property
    def targets(self) -> Targets:
        return Targets(self._connection)

    @property
    def environments(self) -> Environments:
        return Environments(self._connection)

    def experiments(self) -> list[Experiment]:
        """List experiments, those where something happened last first."""
        return list_experiments(self._connection)

    def experiment(self, name: str, *, limit: int = 100) -> Experiment:
        """Return an experiment with its `limit` newest runs; NotFound if there is none."""
        return read_experiment(self._connection, name, limit)

    def models(self) -> list[Model]:
        """List registered models, by name."""
        return list_models(self._connection)

    def model(self, name: str) -> Model:
        """Return a registered model; NotFound if there is none."""
        return read_model(self._connection, name)

    def submit(
        self,
        script: "Script",
        *,
        code: Folder | None = None,
        target: str = "local",
        **options: "Unpack[Options]",
    ) -> Job:
        """Submit a script, or a command given as a list, and return its job at once.

        The folder `code` is sent as it is now: by default the current one if the script lies in
        it, else the script's own, and never `/` or the home folder. The script runs in a copy of
        it. Invalid says what is wrong with the request, such as more than the target will ever
        have; nothing is queued then.
        """
        return self.send(self.prepare(script, code=code, target=target, **options))

    def plan(
        self,
        script: "Script",
        *,
        code: Folder | None = None,
        target: str = "local",
        reading: "Reading | None" = None,
        **options: "Unpack[Options]",
    ) -> dict[str, Any]:
        """Return what `submit` would have the target start. Nothing is sent or stored."""
        from retarget.sdk.submission import work_of

        work = work_of(script, code, options.get("args"))
        spec = self._spec(work, target, options)
        found = self._scan(work, reading).manifest
        plan = view(self._connection.post("/api/jobs/plan", spec, repeatable=True), _PLAN)
        about = {"files": len(found.entries), "bytes": found.size, "snapshot": found.digest}
        return plan | {"code": {"folder": str(work.folder), **about}}

    def prepare(
        self,
        script: "Script",
        *,
        code: Folder | None = None,
        target: str = "local",
        reading: "Reading | None" = None,
        progress: "Progress | None" = None,
        **options: "Unpack[Options]",
    ) -> Prepared:
        """Do the first half of `submit`: send what the server lacks of the code.

        `reading` is told of the folder, and the files and bytes of it read so far; `progress` of
        the bytes sent and to send.
        """
        from retarget.sdk.snapshot import upload
        from retarget.sdk.submission import work_of
        from retarget.sdk.uploads import Uploads

        work = work_of(script, code, options.get("args"))
        spec = self._spec(work, target, options)
        self._send_context(options.get("environment"))
        ask = partial(self._connection.post, "/api/jobs/plan", spec, repeatable=True)
        snapshot = upload(self._scan(work, reading), Uploads(self._connection), progress, ask)
        return Prepared(spec | {"snapshot": snapshot})

    def prepare_build(
        self, environment: "Environment | KnownEnvironment | str", *, target: str = "local"
    ) -> Prepared:
        """Return a job that does nothing but need `environment`."""
        command = ["python", "-c", "pass"]
        definition = self._definition(environment)
        self._send_context(environment)
        return Prepared({"command": command, "target": target, "environment": definition})

    def send(self, prepared: Prepared) -> Job:
        """Do the second half of `submit`."""
        return Job(self._connection, self._connection.post("/api/jobs", prepared.spec))

    def send_all(self, prepared: Iterable[Prepared]) -> list[Job]:
        """Send many jobs at once, 1,000 at most: all of them are queued, or none is."""
        specs = [each.spec for each in prepared]
        if not specs:
            return []
        found = self._connection.post("/api/jobs/batch", {"jobs": specs})
        return [Job(self._connection, told) for told in rows(found)]

    def wait_all(self, jobs: Iterable[Job], *, timeout: float | None = None) -> list[JobState]:
        """Wait until all of these jobs are final, and return their states in the same order.

        After `timeout` seconds return the states they are in by then.
        """
        return wait_all(self._connection, list(jobs), timeout)

    def collect(self, *, keep: float = 3600.0) -> dict[str, int]:
        """Remove blobs that nothing refers to and that are older than `keep` seconds."""
        asked = {"keep": keep}
        return view(self._connection.post("/api/server/collect", query=asked, repeatable=True), {})

    def _scan(self, work: "Work", reading: "Reading | None") -> "Scan":
        from retarget.sdk.snapshot import scan

        tell = None if reading is None else partial(reading, work.folder)
        found = scan(work.folder, cache=self._home.stat_cache, progress=tell)
        if work.script is not None and not _has(found, work.script):
            if not os.path.exists(work.folder / work.script):
                raise Invalid(f"the script {work.script!r} vanished while its folder was read")
            raise Invalid(
                f"the script {work.script!r} is left out of the snapshot by an ignore file "
                f"in {work.folder}"
            )
        return found

    def _spec(self, work: "Work", target: str, options: "Options") -> dict[str, Any]:
        from retarget.sdk.submission import requested

        given.check("target", target, given.TEXT)
        return {
            **requested(options),
            "command": list(work.command),
            "target": target,
            "environment": self._definition(options.get("environment")),
        }

    def _send_context(self, environment: object) -> None:
        """Send what the server lacks of the folder that an image is built from."""
        from retarget.sdk.environments import Environment

        if isinstance(environment, Environment):
            send_context(self._connection, environment, self._home.stat_cache)

    def _definition(
        self, environment: "Environment | KnownEnvironment | str | None"
    ) -> dict[str, Any]:
        from retarget.sdk.environments import Environment

        if environment is None:
            environment = Environment()
        if isinstance(environment, str):
            environment = self.environments[environment]
        kinds = ((Environment, KnownEnvironment), "an Environment, or the name of a registered one")
        given.check("environment", environment, kinds)
        return environment.to_json()


def _server(home: Home, url: str | None, token: str | None) -> Server:
    for name, value in (("url", url), ("token", token)):
        if value is not None:
            given.check(name, value, given.TEXT)
    chosen = url or os.environ.get("RETARGET_URL")
    if chosen is None or not chosen.strip():
        return Background(home)
    secret = token if token is not None else os.environ.get("RETARGET_TOKEN", "")
    return Elsewhere(Address(chosen.strip().rstrip("/"), secret))


def _has(found: "Scan", script: str) -> bool:
    # it may be reached through a link to a folder
    return any(
        entry.path == script or (entry.link and script.startswith(f"{entry.path}/"))
        for entry in found.manifest.entries
    )
