"""A home with a real server and real jobs, any part of which may be killed."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from retarget.core.home import Home
from retarget.core.names import new_id
from retarget.core.snapshots import Entry, Manifest, digest_bytes
from retarget.core.states import JobState
from tests.chaos.chaos_script import started_launches
from tests.chaos.processes import Process, kill_together, processes, read_process
from tests.preloaded import Process as ServerProcess
from tests.preloaded import Program, preloaded

Part = Literal["server", "runner", "script", "host"]
View = dict[str, Any]
T = TypeVar("T")
TIMEOUT_SECONDS = 200.0
_POLL = "0.2"
SCRIPT_FILE = Path(__file__).with_name("chaos_script.py")
_SCRIPT = "chaos_script.py"


@dataclass(frozen=True)
class Submitted:
    """A job that a test submitted."""

    id: str
    name: str
    kind: str
    retries: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class Kill:
    """A live process that was killed, and how far its launch had come by then."""

    part: Part
    job: str
    launch: str
    rank: int = 0
    started: bool = False  # the runner had recorded that it starts the script
    decided: bool = False  # the runner had recorded how the script ended


class ChaosServer:
    target = "local"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = Home(root / "home")
        self.records = root / "records"
        self.remote_records = str(self.records)  # their path for the scripts
        self.kills: list[Kill] = []
        self.canceled: set[str] = set()
        self._server: ServerProcess | None = None
        self._log = root / "server.log"
        self._read = 0
        self._snapshots: dict[tuple[int, bytes], str] = {}
        self.records.mkdir(parents=True)

    # -- the server

    def start(self, *, ready: bool = True, **variables: str) -> ServerProcess:
        """Start a server; with `ready`, return when it answers.

        Without `ready`, it starts as slowly as for users, so that it can be killed meanwhile.
        """
        defaults = {
            "RETARGET_HOME": str(self.home.root),
            "RETARGET_POLL_SECONDS": _POLL,
            "UV_CACHE_DIR": str(self.root / "uv"),
        }
        environ = os.environ | defaults | variables
        with self._log.open("ab") as log:
            self._server = (
                self._fork(environ, log.fileno()) if ready else self._start(environ, log.fileno())
            )
        if ready:
            eventually(self._is_ready, "the server is ready")
        return self._server

    def _fork(self, environ: dict[str, str], log: int) -> ServerProcess:
        program = Program("retarget.server", [], str(self.root), environ, new_session=True)
        return preloaded().start(program, output=log)

    def _start(self, environ: dict[str, str], log: int) -> ServerProcess:
        return subprocess.Popen(
            [sys.executable, "-m", "retarget.server"],
            cwd=self.root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The pid of the live server, from its server.json."""
        return json.loads(self.home.server("main").info.read_text())["pid"]

    @property
    def is_up(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def pause_server(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def continue_server(self) -> None:
        if self.is_up:
            os.kill(self.pid, signal.SIGCONT)

    def kill_server(self) -> None:
        server = read_process(self.pid)
        assert server is not None
        assert kill_together([server])
        self.reap()

    def kill_server_after(self, delay: float) -> threading.Thread:
        """Kill the server after a delay, while the caller does something else."""
        server = read_process(self.pid)
        assert server is not None
        timer = threading.Timer(delay, kill_together, [[server]])
        timer.start()
        return timer

    def adopt(self, server: ServerProcess) -> None:
        """Use this one of several servers that were started."""
        self._server = server

    def reap(self) -> None:
        if self._server is not None:
            self._server.wait(TIMEOUT_SECONDS)

    def close(self) -> None:
        """Stop the server and kill what remains, even after a failure."""
        if self.is_up:
            self.continue_server()
            with suppress(OSError):
                self.call("POST", "/api/server/stop")
                self.reap()
        kill_together(
            ChaosServer.processes(self)
        )  # those on hosts and in containers end with these

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self.fetch(method, path, body) or b"null")

    def fetch(self, method: str, path: str, body: Any = None) -> bytes:
        info = json.loads(self.home.server("main").info.read_text())
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        token = self.home.token.read_text()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(
            info["url"] + path, method=method, headers=headers, data=content
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return answer.read()

    def logged_errors(self) -> str:
        """Return the new part of the server's log if it has a traceback or an error."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            text = log.read().decode(errors="replace")
            self._read = log.tell()
        has_error = "Traceback" in text or " ERROR " in text
        return text if has_error else ""

    # -- jobs

    def attach(self) -> None:
        """Register the target that this server's jobs run on. `local` is registered already."""

    def submit(self, kind: str, **options: Any) -> Submitted:
        name = options.get("name") or f"{kind}-{new_id(time.time())[-10:]}"
        spec = {
            "name": name,
            "target": self.target,
            "command": ["python", "-S", _SCRIPT, kind],
            "snapshot": self._code(options.pop("files", 0), options.pop("bulk", b"")),
            "variables": {"CHAOS": self.remote_records},
            "grace_seconds": 0.3,
            "cpus": 0.5,
        }
        view = self.call("POST", "/api/jobs", spec | options)
        return Submitted(
            id=view["id"],
            name=name,
            kind=kind,
            retries=options.get("retries", 0),
            ranks=options.get("processes_per_node", 1) * options.get("nodes", 1),
        )

    def cancel(self, job: Submitted) -> bool:
        """Request a stop; return False if the job had already ended."""
        try:
            self.call("POST", f"/api/jobs/{job.id}/cancel")
        except urllib.error.HTTPError as refused:
            if refused.code != 409:
                raise
            return False
        self.canceled.add(job.id)
        return True

    def show(self, job: Submitted) -> View:
        return self.call("GET", f"/api/jobs/{job.id}")

    def wait(self, job: Submitted) -> View:
        """Wait until the job is final."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        view = self.show(job)
        while not JobState(view["state"]).is_final:
            assert time.monotonic() < deadline, f"{job.name} is still {view['state']}: {view}"
            path = f"/api/jobs/{job.id}?wait=5&version={view['version']}"
            view = self.call("GET", path)
        return view

    def wait_for(self, job: Submitted, state: str) -> None:
        eventually(lambda: self.show(job)["state"] == state, f"{job.name} is {state}")

    def log(self, job: Submitted, attempt: int, stream: str = "output") -> bytes:
        return self.fetch("GET", f"/api/jobs/{job.id}/logs?attempt={attempt}&stream={stream}")

    def open_gate(self, job: Submitted) -> None:
        """Let a `hold` script end."""
        (self.records / f"gate.{job.name}").touch()

    def _code(self, files: int, bulk: bytes) -> str:
        """Return the snapshot of the script, with this many other files, which take time to copy.

        `bulk` is the content of one more file, which takes time to download the first time.
        """
        if (files, bulk) not in self._snapshots:
            code = SCRIPT_FILE.read_bytes()
            names = [_SCRIPT, *(f"data/{number}" for number in range(files))]
            entries = [Entry(name, len(code), digest_bytes(code)) for name in names]
            if bulk:
                entries.insert(0, Entry("bulk", len(bulk), digest_bytes(bulk)))
            manifest = Manifest(tuple(sorted(entries, key=lambda entry: entry.path)))
            for blob in filter(None, (code, bulk, manifest.encode())):
                self.call("PUT", f"/api/blobs/{digest_bytes(blob)}", blob)
            self._snapshots[files, bulk] = manifest.digest
        return self._snapshots[files, bulk]

    def starts(self, job: Submitted) -> int:
        """Return how often its script was started."""
        return len(self.started_launches(job))

    def started_launches(self, job: Submitted) -> list[str]:
        """Return the launch of each start of its script."""
        return started_launches(self.records, job.name)

    def size_of(self, job: Submitted) -> int:
        """Return how many bytes the scripts of its current launch have written."""
        launch = self.launch_of(job)
        assert launch is not None
        return sum(record.stat().st_size for record in self.records.glob(f"{launch.name}.*"))

    # -- launches on disk

    def launches(self) -> list[Path]:
        """List the folders of launches, including hidden ones."""
        return list((self.home.target("local") / "launches").glob("*"))

    def folder_of(self, runner: Process) -> Path:
        """Return the folder that a runner works on, as a path on this machine."""
        return Path(runner.arguments[1])

    def launch_of(self, job: Submitted) -> Path | None:
        """Return the folder of the job's current launch."""
        for folder in sorted(self.launches(), key=lambda path: path.name, reverse=True):
            with suppress(OSError, ValueError):
                content = json.loads((folder / "launch.json").read_text())
                if content["launch"]["job"] == job.id:
                    return folder
        return None

    def journal(self, folder: Path) -> list[dict[str, Any]]:
        try:
            lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def has_event(self, job: Submitted, kind: str) -> bool:
        folder = self.launch_of(job)
        return folder is not None and any(event["kind"] == kind for event in self.journal(folder))

    # -- killing

    def processes(self) -> list[Process]:
        """List the processes that were started for this home, except zombies."""
        return [
            process
            for process in processes()
            if process.pid != os.getpid() and process.is_alive and process.names(self.root)
        ]

    def alive(self, known: list[Process]) -> list[Process]:
        """Return those of these processes that are still alive."""
        present = {(process.pid, process.started) for process in self.processes()}
        return [process for process in known if (process.pid, process.started) in present]

    def runners(self, job: Submitted) -> list[Process]:
        folder = self.launch_of(job)
        if folder is None:
            return []
        return [
            process
            for process in self.processes()
            if process.arguments[:1] == ("run",) and Path(process.arguments[1]).name == folder.name
        ]

    def fork_servers(self) -> list[Process]:
        """List the fork servers, and the idle runners that wait for work."""
        return [process for process in self.processes() if process.arguments[:1] == ("forkserver",)]

    def scripts(self, job: Submitted) -> list[Process]:
        """List the main processes of a job, one per rank."""
        return [
            process
            for process in self.processes()
            if process.environ.get("RETARGET_JOB") == job.name
            and process.command[1:] == ("-S", _SCRIPT, job.kind)
        ]

    def pause_runner(self, job: Submitted) -> None:
        for runner in self.runners(job):
            os.kill(runner.pid, signal.SIGSTOP)

    def builders(self, job: Submitted) -> list[Process]:
        """List the processes that build the environment of a job."""
        folder = self.launch_of(job)
        if folder is None:
            return []
        marked = [
            process
            for process in self.processes()
            if process.environ.get("RETARGET_LAUNCH") == folder.name
        ]
        return sorted(marked, key=lambda process: process.pid)

    def kill(
        self, parts: Iterable[Part], job: Submitted, *, scripts: list[Process] | None = None
    ) -> list[Kill]:
        """Kill these parts of one job together. Return those that were alive."""
        processes_of: dict[Part, Callable[[], list[Process]]] = {
            "server": lambda: [
                process for process in [read_process(self.pid)] if process is not None
            ],
            "runner": lambda: self.runners(job),
            "script": lambda: self.scripts(job) if scripts is None else scripts,
            "host": lambda: [],  # it is only silenced
        }
        chosen: list[tuple[Part, Process]] = [
            (part, process) for part in parts for process in processes_of[part]()
        ]
        folders = {
            process.pid: self.folder_of(process) for part, process in chosen if part == "runner"
        }
        killed = kill_together(process for _, process in chosen)
        if "server" in parts:
            self.reap()
        kills = [
            self.describe_kill(process, job, folders[process.pid])
            if part == "runner"
            else _kill_of(part, process, job)
            for part, process in chosen
            if process in killed
        ]
        self.kills += kills
        return kills

    def describe_kill(self, runner: Process, job: Submitted, folder: Path) -> Kill:
        """Return the kill of a runner, with how far it had come according to its journal."""
        events, own = self.journal(folder), False
        started = decided = False
        for event in events:
            if event["kind"] == "preparing":
                own = event["pid"] == runner.inner
            started |= own and event["kind"] == "starting"
            decided |= event["kind"] in ("clearing", "exited") and event["outcome"] != "lost"
        return Kill("runner", job.id, folder.name, started=started, decided=decided)

    # -- leftovers

    def settle(self) -> None:
        """Check that nothing of ended jobs remains, or fail and name it."""
        deadline = time.monotonic() + 200
        while (leftovers := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not leftovers, f"these remain: {leftovers}"
        assert not (errors := self.logged_errors()), errors

    def leftovers(self) -> list[str]:
        leftovers = [
            str(process) for process in self.processes() if not self.belongs_to_server(process)
        ]
        leftovers += [f"launch {folder.name}" for folder in self.launches()]
        for folder, _, names in os.walk(self.home.root):
            paths = [Path(folder, name) for name in names]
            leftovers += [f"temporary file {path}" for path in paths if _is_temporary(path)]
            leftovers += [f"lock {path}" for path in paths if self._is_locked(path)]
        return leftovers

    def belongs_to_server(self, process: Process) -> bool:
        """Return whether the process belongs to the server and not to a job."""
        return self._is_server(process) or self._is_fork_server(process)

    def _is_locked(self, path: Path) -> bool:
        return path.suffix == ".lock" and path != self.home.server_lock and is_held(path)

    def _is_server(self, process: Process) -> bool:
        return self._server is not None and process.pid == self._server.pid

    def _is_fork_server(self, process: Process) -> bool:
        fork_servers = self.fork_servers()
        server = self._server.pid if self._server is not None else 0
        direct = [process.pid for process in fork_servers if process.parent == server]
        return process in fork_servers and process.parent in (server, *direct)

    def _is_ready(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, self._log.read_text()[-3000:]
        with suppress(OSError, ValueError):
            return self.pid == self._server.pid
        return False


def _kill_of(part: Part, process: Process, job: Submitted) -> Kill:
    launch = process.environ.get("RETARGET_LAUNCH", "")
    return Kill(part, job.id, launch, rank=int(process.environ.get("RANK", "0")))


def _is_temporary(path: Path) -> bool:
    return ".part" in path.name or (path.parent.name == "runners" and path.suffix != ".pyz")


def eventually(
    condition: Callable[[], T], description: str, *, timeout: float = TIMEOUT_SECONDS
) -> T:
    """Wait until the condition returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"this never happened: {description}"
        time.sleep(0.01)
    return result


def is_held(lock: Path) -> bool:
    """Return whether a live process holds this lock."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
