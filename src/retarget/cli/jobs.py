"""`retarget job …`: watch, stop, compare and download jobs."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.compare import compare
from retarget.cli.groups import Command, new_group
from retarget.cli.job_actions import cancel, delete, wait
from retarget.cli.job_list import list_jobs
from retarget.cli.job_update import update
from retarget.cli.lookup import AsJson, Force, JobName, find_job
from retarget.cli.metrics import metrics
from retarget.cli.rerun import rerun
from retarget.cli.terminal import print_result, print_status, printable, write_json
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.job import Job

app = new_group()


app.command("list", cls=Command)(list_jobs)


@app.command()
def show(
    name: JobName,
    timing: Annotated[
        bool, typer.Option("--timing", help="Show only when the job reached each stage.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: state, command, logged values, outputs and history."""
    job = find_job(name)
    if timing and as_json:
        write_json([asdict(stage) for stage in job.timing()])
    elif timing:
        from retarget.cli.show import show_timing

        stages = job.timing()
        show_timing(stages)
        if stages[-1].name != "ended":
            print_status(printable(f"{job.state.value}: {job.reason}"), "dim")
    elif as_json:
        tracking = job.tracking()
        values = {key: point.value for key, point in tracking.metrics.items()}
        logged = {"metrics": values, "params": tracking.params}
        result = {"exit_code": job.exit_code, "models": tracking.models}
        write_json(job.to_json() | result | logged)
    else:
        from retarget.cli.show import show_job

        show_job(job)


@app.command()
def logs(  # noqa: PLR0913  one parameter per option
    name: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            metavar="N",
            min=0,
            help="Start with the last N lines of the output, of each process.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only lines since then: an age such as 10m, or 2026-11-18T09:30."
        ),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Begin each line with the time it was written.")
    ] = False,
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only this stream: prepare, output, stdout, stderr, rank-N."
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only the process with this rank.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Attempt to read. Default: the last.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="A file that the script wrote to logs/.")
    ] = None,
) -> None:
    """Print the log of a job.

    First comes the preparation (code, environment), then the output of the script, byte for byte.
    With -n only the end of the output is read, or of the preparation if there is no output yet.
    Times are local, and accurate to about a tenth of a second.
    Ctrl-C stops only the printing; the job keeps running.
    """
    chosen = _chosen_stream(stream, rank, file)
    job = find_job(name)
    from retarget.cli.log_writer import LogWriter

    log = LogWriter()
    if since is not None or timestamps:
        read = _Reading(follow, lines, None if since is None else _parse_since(since))
        pieces = _lines(job, chosen, attempt, read, timestamps=timestamps)
    else:
        pieces = _pieces(job, chosen, attempt, _Reading(follow, lines))
    for piece in pieces:
        log.write(piece, to=sys.stdout)
        if follow:
            log.flush()  # the rest of the line may come much later
    log.flush()


app.command(cls=Command)(wait)
app.command(cls=Command)(cancel)


@app.command()
def outputs(
    name: JobName,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="One file or folder. Default: all files.")
    ] = "",
    download: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Download the files: outputs/model.pkl to DIR/outputs/model.pkl."
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """List or download the files of a job.

    These are the files it wrote to outputs/ and logs/, files it wrote elsewhere (as workdir/…), and
    the artifacts it logged.

    \b
    Examples:
      retarget job outputs night
      retarget job outputs night outputs/model.pkl --download .
    """
    from retarget.cli.live_bar import Transfer
    from retarget.sdk.downloads import differing_files, name_files, select_outputs

    job = find_job(name)
    if download is not None:
        replaced = differing_files(Path(download), select_outputs(job.outputs(), path, job.name))
        with Transfer(f"downloading from {job.name}", f"downloaded from {job.name}") as transfer:
            files = job.download(
                path.lstrip("/"), to=download, overwrite=force, progress=transfer.update
            )
        paths = [str(file) for file in files]
        write_json(paths) if as_json else [print_result(path) for path in paths]
        if not paths:
            print_status("no outputs", "dim")
        if replaced:
            names = name_files(replaced)
            print_status(f"replaced {names}, which had different content", "dim")
        return
    selected = select_outputs(job.outputs(), path, job.name)
    if as_json:
        write_json([asdict(output) for output in selected])
    else:
        from retarget.cli.show import show_outputs

        show_outputs(selected)


app.command()(metrics)
app.command()(compare)


app.command(cls=Command)(rerun)
app.command()(update)


@app.command()
def why(name: JobName, as_json: AsJson = False) -> None:
    """Explain the state of a job, such as why it waits or failed.

    For a queued job, the jobs ahead of it are listed too.
    """
    explanation = find_job(name).why()
    if as_json:
        write_json(asdict(explanation))
    else:
        from retarget.cli.show import show_why

        show_why(explanation)


app.command(cls=Command)(delete)


def _chosen_stream(stream: str | None, rank: int | None, file: str | None) -> str | None:
    streams = [name for name in (stream, file, None if rank is None else f"rank-{rank}") if name]
    if len(streams) > 1:
        raise Invalid("--stream, --rank and --file exclude each other; choose one")
    if file is not None and not file.startswith("logs/"):
        return f"logs/{file}"
    return streams[0] if streams else None


@dataclass(frozen=True, slots=True)
class _Reading:
    """How to read a log: until now or until its end, from its beginning or from its last lines."""

    follow: bool
    lines: int | None
    since: datetime | None = None


def _parse_since(since: str) -> datetime:
    from retarget.sdk.log_lines import parse_since

    return parse_since(since, field="--since")


def _lines(
    job: "Job", stream: str | None, attempt: int | None, reading: _Reading, *, timestamps: bool
) -> Iterator[bytes]:
    """Yield whole lines, with their rank and, if asked for, their time."""
    for line in job.log_lines(
        stream,
        attempt=attempt,
        follow=reading.follow,
        since=reading.since,
        lines=reading.lines,
    ):
        time = line.at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if timestamps else ""
        rank = f"[rank {line.stream[5:]}] " if line.stream.startswith("rank-") else ""
        yield (f"{time} {rank}" if time else rank).encode() + line.content


def _pieces(
    job: "Job", stream: str | None, attempt: int | None, reading: _Reading
) -> Iterator[bytes]:
    from retarget.sdk.follow import label_ranks

    if stream is not None:
        return job.read_log(stream, attempt=attempt, follow=reading.follow, lines=reading.lines)
    if reading.follow and attempt is None:
        return (piece for _, piece in label_ranks(job.follow(lines=reading.lines)))
    return _whole_log(job, attempt, reading)


def _whole_log(job: "Job", attempt: int | None, reading: _Reading) -> Iterator[bytes]:
    if not job.to_json()["attempt"]:
        print_status(f"{job.name} has no log yet: {job.state.value}, {job.reason}", "dim")
        return
    follow, lines = reading.follow, reading.lines
    if lines is None or not _has_output(job, attempt):
        yield from job.read_log("prepare", attempt=attempt, follow=follow, lines=lines)
    yield from job.read_log(attempt=attempt, follow=follow, lines=lines)


def _has_output(job: "Job", attempt: int | None) -> bool:
    streams = job.streams(attempt=attempt)
    return any(stream.size and stream.stream.startswith(("output", "rank-")) for stream in streams)
