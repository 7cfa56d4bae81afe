"""A process with the package loaded, which forks commands and servers: they start in milliseconds.

Each is a process of its own, with its own arguments, folder, variables, standard streams and exit
code, and ends as one that was started in the usual way, except that it does not free its memory.
Only the imports are shared.
"""

import atexit
import gc
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, TextIO

_ROOT = Path(__file__).parents[1]
_BIN = Path(sys.executable).parent
# what Python, its libraries and terminals read while they are imported
_READ_AT_IMPORT = (
    "PYTHON",
    "LANG",
    "LC_",
    "TERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "TYPER",
    "_TYPER",
    "LD_",
)
_PATHS = "PYTHONPATH"  # where plug-ins are; they replace nothing of what is loaded
_FIRST_PATHS = os.environ.get(_PATHS, "")
_IMPORTED_LATER = ("alembic.command", "uvicorn.lifespan.on", "uvicorn.loops.auto")
_MAX_REQUEST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Program:
    """`retarget` or `retarget.server`, with its arguments and what it finds around it."""

    name: str
    arguments: list[str]
    folder: str
    variables: dict[str, str]
    new_session: bool = False


@dataclass
class Started:
    """A forked process, as `subprocess.Popen` shows one."""

    pid: int
    control: socket.socket
    returncode: int | None = field(default=None)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.control.settimeout(timeout)
            try:
                answer = self.control.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0) from None
            self.returncode = int(answer)  # an empty answer is a ValueError: the parent was killed
            self.control.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0001)
        return self.returncode

    def forget(self) -> None:
        """Let it go on, whatever its exit code will be."""
        self.control.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


Process = Started | subprocess.Popen[bytes]


class Preloaded:
    """The process that forks. It ends with the process that made it."""

    def __init__(self) -> None:
        # without the home and the plug-ins of the first test: this process is not its own
        self._variables = {k: v for k, v in os.environ.items() if not k.startswith("RETARGET_")}
        self._variables[_PATHS] = _FIRST_PATHS
        self._requests, remote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote_end:
            # clients know a server by `retarget.server` among its arguments
            command = [sys.executable, "-m", "tests.preloaded", str(remote_end.fileno())]
            self._process = subprocess.Popen(
                [*command, "retarget.server"],
                cwd=_ROOT,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[remote_end.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def can_run(self, variables: Mapping[str, str]) -> bool:
        """Whether a process with these variables would import the same."""
        return _import_variables(variables) == _import_variables(self._variables)

    def start(self, program: Program, *, output: int) -> Started:
        """Start a program that reads nothing, and writes to one file."""
        with open(os.devnull, "rb") as nothing:
            return self._fork(program, nothing.fileno(), output, output)

    def _fork(self, program: Program, *streams: int) -> Started:
        # keeps apart the pid and the exit code of a process that has ended at once
        control, remote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        body = json.dumps([getattr(program, name) for name in Program.__slots__]).encode()
        with remote_end:
            socket.send_fds(self._requests, [body], [*streams, remote_end.fileno()])
        answer = control.recv(64)
        assert answer, "the process that forks has ended; its error is above"
        return Started(int(answer), control)

    def run(
        self, program: Program, *, input: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, and return what it wrote, as `subprocess.run` does."""
        reads, writes = zip(os.pipe(), os.pipe(), os.pipe(), strict=True)
        streams = [_Reader(os.fdopen(end, "rb")) for end in reads[1:]]
        try:
            started = self._fork(program, reads[0], *writes[1:])
        finally:
            for end in (reads[0], *writes[1:]):
                os.close(end)
        with os.fdopen(writes[0], "wb") as stdin, suppress(BrokenPipeError):
            stdin.write((input or "").encode())
        try:
            code = started.wait(timeout)
        except subprocess.TimeoutExpired:
            os.kill(started.pid, signal.SIGKILL)
            started.wait()
            raise
        texts = [stream.text() for stream in streams]
        return subprocess.CompletedProcess([program.name, *program.arguments], code, *texts)

    def close(self) -> None:
        self._requests.close()
        self._process.wait(60)


@cache
def preloaded() -> Preloaded:
    """Return the one process of this test process, which is started when it is first needed."""
    process = Preloaded()
    atexit.register(process.close)
    return process


class _Reader(threading.Thread):
    """Reads a pipe to its end beside whatever else happens."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._file, self._content = file, b""
        self.start()

    def run(self) -> None:
        with self._file:
            self._content = self._file.read()

    def text(self) -> str:
        self.join(100)
        assert not self.is_alive(), "the command has ended, but something keeps its output open"
        return self._content.decode().replace("\r\n", "\n")


def _import_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in variables.items()
        if name.startswith(_READ_AT_IMPORT) and name != _PATHS
    }


def _serve(requests: socket.socket) -> Program:
    """Fork for each program, and return in the child. Exits when nobody asks any more."""
    children: dict[int, socket.socket] = {}
    wakeup, wakeup_sender = socket.socketpair()
    wakeup_sender.setblocking(False)
    signal.set_wakeup_fd(wakeup_sender.fileno())
    signal.signal(signal.SIGCHLD, _ignore)
    while True:
        ready, _, _ = select.select([requests, wakeup], [], [])
        if wakeup in ready:
            wakeup.recv(1000)
            _reap(children)
        if requests in ready:
            body, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 4)
            if not body:
                os._exit(0)
            control = socket.socket(fileno=descriptors.pop())
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for open_socket in (requests, wakeup, wakeup_sender, control, *children.values()):
                    open_socket.close()
                return _become(Program(*json.loads(body)), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            children[pid] = control
            control.send(str(pid).encode())


def _reap(children: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with children.pop(pid) as control, suppress(OSError):
                control.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(program: Program, descriptors: list[int]) -> Program:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Python looks at what it writes to when it opens the streams
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), sys.stdin.encoding, sys.stdin.errors
    )
    sys.stdout = sys.__stdout__ = _writer(sys.stdout, line_buffering=os.isatty(1))
    sys.stderr = sys.__stderr__ = _writer(sys.stderr, line_buffering=True)
    if program.new_session:
        os.setsid()
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.variables)
    sys.path[1:1] = filter(None, program.variables.get(_PATHS, "").split(os.pathsep))
    return program


def _writer(stream: TextIO, *, line_buffering: bool) -> TextIO:
    raw = io.BufferedWriter(io.FileIO(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=line_buffering)


def _ignore(number: int, frame: FrameType | None) -> None: ...


def _load() -> None:
    """Import all that commands and servers import, at the latest when they first do something."""
    names = ["retarget.server.__main__", *_IMPORTED_LATER]
    for package in ("retarget.cli", "retarget.sdk", "retarget.drivers"):
        modules = pkgutil.iter_modules(import_module(package).__path__, f"{package}.")
        names += [module.name for module in modules]
    for name in names:
        import_module(name)
    gc.collect()
    gc.freeze()


def main() -> NoReturn:
    requests = socket.socket(fileno=int(sys.argv[1]))
    _load()
    program = _serve(requests)
    programs: dict[str, Any] = {"retarget": _command, "retarget.server": _server}
    programs[program.name](program.arguments)
    raise AssertionError("a program has returned")


def _command(arguments: list[str]) -> NoReturn:
    from retarget.__main__ import main as run

    sys.argv = [str(_BIN / "retarget"), *arguments]
    sys.path[0] = str(_BIN)
    _exit_after(run)


def _server(arguments: list[str]) -> NoReturn:
    from retarget.server.__main__ import main as run

    sys.argv = ["retarget.server", *arguments]
    sys.path[0] = os.getcwd()
    _exit_after(lambda: sys.exit(run()))


def _exit_after(program: Callable[[], NoReturn]) -> NoReturn:
    """Exit as Python does, but leave the memory alone: freeing it would copy all of it first."""
    try:
        program()
    except SystemExit as exit:
        code = exit.code
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    threading._shutdown()  # pyright: ignore  # as Python does
    atexit._run_exitfuncs()  # pyright: ignore
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
