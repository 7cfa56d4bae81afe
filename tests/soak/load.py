"""What is asked of the server: a crowd of jobs, followers of one log, clients that go on and on."""

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
_SPEAKER = """
for number in $(seq 1 $1); do
    echo "line $number of $1, with a few words more so that it is as long as one usually is"
    [ $((number % 100)) -ne 0 ] || sleep 0.05
done
"""


@dataclass(frozen=True)
class Size:
    """How much there is to do."""

    jobs: int
    followers: int
    lines: int
    clients: int
    seconds: float
    rest: float = 0.0  # seconds after which what nobody needs is let go of; 0: no look at that


class Load:
    def __init__(self, server: Watched, code: Path) -> None:
        self.server = server
        self.code = code
        self.wrong: list[str] = []  # sentences about what was not as it must be
        self.done = 0  # jobs that were right
        self._numbers = count(1)
        self._lock = threading.Lock()
        code.mkdir(parents=True, exist_ok=True)
        (code / "work.sh").write_text(_SCRIPT)
        (code / "speak.sh").write_text(_SPEAKER)

    def crowd(self, jobs: int) -> None:
        """Submit so many jobs at once, and wait for all of them."""
        ours = self.server.workspace()
        submitted = [self._submit(ours) for _ in range(jobs)]
        for number, job in submitted:
            self._guard(lambda number=number, job=job: self._check(number, job))

    def follow(self, followers: int, lines: int) -> None:
        """Have so many follow one log from its first byte on; each must get all of it."""
        job = self.server.workspace().submit("speak.sh", code=self.code, args=[str(lines)])
        with ThreadPoolExecutor(followers) as pool:
            logs = list(pool.map(self._read, [job.name] * followers))
        expected = "".join(
            f"line {n} of {lines}, with a few words more so that it is as long as one usually is\n"
            for n in range(1, lines + 1)
        ).encode()
        for number, log in enumerate(logs):
            if log != expected:
                self._say(f"follower {number} got {len(log)} bytes, not {len(expected)}")

    def go_on(self, clients: int, seconds: float) -> None:
        """Have so many submit, wait and read for so long."""
        deadline = time.monotonic() + seconds
        with ThreadPoolExecutor(clients) as pool:
            for _ in range(clients):
                pool.submit(self._guard, lambda: self._client(deadline))

    def _client(self, deadline: float) -> None:
        ours = self.server.workspace()
        while time.monotonic() < deadline and not self.wrong:
            self._check(*self._submit(ours))

    def _submit(self, ours: Workspace) -> tuple[int, Job]:
        number = next(self._numbers)
        return number, ours.submit("work.sh", code=self.code, args=[str(number)])

    def _read(self, name: str) -> bytes:
        try:
            return b"".join(self.server.workspace().jobs[name].read_log(follow=True))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            self._say(f"a follower: {error!r}")
            return b""

    def _check(self, number: int, job: Job) -> None:
        """See that a job ended as its script says, with its whole log and its output."""
        state, code = job.wait(timeout=600), number % 3
        expected = "succeeded" if code == 0 else "failed"
        if (state, job.exit_code) != (expected, code):
            self._say(f"{job.name}: {state}, exit code {job.exit_code}, not {code}: {job.reason}")
            return
        lines = [*map(str, range(1, number % 500 + 2)), f"the end of {number}"]
        if job.logs() != "\n".join(lines) + "\n":
            self._say(f"{job.name}: its log is not what it wrote: {job.logs()[-200:]!r}")
        left = {output.path: output.size for output in job.outputs()}
        if left != {"outputs/number": len(f"job {number}\n")}:
            self._say(f"{job.name}: it left {left}")
        with self._lock:
            self.done += 1

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this looks for
            self._say(f"a client: {error!r}")

    def _say(self, sentence: str) -> None:
        with self._lock:
            self.wrong.append(sentence)
