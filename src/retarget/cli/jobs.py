"""`retarget job …`: watch, stop and fetch jobs."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.compare import compare
from retarget.cli.complete import complete_state, complete_target
from retarget.cli.find import AsJson, JobName, JobNames, find_job, job_named
from retarget.cli.groups import new_group
from retarget.cli.metrics import metrics
from retarget.cli.terminal import say, tell, visible, write_bytes, write_json
from retarget.core.errors import Invalid, RetargetError
from retarget.core.states import JobState

if TYPE_CHECKING:
    from retarget.sdk.jobs import Job

app = new_group()

AnyTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="Only on this target.",
        autocompletion=complete_target,
    ),
]
_STATES = ", ".join(JobState)


@app.command("list")
def list_jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help=f"Only in this state; repeatable. States: {_STATES}.",
            autocompletion=complete_state,
        ),
    ] = None,
    target: AnyTarget = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of this experiment.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    from retarget.sdk.workspace import Workspace

    jobs = Workspace().jobs.list(
        state=_known_states(state or []), target=target, experiment=experiment, limit=limit
    )
    if as_json:
        write_json([job.to_json() for job in jobs])
    else:
        from retarget.cli.show import show_jobs

        show_jobs(jobs, chosen=bool(state or target or experiment))


@app.command()
def show(
    name: JobName,
    timing: Annotated[
        bool, typer.Option("--timing", help="Show when each stage was reached, and nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: where it stands and why, what it runs, logged and left, and its history."""
    job = find_job(name)
    if timing and as_json:
        write_json([asdict(stage) for stage in job.timing()])
    elif timing:
        from retarget.cli.show import show_timing

        stages = job.timing()
        show_timing(stages)
        if stages[-1].name != "ended":
            say(visible(f"{job.state.value}: {job.reason}"), "dim")
    elif as_json:
        told = job.tracking()
        logged = {key: point.value for key, point in told.metrics.items()}
        about = {"metrics": logged, "params": told.params, "tags": told.tags}
        more = {"exit_code": job.exit_code, "models": told.models}
        write_json(job.to_json() | more | about)
    else:
        from retarget.cli.show import show_job

        show_job(job)


@app.command()
def logs(  # noqa: PLR0913  one parameter an option
    name: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    stream: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only prepare, output, or rank-N.")
    ] = None,
    rank: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this process.")] = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="An earlier attempt.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="A file the script wrote under logs/.")
    ] = None,
) -> None:
    """Print a job's log: what prepared it, then what the script wrote, byte for byte.

    With -f it goes on until the job has ended; Ctrl-C only stops watching.
    """
    chosen = _stream(stream, rank, file)
    job = find_job(name)
    for piece in _pieces(job, chosen, attempt, follow=follow):
        write_bytes(piece, to=sys.stdout)


@app.command()
def wait(name: JobName) -> None:
    """Wait until a job has ended, and exit with its exit code. Ctrl-C only stops watching."""
    job = find_job(name)
    job.wait()
    from retarget.cli.watch import describe_end

    say(describe_end(job), "dim" if job.exit_code == 0 else "red")
    raise typer.Exit(job.exit_code or 0)


@app.command()
def cancel(names: JobNames) -> None:
    """Stop jobs. It returns at once; `retarget job wait` tells when they are gone."""
    _each(names, lambda job: job.cancel(), "canceling")


@app.command()
def outputs(
    name: JobName,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="One file, or a folder of them; all if left out.")
    ] = "",
    download: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Fetch them: DIR/outputs/… and so on."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the files a job left, or fetch them.

    These are what it wrote to outputs/ and logs/, and the artifacts it logged.
    """
    from dataclasses import asdict

    from retarget.sdk.downloads import wanted

    job = find_job(name)
    if download is not None:
        paths = [str(each) for each in job.download(path, to=download)]
        write_json(paths) if as_json else [tell(each) for each in paths]
        if not paths:
            say("no outputs", "dim")
        return
    found = wanted(job.outputs(), path, job.name)
    if as_json:
        write_json([asdict(each) for each in found])
    else:
        from retarget.cli.show import show_outputs

        show_outputs(found)


app.command()(metrics)
app.command()(compare)


@app.command()
def rerun(
    name: JobName,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", metavar="NAME", help="On this one.", autocompletion=complete_target
        ),
    ] = None,
    new_name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The new job's name.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the new name and do not wait.")
    ] = False,
) -> None:
    """Run the same code, command and environment again, and watch it as `run` does."""
    from retarget.cli.submit import show_submitted

    job = find_job(name)
    raise typer.Exit(show_submitted(lambda: job.rerun(target=target, name=new_name), detach=detach))


@app.command()
def why(name: JobName, as_json: AsJson = False) -> None:
    """Say why a job is where it is: what it waits for, and behind whom."""
    from dataclasses import asdict

    told = find_job(name).why()
    if as_json:
        write_json(asdict(told))
    else:
        from retarget.cli.show import show_why

        show_why(told)


@app.command()
def delete(
    names: JobNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove jobs that have ended, with all they left: logs, outputs, metrics, artifacts.

    Versions of models stay, with their files. Without a terminal it does not ask.
    """
    if not yes and sys.stdin.isatty():
        what = f"{', '.join(names)} with logs, outputs, metrics and artifacts"
        typer.confirm(f"Remove {what}?", abort=True, err=True)
    _each(names, lambda job: job.delete(), "removed")


def _known_states(given: list[str]) -> list[str]:
    known = [state.value for state in JobState]
    for state in given:
        if state not in known:
            raise Invalid(f"there is no state {state!r}; states are {', '.join(known)}")
    return given


def _stream(stream: str | None, rank: int | None, file: str | None) -> str | None:
    given = [each for each in (stream, file, None if rank is None else f"rank-{rank}") if each]
    if len(given) > 1:
        raise Invalid("--stream, --rank and --file each name one stream; give one of them")
    if file is not None and not file.startswith("logs/"):
        return f"logs/{file}"
    return given[0] if given else None


def _pieces(
    job: "Job", stream: str | None, attempt: int | None, *, follow: bool
) -> Iterator[bytes]:
    from retarget.sdk.follow import labelled

    if stream is not None:
        return job.read_log(stream, attempt=attempt, follow=follow)
    if follow and attempt is None:
        return (piece for _, piece in labelled(job.follow()))
    return _both(job, attempt, follow=follow)


def _both(job: "Job", attempt: int | None, *, follow: bool) -> Iterator[bytes]:
    if not job.to_json()["attempt"]:
        say(f"{job.name} has no log yet: {job.state.value}, {job.reason}", "dim")
        return
    yield from job.read_log("prepare", attempt=attempt, follow=follow)
    yield from job.read_log(attempt=attempt, follow=follow)


def _each(names: Sequence[str], act: Callable[["Job"], None], done: str) -> None:
    """Do it for all and tell of each; one that fails does not keep the others from it."""
    from retarget.sdk.workspace import Workspace

    jobs = Workspace().jobs
    failed = False
    for name in names:
        try:
            act(job_named(jobs, name))
            say(f"{done} {name}", "dim")
        except RetargetError as error:
            say(f"error: {error}", "red")
            failed = True
    if failed:
        raise typer.Exit(1)
