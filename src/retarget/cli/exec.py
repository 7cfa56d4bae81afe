"""`retarget exec`: a command or a shell beside the script of a running job."""

import os
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.completion import complete_job
from retarget.cli.lookup import find_job
from retarget.cli.terminal import print_status
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.executions import Execution

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_DEFAULT_TERM = "xterm"
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def exec_(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME [-- COMMAND]",
            help="Name or id of a running job. Default command: a shell.",
            autocompletion=complete_job,
        ),
    ],
    rank: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Run beside process N of the job.")
    ] = None,
    node: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Run on node N of the job.")
    ] = None,
) -> None:
    """Run a command, or a shell, beside the script of a running job.

    It runs where the script runs: in the folder of the job, with the variables, the environment and
    the PATH of the script, and in its container if it has one. The exit code is that of the
    command, or 128 + n if signal n ended it.

    If stdin and stdout are a terminal, the command gets a terminal, and Ctrl-C goes to the command.
    Otherwise stdin, stdout and stderr are pipes. The command ends when the script ends, or when you
    disconnect. Its output is not part of the log, and secrets in it are not masked.

    \b
    Examples:
      retarget exec night                     a shell
      retarget exec night -- nvidia-smi
      retarget exec --rank 3 night -- py-spy top --pid 4711
      retarget exec night -- cat outputs/model.pt > model.pt
    """
    if context.args:
        words = shlex.join(context.args)
        raise Invalid(f"write the command after `--`: retarget exec {name} -- {words}")
    command: list[str] = context.obj or []
    job = find_job(name)
    has_terminal = os.isatty(_STDIN) and os.isatty(_STDOUT)
    terminal = _describe_terminal() if has_terminal else None
    with job.execution(command, rank=rank, node=node, terminal=terminal) as execution:
        code, reason = _communicate(execution, has_terminal=has_terminal)
    if reason:
        print_status(f"{job.name}: {reason}", "red")
    raise typer.Exit(code)


def _communicate(execution: "Execution", *, has_terminal: bool) -> tuple[int, str]:
    """Connect this process with the command until that has ended."""
    with _signals() as (signals, numbers), _raw_terminal(has_terminal):
        interrupts = 0

        def handle_signals() -> None:
            nonlocal interrupts
            for number in numbers():
                if number in _ENDING_SIGNALS:
                    raise typer.Exit(128 + number)
                if number == signal.SIGWINCH and has_terminal:
                    execution.resize(*_size())
                elif number == signal.SIGINT:
                    interrupts += 1
                    if interrupts > 1:  # the command ignores them
                        raise KeyboardInterrupt
                    execution.signal("INT")

        return execution.communicate(_write, stdin=_STDIN, wake=signals, on_wake=handle_signals)


def _write(kind: int, content: bytes) -> None:
    from retarget.runner.exec_frames import ERROR

    descriptor = _STDERR if kind == ERROR else _STDOUT
    while content:
        content = content[os.write(descriptor, content) :]


def _describe_terminal() -> dict[str, Any]:
    rows, columns = _size()
    return {"rows": rows, "columns": columns, "term": os.environ.get("TERM") or _DEFAULT_TERM}


def _size() -> tuple[int, int]:
    size = os.get_terminal_size(_STDOUT)
    return size.lines, size.columns


@contextmanager
def _signals() -> Generator[tuple[int, Any]]:
    """Collect signals. Yield a descriptor to wait on, and a function that returns the numbers."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)

    def collect(number: int, _: FrameType | None) -> None:
        with suppress(BlockingIOError):  # many of them wait already
            os.write(write, bytes([number]))

    numbers = (signal.SIGINT, signal.SIGWINCH, *_ENDING_SIGNALS)
    previous = {number: signal.signal(number, collect) for number in numbers}
    try:
        yield read, lambda: os.read(read, 4096)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


@contextmanager
def _raw_terminal(is_terminal: bool) -> Generator[None]:
    """Pass every key on, and restore the terminal at the end, whatever ends this."""
    if not is_terminal:
        yield
        return
    import termios
    import tty

    sys.stdout.flush()
    before = termios.tcgetattr(_STDIN)
    try:
        tty.setraw(_STDIN, termios.TCSADRAIN)  # keeps what was typed already
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
