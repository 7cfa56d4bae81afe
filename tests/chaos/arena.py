"""One home with a real server and real jobs, in which anything may be killed."""

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
from tests.chaos.processes import Process, kill_together, look, processes
from tests.chaos.victim import starts_of

Part = Literal["server", "runner", "script", "host"]
View = dict[str, Any]
T = TypeVar("T")
PATIENCE = 60.0
_POLL = "0.2"
VICTIM = Path(__file__).with_name("victim.py")
_SCRIPT = "victim.py"


@dataclass(frozen=True)
class Submitted:
    """A job of ours."""

    id: str
    name: str
    kind: str
    retries: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class Kill:
    """Something that was alive and was killed, and how far its launch had come by then."""

    part: Part
    job: str
    launch: str
    rank: int = 0
    started: bool = False  # the runner had begun to start the script
    decided: bool = False  # the runner had written down how it ended


class Arena:
    target = "local"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = Home(root / "home")
        self.records = root / "records"
        self.records_there = str(self.records)  # as the scripts find them
        self.kills: list[Kill] = []
        self.canceled: set[str] = set()
        self._server: subprocess.Popen[bytes] | None = None
        self._log = root / "server.log"
        self._read = 0
        self._snapshots: dict[tuple[int, bytes], str] = {}
        self.records.mkdir(parents=True)

    # -- the server

    def start(self, *, ready: bool = True, **variables: str) -> subprocess.Popen[bytes]:
        """Start a server; with `ready`, return when it answers."""
        given = {
            "RETARGET_HOME": str(self.home.root),
            "RETARGET_POLL_SECONDS": _POLL,
            "UV_CACHE_DIR": str(self.root / "uv"),
        }
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "retarget.server"],
                cwd=self.root,
                env=os.environ | given | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if ready:
            eventually(self._is_ready, "the server gets ready")
        return self._server

    @property
    def pid(self) -> int:
        """The live server's, as it says itself."""
        return json.loads(self.home.server_file.read_text())["pid"]

    @property
    def is_up(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def pause_server(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def continue_server(self) -> None:
        if self.is_up:
            os.kill(self.pid, signal.SIGCONT)

    def kill_server(self) -> None:
        found = look(self.pid)
        assert found is not None
        assert kill_together([found])
        self.reap()

    def kill_server_after(self, delay: float) -> threading.Thread:
        """Kill the server a little later, while the caller does something else."""
        found = look(self.pid)
        assert found is not None
        timer = threading.Timer(delay, kill_together, [[found]])
        timer.start()
        return timer

    def adopt(self, server: subprocess.Popen[bytes]) -> None:
        """Take this one for the server, of several that were started."""
        self._server = server

    def reap(self) -> None:
        if self._server is not None:
            self._server.wait(PATIENCE)

    def close(self) -> None:
        """Stop the server, and end whatever else is left, also after a failure."""
        if self.is_up:
            self.continue_server()
            with suppress(OSError):
                self.call("POST", "/api/server/stop")
                self.reap()
        kill_together(Arena.processes(self))  # those elsewhere end with their place

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self.fetch(method, path, body) or b"null")

    def fetch(self, method: str, path: str, body: Any = None) -> bytes:
        facts = json.loads(self.home.server_file.read_text())
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        token = self.home.token.read_text()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(
            facts["url"] + path, method=method, headers=headers, data=content
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read()

    def complaints(self) -> str:
        """Return what the server's log has had of tracebacks and errors since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            said = log.read().decode(errors="replace")
            self._read = log.tell()
        bad = "Traceback" in said or " ERROR " in said
        return said if bad else ""

    # -- jobs

    def attach(self) -> None:
        """Make known where jobs of this arena run. The machine itself is known."""

    def submit(self, kind: str, **options: Any) -> Submitted:
        name = options.get("name") or f"{kind}-{new_id(time.time())[-10:]}"
        spec = {
            "name": name,
            "target": self.target,
            "command": ["python", "-S", _SCRIPT, kind],
            "snapshot": self._code(options.pop("files", 0), options.pop("bulk", b"")),
            "env": {"CHAOS": self.records_there},
            "grace": 0.3,
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
        """Order a stop; False when the job had ended already."""
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
        deadline = time.monotonic() + PATIENCE
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
        """Let a `hold` script come to its end."""
        (self.records / f"gate.{job.name}").touch()

    def _code(self, files: int, bulk: bytes) -> str:
        """Return the snapshot of the script, with so many other files that take time to lay out.

        `bulk` is one more, that takes time to be fetched where it has never been.
        """
        if (files, bulk) not in self._snapshots:
            code = VICTIM.read_bytes()
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
        return starts_of(self.records, job.name)

    def size_of(self, job: Submitted) -> int:
        """Return how much the scripts of its present launch have said, heard or not."""
        launch = self.launch_of(job)
        assert launch is not None
        return sum(each.stat().st_size for each in self.records.glob(f"{launch.name}.*"))

    # -- launches on disk

    def launches(self) -> list[Path]:
        """List the folders of launches, hidden ones too."""
        return list((self.home.target("local") / "launches").glob("*"))

    def folder_of(self, runner: Process) -> Path:
        """Return the folder that a runner works on, as it is seen from here."""
        return Path(runner.told[1])

    def launch_of(self, job: Submitted) -> Path | None:
        """Return the folder of the job's present launch."""
        for folder in sorted(self.launches(), key=lambda each: each.name, reverse=True):
            with suppress(OSError, ValueError):
                told = json.loads((folder / "launch.json").read_text())
                if told["launch"]["job"] == job.id:
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
        """List what was started for this home, zombies of ours left out."""
        return [
            process
            for process in processes()
            if process.pid != os.getpid() and process.is_alive and process.names(self.root)
        ]

    def alive(self, known: list[Process]) -> list[Process]:
        """Return those of these that are still there."""
        present = {(each.pid, each.started) for each in self.processes()}
        return [each for each in known if (each.pid, each.started) in present]

    def runners(self, job: Submitted) -> list[Process]:
        folder = self.launch_of(job)
        if folder is None:
            return []
        return [
            each
            for each in self.processes()
            if each.told[:1] == ("run",) and Path(each.told[1]).name == folder.name
        ]

    def nurseries(self) -> list[Process]:
        """List what forks runners for the server, and the runners that wait there for work."""
        return [each for each in self.processes() if each.told[:1] == ("nursery",)]

    def scripts(self, job: Submitted) -> list[Process]:
        """List the main processes of a job, one for each rank."""
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
        """List what builds the environment of a job."""
        folder = self.launch_of(job)
        if folder is None:
            return []
        marked = [
            each for each in self.processes() if each.environ.get("RETARGET_LAUNCH") == folder.name
        ]
        return sorted(marked, key=lambda each: each.pid)

    def kill(
        self, parts: Iterable[Part], job: Submitted, *, scripts: list[Process] | None = None
    ) -> list[Kill]:
        """Kill these parts of one job together. Return what was there to be killed."""
        meant: dict[Part, Callable[[], list[Process]]] = {
            "server": lambda: [each for each in [look(self.pid)] if each is not None],
            "runner": lambda: self.runners(job),
            "script": lambda: self.scripts(job) if scripts is None else scripts,
            "host": lambda: [],  # only silent
        }
        found: list[tuple[Part, Process]] = [
            (part, each) for part in parts for each in meant[part]()
        ]
        folders = {each.pid: self.folder_of(each) for part, each in found if part == "runner"}
        hit = kill_together(each for _, each in found)
        if "server" in parts:
            self.reap()
        kills = [
            self.account_of(each, job, folders[each.pid])
            if part == "runner"
            else _kill_of(part, each, job)
            for part, each in found
            if each in hit
        ]
        self.kills += kills
        return kills

    def account_of(self, runner: Process, job: Submitted, folder: Path) -> Kill:
        """Return the kill of a runner, with how far it had come by what it has written down."""
        events, own = self.journal(folder), False
        started = decided = False
        for event in events:
            if event["kind"] == "preparing":
                own = event["pid"] == runner.inner
            started |= own and event["kind"] == "starting"
            decided |= event["kind"] in ("clearing", "exited") and event["outcome"] != "lost"
        return Kill("runner", job.id, folder.name, started=started, decided=decided)

    # -- what must not remain

    def settle(self) -> None:
        """See that nothing of ended jobs remains, or fail and name it."""
        deadline = time.monotonic() + 15
        while (left := self.remains()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"these remain: {left}"
        assert not (said := self.complaints()), said

    def remains(self) -> list[str]:
        left = [str(each) for each in self.processes() if not self.may_stay(each)]
        left += [f"launch {each.name}" for each in self.launches()]
        for where, _, names in os.walk(self.home.root):
            paths = [Path(where, name) for name in names]
            left += [f"temporary file {path}" for path in paths if _is_temporary(path)]
            left += [f"lock {path}" for path in paths if self._is_locked(path)]
        return left

    def may_stay(self, process: Process) -> bool:
        """Tell whether it is there for the server, and not for a job."""
        return self._is_server(process) or self._is_its_nursery(process)

    def _is_locked(self, path: Path) -> bool:
        return path.suffix == ".lock" and path != self.home.server_lock and is_held(path)

    def _is_server(self, process: Process) -> bool:
        return self._server is not None and process.pid == self._server.pid

    def _is_its_nursery(self, process: Process) -> bool:
        nurseries = self.nurseries()
        server = self._server.pid if self._server is not None else 0
        first = [each.pid for each in nurseries if each.parent == server]
        return process in nurseries and process.parent in (server, *first)

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


def eventually(true: Callable[[], T], what: str, *, patience: float = PATIENCE) -> T:
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + patience
    while not (found := true()):
        assert time.monotonic() < deadline, f"it never came about that {what}"
        time.sleep(0.01)
    return found


def is_held(lock: Path) -> bool:
    """Tell whether a living process holds this lock."""
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
