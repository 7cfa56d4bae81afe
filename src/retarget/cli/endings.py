"""The last lines about a job: how it ended, why, and where to read more."""

import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from retarget.cli.terminal import append_clause, is_terminal, print_status, printable, styled
from retarget.cli.times import elapsed_seconds
from retarget.core.kept import describe_kept
from retarget.core.states import JobState
from retarget.runner.durations import show_duration

if TYPE_CHECKING:
    from retarget.sdk.job import Job

_MARKS = {JobState.SUCCEEDED: ("✓", "green"), JobState.FAILED: ("✗", "red")}
_OTHER_MARK = ("✗", "yellow")  # a canceled job


def print_ending(job: "Job", *, after_output: bool = False) -> None:
    """Write to stderr how a final job ended.

    A terminal shows a mark, the name in bold, and a blank line `after_output`. Elsewhere it is one
    plain line, one more for the hint, and others about files that were kept outside of outputs/.
    """
    if is_terminal(sys.stderr):
        _print_on_terminal(job, after_output=after_output)
    else:
        print_status(append_clause(describe_end(job), _more(job)))
        if job.hint:
            print_status(f"hint: {job.hint}")
    _print_kept(job, "  " if is_terminal(sys.stderr) else "")


def describe_end(job: "Job") -> str:
    """Return one line about how a final job ended."""
    return f"{job.name} {_predicate(job)}"


def _print_on_terminal(job: "Job", *, after_output: bool) -> None:
    if after_output:
        print_status("")
    mark, color = _MARKS.get(job.state, _OTHER_MARK)
    predicate, more = printable(_predicate(job)), printable(f"  {_more(job)}")
    parts = [styled(_encodable(mark), color), styled(printable(job.name), "bold"), predicate]
    fits = len(f"{mark} {job.name} {predicate}{more}") <= get_terminal_size().columns
    is_one_line = fits and not job.hint
    line = " ".join(part for part in parts if part) + (styled(more, "dim") if is_one_line else "")
    print_status(line, is_printable=True)
    if job.hint:
        print_status(f"  hint: {job.hint}", "yellow")
    if not is_one_line:
        print_status(more, "dim")


def _print_kept(job: "Job", indent: str) -> None:
    """Say what was kept of the files outside of outputs/, and what was not."""
    for line in describe_kept(job.kept) if job.kept is not None else []:
        print_status(f"{indent}{line}", "dim" if line.startswith("also kept") else "yellow")


def _predicate(job: "Job") -> str:
    duration = show_duration(elapsed_seconds(job.started_at or job.created_at, job.ended_at))
    if job.state is JobState.SUCCEEDED:
        count = sum(output.path.startswith("outputs/") for output in job.outputs())
        outputs = f", {count} output{'s' * (count != 1)}" if count else ""
        return f"succeeded in {duration}{outputs}"
    verb = "was canceled" if job.state is JobState.CANCELED else "failed"
    reason = f": {job.reason}" if job.reason not in ("", job.state.value) else ""
    return f"{verb} after {duration}{reason}"


def _more(job: "Job") -> str:
    return f"see `retarget job show {job.name}`"


def _encodable(mark: str) -> str:
    """Return the mark, or an empty string if stderr cannot show it."""
    try:
        mark.encode(sys.stderr.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ""
    return mark
