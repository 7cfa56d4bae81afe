"""The moment of submitting, and what the terminal shows from then on."""

from collections.abc import Callable
from queue import SimpleQueue

from retarget.cli.interrupt import Interrupts
from retarget.cli.terminal import say, tell
from retarget.cli.watch import Events, watch
from retarget.sdk.jobs import Job


def show_submitted(submit: Callable[[], Job], *, detach: bool) -> int:
    """Submit a job and watch it, or with `detach` print its name; return the exit code."""
    events: Events = SimpleQueue()
    with Interrupts(events):  # from here on there is a job that Ctrl-C is about
        job = submit()
        if detach:
            tell(job.name)
            return 0
        say(f"{job.name} on {job.target}", "dim")
        return watch(job, events)
