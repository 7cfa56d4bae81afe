"""Runs a notebook with papermill: `python -m retarget_notebook NOTEBOOK [ARGUMENTS OF PAPERMILL]`.

Every job finds this module under that name. It stands alone, and runs with the job's Python: its
kernel is that Python, whatever kernel the notebook names.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from importlib import import_module
from threading import Thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

_ENGINE = "retarget"
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_MAX_CHARACTERS = 1000  # of the message of an exception, in the last line
_NOT_INSTALLED = (
    "{name}: error: {module} is not installed where this notebook runs; install papermill (2.0 or "
    "newer) and ipykernel there: in the Dockerfile of an image, or with --pip papermill --pip "
    "ipykernel"
)
_LAUNCHER = ["-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=CRITICAL"]
_TAIL_BYTES = 8192


class _KernelEnded(Exception):
    """The kernel ended while a cell ran. The exit code is that of a shell."""

    def __init__(self, cell: int, exit_code: int) -> None:
        super().__init__(cell, exit_code)
        self.cell = cell
        self.exit_code = exit_code


def main(arguments: list[str]) -> None:
    """Run a notebook and exit: 1 if a cell failed, else the exit code of papermill or the kernel.

    The executed notebook is `outputs/NAME`. It is saved after every cell, and when this process
    gets SIGTERM.
    """
    notebook = arguments[0]
    # that of the code: a file there must not replace a module of papermill
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    signal.signal(signal.SIGTERM, _stop)
    try:
        command = _papermill()
    except ImportError as error:
        sys.exit(_NOT_INSTALLED.format(name=notebook, module=error.name or "papermill"))
    errors: Any = import_module("papermill.exceptions")
    try:
        command.main([*_options(notebook), *arguments[1:]], prog_name="papermill")
    except errors.PapermillExecutionError as error:
        message = f"{error.ename}: {error.evalue}".rstrip(": ")
        _exit(1, error.exec_count, notebook, message)
    except _KernelEnded as error:
        _exit(error.exit_code or 1, error.cell, notebook, _describe_end(error.exit_code))


def _stop(number: int, _frame: Any) -> None:
    sys.exit(128 + number)  # papermill saves the notebook


def _papermill() -> Any:
    """Return the command of papermill, which has learned to run notebooks as a job needs it."""
    import_module("ipykernel")
    command: Any = import_module("papermill.cli")
    engines: Any = import_module("papermill.engines")
    engines.papermill_engines.register(_ENGINE, _engine(engines))
    return command.papermill


def _options(notebook: str) -> list[str]:
    stem, extension = os.path.splitext(os.path.basename(notebook))
    rank = os.environ.get("RANK", "0")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        stem = f"{stem}-rank-{rank}"  # every rank has its own
    options = ["--engine", _ENGINE, "--kernel", "python3", "--language", "python"]
    options += ["--cwd", os.path.dirname(notebook) or ".", "--no-progress-bar"]
    return [notebook, os.path.join("outputs", stem + extension), *options, "--log-level", "WARNING"]


def _engine(engines: Any) -> Any:
    """Return an engine of papermill that shows the output of cells as it is written."""
    client_class = _client_class()
    base: Any = engines.NBClientEngine

    class Engine(base):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            client = client_class(
                nb_man,
                kernel_name=kernel_name,
                log=engines.logger,
                log_output=True,
                startup_timeout=options.get("start_timeout") or 60,
                timeout=options.get("execution_timeout"),
            )
            tail = _Tail()
            try:
                return client.execute(stdout=tail.write_end, stderr=tail.write_end)
            except Exception:  # the kernel itself failed, not a cell
                _write(sys.stderr, tail.text())
                raise

    return Engine


def _client_class() -> Any:
    base: Any = import_module("papermill.clientwrap").PapermillNotebookClient
    dead: Any = import_module("nbclient.exceptions").DeadKernelError

    class Client(base):
        def create_kernel_manager(self) -> Any:
            manager = base.create_kernel_manager(self)
            manager.kernel_spec_manager = _kernel_specs()
            return manager

        def papermill_execute_cells(self) -> None:
            process = getattr(getattr(self.km, "provisioner", None), "process", None)
            try:
                base.papermill_execute_cells(self)
            except dead:
                cells = [cell for cell in self.nb.cells if cell.cell_type == "code"]
                started = [cell for cell in cells if cell.metadata.papermill.get("start_time")]
                status: int = getattr(process, "returncode", None) or 0
                code = 128 - status if status < 0 else status
                raise _KernelEnded(len(started), code) from None

        def log_output_message(self, output: Any) -> None:
            _show(output)

    return Client


def _kernel_specs() -> Any:
    """Return a manager that knows one kernel: this Python."""
    kernelspec: Any = import_module("jupyter_client.kernelspec")

    class KernelSpecs(kernelspec.KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> Any:
            argv = [sys.executable, *_LAUNCHER]
            return kernelspec.KernelSpec(argv=argv, display_name="Python 3", language="python")

    return KernelSpecs()


class _Tail:
    """The last bytes of what the kernel writes beside its messages, such as why it did not start.

    What a cell writes there, such as with `os.system`, comes as a message too.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._content = b""
        Thread(target=self._read, daemon=True).start()

    def text(self) -> str:
        return self._content.decode("utf-8", "backslashreplace")

    def _read(self) -> None:
        while True:
            content = os.read(self._read_end, _TAIL_BYTES)
            self._content = (self._content + content)[-_TAIL_BYTES:]


def _show(output: Any) -> None:
    """Write an output of a cell as a script would have written it."""
    if output.output_type == "stream":
        _write(sys.stderr if output.name == "stderr" else sys.stdout, "".join(output.text))
    elif output.output_type == "error":
        text = _ESCAPE.sub("", "\n".join(output.traceback))
        _write(sys.stderr, f"{text}\n")
    elif "text/plain" in output.get("data", {}):
        _write(sys.stdout, "".join(output.data["text/plain"]) + "\n")


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _describe_end(exit_code: int) -> str:
    if exit_code <= 128:
        return f"the kernel ended with exit code {exit_code}"
    try:
        name = signal.Signals(exit_code - 128).name
    except ValueError:
        name = f"signal {exit_code - 128}"
    return f"the kernel was killed by {name}"


def _exit(code: int, cell: int, notebook: str, message: str) -> None:
    """Exit with a last line that `failure.py` reads."""
    line = " ".join(_ESCAPE.sub("", message).split())[:_MAX_CHARACTERS]
    _write(sys.stderr, f"retarget: cell {cell} of {notebook} failed: {line}\n")
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
