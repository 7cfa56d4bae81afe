"""The load of the server: many jobs at once, followers of one log, and busy clients."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from retarget import Job, Workspace
from tests.soak.watched import Watched

_SCRIPT = """
number=$1
seq 1 $((number % 500 + 1))
echo "job $number" > outputs/number
echo "the end of $number" >&2
exit $((number % 3))
"""
_LINES = """
for number in $(seq 1 $1); do
    echo "line $number of $1, with a few words more so that it is as long as one usually is"
    [ $((number % 100)) -ne 0 ] || sleep 0.05
done
"""


@dataclass(frozen=True)
class Size:
    """The size of the load."""

    jobs: int
    followers: int
    lines: int
    clients: int
    seconds: float
    rest: float = 0.0  # seconds after which an idle server is measured; 0: growth is not checked


class Load:
    def __init__(self, server: Watched, code: Path) -> None:
        self.server = server
        self.code = code
        self.problems: list[str] = []  # sentences
        self.done = 0  # correct jobs
        self._numbers = count(1)
        self._lock = threading.Lock()
        code.mkdir(parents=True, exist_ok=True)
        (code / "work.sh").write_text(_SCRIPT)
        (code / "lines.sh").write_text(_LINES)

    def run_jobs(self, jobs: int) -> None:
        """Submit this many jobs at once, and wait for all of them."""
        workspace = self.server.workspace()
        submitted = [self._submit(workspace) for _ in range(jobs)]
        for number, job in submitted:
            self._guard(lambda number=number, job=job: self._check(number, job))

    def follow(self, followers: int, lines: int) -> None:
        """Follow one log this many times from its first byte; each follower must get all of it."""
        job = self.server.workspace().submit("lines.sh", code=self.code, args=[str(lines)])
        with ThreadPoolExecutor(followers) as pool:
            logs = list(pool.map(self._read, [job.name] * followers))
        expected = "".join(
            f"line {n} of {lines}, with a few words more so that it is as long as one usually is\n"
            for n in range(1, lines + 1)
        ).encode()
        for number, log in enumerate(logs):
            if log != expected:
                self._report(f"follower {number} got {len(log)} bytes, not {len(expected)}")

    def run_clients(self, clients: int, seconds: float) -> None:
        """Let this many clients submit, wait and read for that long."""
        deadline = time.monotonic() + seconds
        with ThreadPoolExecutor(clients) as pool:
            for _ in range(clients):
                pool.submit(self._guard, lambda: self._client(deadline))

    def _client(self, deadline: float) -> None:
        workspace = self.server.workspace()
        while time.monotonic() < deadline and not self.problems:
            self._check(*self._submit(workspace))

    def _submit(self, workspace: Workspace) -> tuple[int, Job]:
        number = next(self._numbers)
        return number, workspace.submit("work.sh", code=self.code, args=[str(number)])

    def _read(self, name: str) -> bytes:
        try:
            return b"".join(self.server.workspace().jobs[name].read_log(follow=True))
        except Exception as error:  # noqa: BLE001 - any error is a problem to report
            self._report(f"a follower: {error!r}")
            return b""

    def _check(self, number: int, job: Job) -> None:
        """Check that a job ended as its script does, with its whole log and its output."""
        state, code = job.wait(timeout=600), number % 3
        expected = "succeeded" if code == 0 else "failed"
        if (state, job.exit_code) != (expected, code):
            self._report(
                f"{job.name}: {state}, exit code {job.exit_code}, not {code}: {job.reason}"
            )
            return
        lines = [*map(str, range(1, number % 500 + 2)), f"the end of {number}"]
        if job.logs() != "\n".join(lines) + "\n":
            self._report(f"{job.name}: its log is not what it wrote: {job.logs()[-200:]!r}")
        outputs = {output.path: output.size for output in job.outputs()}
        if outputs != {"outputs/number": len(f"job {number}\n")}:
            self._report(f"{job.name}: its outputs are {outputs}")
        with self._lock:
            self.done += 1

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - any error is a problem to report
            self._report(f"a client: {error!r}")

    def _report(self, sentence: str) -> None:
        with self._lock:
            self.problems.append(sentence)
