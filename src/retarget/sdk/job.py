"""A submitted job: its state, its files, what it logged; cancel it or run it again."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retarget.core.errors import Invalid
from retarget.core.exclusions import Excluded, describe_exclusions
from retarget.core.kept import Kept
from retarget.core.states import JobState
from retarget.sdk import arguments
from retarget.sdk.display import Columns, Listing
from retarget.sdk.follow import JobView
from retarget.sdk.job_log import JobLog
from retarget.sdk.models import ModelVersion, register
from retarget.sdk.records import (
    JOB_FIELDS,
    Attempt,
    Output,
    Transition,
    Why,
    number,
    parse_time,
    read_kept,
    record,
    records,
    view,
)
from retarget.sdk.timing import Stage, stages
from retarget.sdk.tracking import Series, Tracking, read_series, read_tracking

if TYPE_CHECKING:
    from retarget.sdk.executions import CommandResult, Execution
    from retarget.sdk.submission import EnvironmentLike
_MLFLOW_PREFIX = "mlflow."  # of the tags that MLflow sets itself


class Job(JobLog):
    """A submitted job. Its fields show the last known state; `refresh` and `wait` update them."""

    def __repr__(self) -> str:
        return f"<Job {self.name} {self.state.value}>"

    @property
    def id(self) -> str:
        """The id of the job: unique on the server, and never used again."""
        return self._view["id"]

    @property
    def name(self) -> str:
        """The name of the job: passed to `submit`, or chosen by the server."""
        return self._view["name"]

    @property
    def reason(self) -> str:
        """Why the job is in this state, in one sentence."""
        return self._view["reason"]

    @property
    def hint(self) -> str | None:
        """What to do about a failure, in one line; None if there is no hint."""
        return self._view["hint"]

    @property
    def notices(self) -> list[str]:
        """Messages of the server about the submit, such as that PyPI replaces conda channels."""
        return list(self._view["notices"])

    @property
    def target(self) -> str:
        """The name of the target."""
        return self._view["target"]

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        return self._view["experiment"]

    @property
    def display_name(self) -> str:
        """The name for people: as submitted or changed since; by default that of the job."""
        return self._view["display_name"]

    @property
    def description(self) -> str:
        """What the job is for, in the words of its user."""
        return self._view["description"]

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the job: like tags, but a value that is set never changes."""
        return dict(self._view["properties"])

    @property
    def created_at(self) -> datetime:
        """When the job was submitted, in UTC."""
        return parse_time(self._view["created_at"])

    @property
    def started_at(self) -> datetime | None:
        """When the script started, in UTC; None before that."""
        return self._time("started_at")

    @property
    def ended_at(self) -> datetime | None:
        """When the job became final, in UTC; None before that."""
        return self._time("ended_at")

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell reports it; None until the job is final.

        This is the code of the script, 128 + n if signal n ended it, and 130 if it was canceled.
        """
        if not self.state.is_final:
            return None
        if self.state is JobState.CANCELED:
            return 130
        code: int | None = self._view["exit_code"]
        if self.state is JobState.SUCCEEDED:
            return code or 0
        return code or 1

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts of this job, in order."""
        if self._view["attempts"] is None:  # a listing of jobs does not include them
            self.refresh()
        return Listing(records(Attempt, self._view["attempts"]))

    @property
    def failures(self) -> int:
        """How many attempts failed. Only these cost a retry."""
        return self._view["failures"]

    @property
    def preemptions(self) -> int:
        """How many attempts ended because the target took their node away."""
        return self._view["preemptions"]

    @property
    def excluded(self) -> list[Excluded]:
        """The paths of the code folder that were not sent, each with the rule that excludes it."""
        return records(Excluded, self._view["excluded"])

    @property
    def kept(self) -> Kept | None:
        """What the script wrote outside of `outputs/`, and how much of it was kept; or None."""
        if self._view["attempts"] is None:  # a listing of jobs does not include it
            self.refresh()
        raw: dict[str, Any] | None = self._view.get("kept")
        return None if raw is None else read_kept(raw)

    @property
    def logged(self) -> dict[str, float | str]:
        """The values that `jobs.list(logged=…)` has read; empty for any other job."""
        raw: dict[str, Any] = self._view.get("logged") or {}
        return {
            key: number(value) if key.startswith("metric") else str(value)
            for key, value in raw.items()
        }

    def timing(self, attempt: int | None = None) -> list[Stage]:
        """Return when an attempt reached each stage; by default the last attempt."""
        if self._view["attempts"] is None:
            self.refresh()
        return Listing(stages(self._view, attempt))

    def to_json(self) -> dict[str, Any]:
        """Return the server's last response about the job; times in it are ISO 8601 strings."""
        return dict(self._view)

    def refresh(self, answer: JobView | None = None) -> "Job":
        """Update the fields, from the server or from an `answer` of it, and return the job."""
        self._view = view(
            self._connection.get(self._path) if answer is None else answer, JOB_FIELDS
        )
        return self

    def outputs(self) -> list[Output]:
        """List the files of the job so far: `outputs/`, `logs/`, `workdir/`, and its artifacts."""
        return Listing(records(Output, self._connection.get(f"{self._path}/outputs")))

    def download(
        self,
        path: str = "",
        to: str | Path = ".",
        *,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Path]:
        """Download files of the job, and return where they are.

        A file appears only once it is complete and its digest is verified. Raise Conflict if it
        would replace a file with other content, unless that file is as a download wrote it.

        Args:
            path: One file or one folder, such as `outputs/model.pkl`; by default all files.
            to: The folder to write to. Files keep their whole path below it:
                `outputs/model.pkl` becomes `to/outputs/model.pkl`. A new folder gets a file
                `.retarget-download`, so that later snapshots exclude it.
            overwrite: Replace your files, too.
            progress: Called with the bytes received so far, and their total.
        """
        from retarget.sdk.downloads import (
            download_all,
            mark_downloads,
            protect_files,
            select_outputs,
        )

        arguments.check("path", path, arguments.TEXT)
        arguments.check("to", to, arguments.PATH)
        if os.path.isabs(path):
            raise Invalid(
                f"path: {path!r} is not an output of the job; to choose the folder to write to, "
                f"use to={path!r}",
                field="path",
            )
        outputs = select_outputs(self.outputs(), path, self.name)
        source = f"{self._path}/outputs"
        if not overwrite:
            protect_files(Path(to), outputs)
        mark_downloads(Path(to), outputs)
        return download_all(self._connection, source, outputs, Path(to), progress)

    def tracking(self) -> Tracking:
        """Return everything that the job logged, with the latest point of each metric."""
        return read_tracking(self._connection, self._path)

    def metrics(self) -> dict[str, float]:
        """Return the latest value of each metric that the job logged."""
        return {key: point.value for key, point in self.tracking().metrics.items()}

    def params(self) -> dict[str, str]:
        """Return the params that the job logged."""
        return self.tracking().params

    def tags(self) -> dict[str, str]:
        """Return the tags of the job: your own, and those that its script has set.

        The tags that MLflow sets itself, such as `mlflow.source.name`, are in `tracking().tags`.
        """
        tags = self.tracking().tags.items()
        return {key: value for key, value in tags if not key.startswith(_MLFLOW_PREFIX)}

    def update(
        self,
        *,
        display_name: str | None = None,
        description: str | None = None,
        tags: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> "Job":
        """Change how the job is labelled, in any state, and return it.

        Args:
            display_name: A name for people; an empty one makes it the name of the job again.
            description: What the job is for.
            tags: Tags to add or change; None as the value removes a tag.
            properties: Properties to add. Raise Invalid if one has another value already.
        """
        body: dict[str, Any] = {}
        for name, text in (("display_name", display_name), ("description", description)):
            if text is not None:
                arguments.check(name, text, arguments.TEXT)
                body[name] = text
        body["tags"] = arguments.label_changes("tags", tags or {})
        body["properties"] = arguments.labels("properties", properties or {})
        return self.refresh(self._connection.patch(self._path, body))

    def metric_history(self, key: str, points: int = 1000) -> Series:
        """Return the points of a metric by step.

        If there are more than `points` (10,000 at most), they are sampled evenly; the first and
        the last point are always included.
        """
        return read_series(self._connection, self._path, key, points)

    def register_model(
        self,
        name: str,
        path: str,
        *,
        description: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> ModelVersion:
        """Register an output of the job as a new version of a model.

        The model is created if it does not exist. The version keeps its files when the job is
        deleted.

        Args:
            name: The name of the model.
            path: A file or a folder of the job, such as `outputs/model`, or a model it logged.
            description: A description of the version.
            tags: Tags of the version.
        """
        details = {"description": description, "tags": arguments.tags(tags or {})}
        return register(self._connection, name, {"job": self.id, "path": path, **details})

    def cancel(self) -> None:
        """Request a stop and return at once; use `wait` to wait until the job has ended.

        Raise Conflict if the job has already ended.
        """
        self.refresh(self._connection.post(f"{self._path}/cancel"))

    def execution(
        self,
        command: Sequence[str] = (),
        *,
        rank: int | None = None,
        node: int | None = None,
        terminal: Mapping[str, Any] | None = None,
    ) -> "Execution":
        """Start a command, or a shell, beside the script, and return it: a context manager.

        This is what `retarget exec` uses: send input, resize the terminal and read the output while
        the command runs. To run a command and get its output, use `exec`.

        Args:
            command: The program and its arguments; by default a shell.
            rank: The process of the job to run beside; by default the first one.
            node: The node of the job to run on.
            terminal: `rows`, `columns` and `term` of its terminal; by default it has pipes.
        """
        from retarget.sdk.executions import Execution

        words = arguments.strings("command", command, "a list, such as ['ls', '-l']")
        for name, value in (("rank", rank), ("node", node)):
            if value is not None:
                arguments.check(name, value, arguments.COUNT)
        process, size = {"rank": rank, "node": node}, dict(terminal) if terminal else None
        return Execution(self._connection, self._path, words, process=process, terminal=size)

    def exec(
        self,
        command: Sequence[str],
        *,
        input: str | bytes = b"",
        rank: int | None = None,
        node: int | None = None,
    ) -> "CommandResult":
        """Run a command beside the script, in its folder, with its variables and environment.

        Wait for its end, and return its exit code and what it printed. The job must be running.

        Args:
            command: The program and its arguments.
            input: What the command can read from its stdin.
            rank: The process of the job to run beside; by default the first one.
            node: The node of the job to run on.
        """
        content = input.encode() if isinstance(input, str) else input
        with self.execution(command, rank=rank, node=node) as execution:
            return execution.finish(content)

    def rerun(  # noqa: PLR0913  the parameters are spelled out for help() and for completion
        self,
        *,
        args: Sequence[str | float] | None = None,
        target: str | None = None,
        environment: "EnvironmentLike | None" = None,
        name: str | None = None,
        experiment: str | None = None,
        display_name: str | None = None,
        description: str | None = None,
        tags: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        gpus: int | None = None,
        nodes: int | None = None,
        processes_per_node: int | None = None,
        retries: int | None = None,
        timeout: float | str | None = None,
        priority: int | None = None,
        secrets: Sequence[str] | None = None,
        split_stderr: bool | None = None,
    ) -> "Job":
        """Submit the same code again as a new job. What is not set here stays as it was.

        Args:
            args: New arguments of the script; they replace all arguments. For a job that runs
                a command instead of a script they are the whole new command.
            target: Another target.
            environment: Another environment, as for `workspace.submit`.
            name: The name of the new job; by default the server chooses one.
            experiment: Another experiment.
            display_name: Another name for people.
            description: Another description.
            tags: Tags to add or change.
            variables: Environment variables to add or change.
            cpus: CPUs per node.
            memory: Memory to reserve per node, in bytes or as a string such as `"2g"`.
            gpus: GPUs per node.
            nodes: The number of nodes.
            processes_per_node: How many processes of the script to start per node.
            retries: How many more times to try if the script fails.
            timeout: The maximum run time, in seconds or as a string such as `"1h30m"`.
            priority: A job with a higher priority starts earlier.
            secrets: Names of secrets to add.
            split_stderr: Whether stdout and stderr of the script are two streams.
        """
        from retarget.sdk.rerun import rerun_request

        changes = {
            "args": args,
            "target": target,
            "environment": environment,
            "name": name,
            "experiment": experiment,
            "display_name": display_name,
            "description": description,
            "tags": tags,
            "variables": variables,
            "cpus": cpus,
            "memory": memory,
            "gpus": gpus,
            "nodes": nodes,
            "processes_per_node": processes_per_node,
            "retries": retries,
            "timeout": timeout,
            "priority": priority,
            "secrets": secrets,
            "split_stderr": split_stderr,
        }
        body = rerun_request(self._connection, changes)
        return Job(self._connection, self._connection.post(f"{self._path}/rerun", body))

    def why(self) -> Why:
        """Explain why the job is in its state, and what it waits for."""
        return record(Why, self._connection.get(f"{self._path}/why"))

    def history(self) -> list[Transition]:
        """List every transition of the job's state, oldest first."""
        return Listing(records(Transition, self._connection.get(f"{self._path}/history")))

    def delete(self) -> None:
        """Delete a job that has ended, with its log, outputs, metrics and artifacts."""
        self._connection.delete(self._path)

    def _columns(self) -> Columns:
        return {
            "job": self.name,
            "state": self.state.value,
            "target": self.target,
            "experiment": self.experiment,
            "created": self.created_at,
            "started": self.started_at,
            "ended": self.ended_at,
            "exit code": self.exit_code,
            "reason": self.reason,
            "excluded": "; ".join(describe_exclusions(self.excluded)),
        }

    def _time(self, field: str) -> datetime | None:
        raw = self._view[field]
        return None if raw is None else parse_time(raw)
