"""The workspace: submits jobs, and gives access to everything on a server."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from retarget.core.errors import Invalid
from retarget.core.exclusions import Excluded
from retarget.core.home import Home, home_from
from retarget.core.states import JobState
from retarget.sdk import arguments
from retarget.sdk.display import Columns, Displayable, Listing
from retarget.sdk.environment_registry import (
    Environments,
    definition_of,
    expanded_of,
    own_packages_of,
    send_context,
)
from retarget.sdk.events import Event, receive_events
from retarget.sdk.http import Connection, RemoteServer, Server, remote_server
from retarget.sdk.job import Job
from retarget.sdk.jobs import Jobs, wait_all
from retarget.sdk.local_server import LocalServer
from retarget.sdk.models import Models
from retarget.sdk.records import rows, view
from retarget.sdk.secrets import Secrets
from retarget.sdk.sizes import Sizes
from retarget.sdk.targets import Targets, default_target
from retarget.sdk.tracking import Experiments

if TYPE_CHECKING:  # only a submission needs these: other commands start faster without them
    from pathlib import Path

    from retarget.sdk.ignore import ProjectRules
    from retarget.sdk.include import Include
    from retarget.sdk.project import Filled
    from retarget.sdk.snapshot import Scan
    from retarget.sdk.submission import (
        EnvironmentLike,
        JobCode,
        Options,
        ScanProgress,
        Script,
        UploadProgress,
    )

    ScanReport = Callable[[Scan, Sequence[Excluded]], None]

_PLAN_FIELDS = {"target": str, "kind": str, "launch": dict[str, Any], "native": dict[str, Any]}
_SERVER_FIELDS = {"version": str, "jobs": dict[str, int]}
Folder = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that is ready to be sent: the server has its code."""

    spec: dict[str, Any]
    folder: "Path | None" = None  # the folder that was sent


class Workspace(Displayable):
    """A Retarget server and everything on it: jobs, targets, environments, experiments, models.

    Without arguments this is the server at `RETARGET_URL`, with the token in `RETARGET_TOKEN`. If
    `RETARGET_URL` is not set, it is the server of this machine, which starts in the background
    when it is first needed.

    Args:
        url: The address of a server, such as `http://host:5000`.
        token: The token for that server.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self._home = home_from(os.environ)
        server = _server(self._home, url, token)
        self._connection = Connection(server, verify=isinstance(server, RemoteServer))

    def __repr__(self) -> str:
        return f"<Workspace of {self._connection.label}>"

    @property
    def url(self) -> str:
        """The address of the server. The server of this machine is started if necessary."""
        return self._connection.address.url

    @property
    def tracking_uri(self) -> str:
        """The address for `mlflow.set_tracking_uri`.

        Reading this property sets the environment variable `MLFLOW_TRACKING_TOKEN` of this process
        to the token of the server, because the MLflow client reads the token from there only.
        """
        address = self._connection.address
        os.environ["MLFLOW_TRACKING_TOKEN"] = address.token
        return address.url

    @property
    def jobs(self) -> Jobs:
        """The jobs: `workspace.jobs["name"]`, `workspace.jobs.list(state="running")`."""
        return Jobs(self._connection)

    @property
    def targets(self) -> Targets:
        """The targets: `workspace.targets["local"]`, `workspace.targets.attach(…)`."""
        return Targets(self._connection)

    @property
    def sizes(self) -> Sizes:
        """The sizes of nodes: `workspace.sizes["Standard_NC6"]`, `.list(gpus=True)`."""
        return Sizes(self._connection)

    @property
    def environments(self) -> Environments:
        """The environments: `workspace.environments["name"]`, `.register(name, environment)`."""
        return Environments(self._connection)

    @property
    def experiments(self) -> Experiments:
        """The experiments: `workspace.experiments["name"].newest` lists the newest runs."""
        return Experiments(self._connection)

    @property
    def models(self) -> Models:
        """The registered models: `workspace.models["name"]["champion"].download("models")`."""
        return Models(self._connection)

    @property
    def secrets(self) -> Secrets:
        """The secrets: `workspace.secrets.set("HF_TOKEN", value)`; values are never returned."""
        return Secrets(self._connection)

    def submit(  # noqa: PLR0913  the parameters are spelled out for help() and for completion
        self,
        script: "Script",
        *,
        args: Sequence[str | float] | None = None,
        code: Folder | None = None,
        target: str | None = None,
        environment: "EnvironmentLike | None" = None,
        name: str | None = None,
        experiment: str | None = None,
        display_name: str | None = None,
        description: str | None = None,
        tags: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        gpus: int | None = None,
        nodes: int | None = None,
        processes_per_node: int | None = None,
        retries: int | None = None,
        timeout: float | str | None = None,
        priority: int | None = None,
        allow_pip: bool | None = None,
        include: Sequence[str] | None = None,
        profile: str | None = None,
        secrets: Sequence[str] | None = None,
        keep: str | Sequence[str] | None = None,
        split_stderr: bool | None = None,
    ) -> Job:
        """Submit a script or a command, and return its job at once.

        The code folder is sent in its current state, and the script runs in a copy of it.

        Args:
            script: The path of a `.py` or `.sh` script, of an `.ipynb` notebook or of an
                executable, or a command as a list, such as `["python", "-m", "train"]`.
            args: Arguments for the script.
            code: The folder to send. By default the current folder if the script is in it, else
                the folder of the script. `/` and the home folder are never sent by default.
            target: The name of the target to run on. By default that of the settings, `local`
                unless you changed it.
            environment: An `Environment`, its arguments as a mapping, such as
                `{"python": "3.12", "packages": ["numpy"]}`, or the name of a registered one, such
                as `"torch"` or `"torch:3"`. By default the script runs with the Python that runs
                this call, if the target has it.
            name: A name for the job. By default the server chooses one.
            experiment: The experiment to put the job in, `Default` by default.
            display_name: A name for people, which other jobs may have too. By default that of the
                job.
            description: What the job is for, in your words.
            tags: Tags of the job, such as `{"team": "vision"}`. They are also those of its MLflow
                run.
            properties: Like tags, but a value that is set never changes.
            variables: Environment variables for the script. A variable whose name ends in
                `_TOKEN`, `_SECRET`, `_PASSWORD`, `_KEY` or `_CREDENTIALS` is handled as a secret
                of this job.
            cpus: CPUs per node, 1 by default.
            memory: Memory to reserve per node, in bytes or as a string such as `"512m"` or `"2g"`.
            gpus: GPUs per node, 0 by default.
            nodes: The number of nodes, 1 by default.
            processes_per_node: How many processes of the script to start per node, 1 by default.
            retries: How many more times to try if the script fails, 0 by default.
            timeout: The maximum run time, in seconds or as a string such as `"1h30m"`.
            priority: A job with a higher priority starts earlier; -1000 to 1000, 0 by default.
            allow_pip: Let `pip` in the job change the interpreter that it runs with, which must
                not be one that Retarget built. By default the job has its own layer for packages.
            include: Paths and patterns in the code folder to send although an ignore file or a
                default rule excludes them, such as `["data/"]` or `["*.csv"]`. `job.excluded` lists
                what was not sent.
            profile: The profile of the project's `retarget.toml` to use; by default that in
                `RETARGET_PROFILE`, or none.
            secrets: Names of secrets that the script gets as environment variables; see
                `workspace.secrets`.
            keep: Which of the files to keep that the script writes outside of `outputs/`:
                `"none"`, `"all"`, or patterns such as `["checkpoints/", "*.pkl"]`. By default all
                of them, the smallest first, up to the server's `keep_limit`; see `job.kept`.
            split_stderr: `True` makes stdout and stderr of the script two streams. By default they
                are one, in the exact order of writing.

        What is not set here comes from the `retarget.toml` of the code folder's project, if any.

        Raises:
            Invalid: The request can never work, for example because it asks for more than the
                target has. Nothing is submitted then; the error names the argument.
        """
        prepared = self.prepare(
            script,
            args=args,
            code=code,
            target=target,
            environment=environment,
            name=name,
            experiment=experiment,
            display_name=display_name,
            description=description,
            tags=tags,
            properties=properties,
            variables=variables,
            cpus=cpus,
            memory=memory,
            gpus=gpus,
            nodes=nodes,
            processes_per_node=processes_per_node,
            retries=retries,
            timeout=timeout,
            priority=priority,
            allow_pip=allow_pip,
            include=include,
            profile=profile,
            secrets=secrets,
            keep=keep,
            split_stderr=split_stderr,
        )
        return self.send(prepared)

    def plan(
        self,
        script: "Script",
        *,
        code: Folder | None = None,
        target: str | None = None,
        reading: "ScanProgress | None" = None,
        scanned: "ScanReport | None" = None,
        **options: "Unpack[Options]",
    ) -> dict[str, Any]:
        """Return what `submit` would start on the target. Nothing is sent or stored.

        Takes the arguments of `submit`. `reading(folder, files, bytes)` is called while the code
        folder is read, and `scanned(scan, excluded)` once it has been read.
        """
        from retarget.sdk.exclusions import as_rows, counted_exclusions
        from retarget.sdk.project import fill_from_project
        from retarget.sdk.submission import resolve_code

        job_code = resolve_code(script, code, options.get("args"))
        filled = fill_from_project(job_code.folder, target, options)
        spec = self._spec(job_code, filled)
        scan = self._scan(job_code, filled, reading)
        excluded = counted_exclusions(scan)
        if scanned is not None:
            scanned(scan, excluded)
        manifest = scan.manifest
        answer = self._connection.post("/api/jobs/plan", spec, repeatable=True)
        sent = {
            "folder": str(job_code.folder),
            "files": len(manifest.entries),
            "bytes": manifest.size,
            "snapshot": manifest.digest,
            "excluded": as_rows(excluded),
        }
        plan = {"code": sent, "project_settings": list(filled.project_settings)}
        return view(answer, _PLAN_FIELDS) | plan

    def prepare(  # noqa: PLR0913  three of them are callbacks of one caller
        self,
        script: "Script",
        *,
        code: Folder | None = None,
        target: str | None = None,
        reading: "ScanProgress | None" = None,
        progress: "UploadProgress | None" = None,
        scanned: "ScanReport | None" = None,
        **options: "Unpack[Options]",
    ) -> Prepared:
        """Do the first half of `submit`: send the code that the server lacks.

        Takes the arguments of `submit`. `reading(folder, files, bytes)` is called while the code
        folder is read, `scanned(scan, excluded)` once it has been read, and
        `progress(sent, total)`, in bytes, while it is sent.
        """
        from retarget.sdk.exclusions import as_rows, counted_exclusions
        from retarget.sdk.project import fill_from_project
        from retarget.sdk.snapshot import upload
        from retarget.sdk.submission import resolve_code
        from retarget.sdk.uploads import Uploads

        job_code = resolve_code(script, code, options.get("args"))
        filled = fill_from_project(job_code.folder, target, options)
        spec = self._spec(job_code, filled)
        self._send_context(filled.options.get("environment"))
        check_plan = partial(self._connection.post, "/api/jobs/plan", spec, repeatable=True)
        scan = self._scan(job_code, filled, reading)
        excluded = counted_exclusions(scan)
        if scanned is not None:
            scanned(scan, excluded)
        snapshot = upload(scan, Uploads(self._connection), progress, check_plan)
        spec |= {"snapshot": snapshot, "excluded": as_rows(excluded)}
        return Prepared(spec, job_code.folder)

    def prepare_build(
        self, environment: "EnvironmentLike", *, target: str | None = None
    ) -> Prepared:
        """Return a job that only builds `environment` on a target."""
        command = ["python", "-c", "pass"]
        definition = self._definition(environment)
        self._send_context(environment)
        name = default_target(self._home) if target is None else target
        warnings = list(expanded_of(environment).warnings)
        spec = {"command": command, "target": name, "environment": definition}
        return Prepared(spec | {"warnings": warnings})

    def send(self, prepared: Prepared) -> Job:
        """Do the second half of `submit`: queue the job."""
        return Job(self._connection, self._connection.post("/api/jobs", prepared.spec))

    def send_all(self, prepared: Iterable[Prepared]) -> list[Job]:
        """Queue up to 1,000 jobs with one request: either all of them or none."""
        specs = [job.spec for job in prepared]
        if not specs:
            return []
        answer = self._connection.post("/api/jobs/batch", {"jobs": specs})
        return Listing(Job(self._connection, raw) for raw in rows(answer))

    def wait_all(self, jobs: Iterable[Job], *, timeout: float | None = None) -> list[JobState]:
        """Wait until all of these jobs are final, and return their states in the same order.

        After `timeout` seconds, return their states at that time.
        """
        return wait_all(self._connection, list(jobs), timeout)

    def events(
        self,
        *,
        nouns: Sequence[str] | None = None,
        jobs: Iterable[Job | str] | None = None,
    ) -> Iterator[Event]:
        """Yield an event whenever something changes on the server, until you stop iterating.

        An event has a `noun`, an `id`, sometimes a `version` and a `job`, but no content: read what
        it is about. The first event is a `reset`, which means: read everything that you show. If
        the connection breaks, the iterator connects again and continues; another `reset` follows
        only if events were missed.

        Args:
            nouns: Only events of `job`, `metric`, `output`, `target` or `node`.
            jobs: Only events of these jobs, each a `Job` or its id.
        """
        chosen = None if jobs is None else [job if isinstance(job, str) else job.id for job in jobs]
        return receive_events(self._connection, nouns, chosen)

    def prune(self, *, keep_seconds: float = 3600.0) -> dict[str, int]:
        """Remove stored files that nothing refers to and that are older than `keep_seconds`."""
        query = {"keep_seconds": keep_seconds}
        return view(self._connection.post("/api/server/prune", query=query, repeatable=True), {})

    def _columns(self) -> Columns:
        server = view(self._connection.get("/api/server"), _SERVER_FIELDS)
        return {
            "server": self._connection.label,
            "url": self.url,
            "version": server["version"],
            "jobs": {state: count for state, count in server["jobs"].items() if count},
            "targets": ", ".join(target.name for target in self.targets),
        }

    def _scan(
        self, job_code: "JobCode", filled: "Filled", reading: "ScanProgress | None"
    ) -> "Scan":
        from retarget.sdk.exclusions import rule_of

        folder, script = job_code.folder, job_code.script
        include = filled.options.get("include")
        result = read_folder(folder, include=include, ignore=filled.ignore, reading=reading)
        if script is not None and not _contains(result, script):
            if not os.path.exists(folder / script):
                raise Invalid(f"the script {script!r} was deleted while its folder was read")
            raise Invalid(
                f"{rule_of(script, result.excluded)} in {folder} excludes the script {script!r} "
                f"from the snapshot; send it with --include {script}"
            )
        return result

    def _spec(self, job_code: "JobCode", filled: "Filled") -> dict[str, Any]:
        from retarget.sdk.submission import Options, job_options
        from retarget.sdk.surroundings import outside_references, surroundings_of

        target = default_target(self._home) if filled.target is None else filled.target
        arguments.check("target", target, arguments.TEXT)
        options = cast(Options, filled.options)
        folder, environment = job_code.folder, options.get("environment")
        own = _own_packages(environment, folder)
        return {
            **job_options(options),
            "command": list(job_code.command),
            "arguments_index": job_code.arguments_index,
            "target": target,
            "environment": self._definition(environment, folder),
            **own,
            "warnings": [*own.get("warnings", []), *outside_references(folder, job_code.script)],
            "required_packages": list(job_code.required_packages),
            "project_settings": list(filled.project_settings),
            "surroundings": surroundings_of(folder),
        }

    def _send_context(self, environment: object) -> None:
        """Send the files that the server lacks of the folder that an image is built from."""
        from retarget.sdk.environments import Environment, environment_from

        if isinstance(environment, Mapping):
            environment = environment_from(cast("Mapping[str, Any]", environment))
        if isinstance(environment, Environment):
            send_context(self._connection, environment, self._home.stat_cache)

    def _definition(
        self, environment: "EnvironmentLike | None", code: Path | None = None
    ) -> dict[str, Any]:
        return definition_of(self._connection, environment, code)


def read_folder(
    folder: Path,
    *,
    include: "Sequence[str] | Include | None" = None,
    ignore: "ProjectRules | None" = None,
    reading: "ScanProgress | None" = None,
    accept_refused: bool = False,
) -> "Scan":
    """Return the files of a folder that a job would get, and the excluded ones. Needs no server.

    Raise Invalid if a file cannot be sent, unless the caller accepts that.
    """
    from retarget.sdk.include import resolve_include
    from retarget.sdk.snapshot import scan

    progress = None if reading is None else partial(reading, folder)
    cache = home_from(os.environ).stat_cache
    return scan(
        folder,
        cache=cache,
        progress=progress,
        include=resolve_include(folder, include),
        ignore=ignore,
        accept_refused=accept_refused,
    )


def _server(home: Home, url: str | None, token: str | None) -> Server:
    for name, value in (("url", url), ("token", token)):
        if value is not None:
            arguments.check(name, value, arguments.TEXT)
    address = (url or os.environ.get("RETARGET_URL") or "").strip()
    if not address:
        return LocalServer(home)
    secret = token if token is not None else os.environ.get("RETARGET_TOKEN", "")
    return remote_server(address, secret)


def _own_packages(environment: object, code: Path) -> dict[str, Any]:
    if environment is None and not os.path.isdir(code / "src"):
        return {}  # the usual case: nothing to import
    return own_packages_of(environment, code)


def _contains(scan: "Scan", script: str) -> bool:
    # a link to a folder may lead to the script
    return any(
        entry.path == script or (entry.link and script.startswith(f"{entry.path}/"))
        for entry in scan.manifest.entries
    )
