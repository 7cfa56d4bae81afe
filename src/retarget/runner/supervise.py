"""The runner: prepares, starts the user's process or processes, sees them end, and reports.

It may be killed at any moment and started again on the same folder. What it must not do twice is
written to the journal before it is done; so a runner that takes over goes on from there.
"""

from __future__ import annotations

import os
import select
import signal
import time

from retarget.runner.command import Command, Ranks
from retarget.runner.errors import Ended, Over, Stopped, Unprepared
from retarget.runner.folder import Folder, Journal
from retarget.runner.memory import kills, limit
from retarget.runner.memory import sentence as out_of_memory
from retarget.runner.orders import Orders
from retarget.runner.prepare import Preparation
from retarget.runner.processes import (
    Process,
    become_subreaper,
    boot,
    descendants,
    end,
    leftovers,
    look,
    spawn,
)

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

_FIRST = 0.05  # seconds that the first report waits
_LINGER = 600.0  # seconds without a server after which the runner leaves the rest to a later one


def supervise(path: str, lock: int | None = None) -> bool:
    """Work on a launch's folder until nothing is left to do, or another runner is at it.

    `lock`: the descriptor of its lock, when whoever started this runner has taken it already.
    Returns whether this process is as it was before, so that it can work on another folder.
    """
    folder = Folder(path)
    if lock is not None:
        folder.inherit(lock)
    elif not folder.acquire():
        return False
    if folder.has("done"):
        return False
    os.makedirs(folder.streams, exist_ok=True)
    become_subreaper()
    runner = Runner(folder)
    ending = runner.ending() or runner.run()
    if not runner.report(ending):
        return False  # DEAD to the driver, which starts another one when a server is there again
    return runner.leave()


class Runner:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._journal = Journal(folder)
        self._orders = Orders(folder)
        content = folder.read("launch.json")
        self._content = content
        self._launch: dict[str, Any] = content["launch"]
        self._node: dict[str, Any] = content["node"]
        self._ranks = Ranks(content)
        self._reporter: Any = None
        self._prepared = Preparation(
            folder, content, self._journal, self._orders, report=self._report_now
        )
        # Whatever is started from here carries the key, so that a later runner can find it.
        os.environ["RETARGET_LAUNCH"] = self._launch["key"]

    def ending(self) -> dict[str, Any] | None:
        """Return how the attempt ended, when an earlier runner saw it or did not live to see it."""
        decided = self._journal.find("exited")
        if decided is not None:
            return _ending(decided)
        if not self._journal.events:
            return None
        self._end_leftovers()
        seen = self._journal.find("clearing")
        if seen is not None:
            return self._exit(seen["outcome"], seen["reason"], seen["exit_code"])
        if self._journal.find("starting") is None:
            return None
        self._report_now()
        if self._orders.stopped and self._orders.outcome == "canceled":
            return self._exit("canceled", "canceled")
        did = "ran" if self._journal.find("started") else "was being started"
        return self._exit("lost", f"its runner was killed while the script {did}")

    def run(self) -> dict[str, Any]:
        """Prepare, start and watch the user's process or processes."""
        try:
            self._prepared.prepare()
            ranks = self._start(Command(self._folder, self._content, self._prepared))
        except Ended as ended:
            return self._exit(ended.outcome, str(ended), ended.code)
        except Unprepared as error:
            return self._exit("failed", str(error))
        except Stopped:
            self._prepared.discard_build()
            return self._exit(self._orders.outcome, self._orders.reason)
        except Over as over:
            return self._exit("canceled", f"the server has given this attempt up: {over}")
        except OSError as error:
            self._prepared.make_room()
            return self._exit("failed", f"it could not be prepared: {_in_words(error)}")
        return self._watch(ranks)

    def report(self, ending: dict[str, Any]) -> bool:
        if not self._folder.has("launch.json"):
            return False  # removed, with all there was to report
        linger = float(self._node.get("linger", _LINGER))
        return bool(self._made_reporter().finish(ending, linger))

    def leave(self) -> bool:
        """Let go of the folder; False when only the end of this process would do that.

        One that was told to stop is not as it was: whoever told it may kill it yet.
        """
        if self._launch["snapshot"]:
            self._prepared.discard_part()
        self._journal.finish()
        if self._orders.listens or self._orders.stopped or _has_children():
            return False
        self._prepared.release()
        self._orders.close()
        os.chdir("/")
        if self._folder.has("cancel"):
            return False
        self._folder.release()
        return True

    # -- starting

    def _start(self, command: Command) -> dict[int, int]:
        """Start every rank and return their pids. From here on it is never started again."""
        variables = [dict(command.env, **own) for own in self._ranks.variables()]
        os.chdir(self._folder.work)
        os.umask(0o022)
        self._kills = kills()
        self._journal.add("starting")
        pids: dict[int, int] = {}
        try:
            for rank, env in enumerate(variables):
                pids[self._spawn(rank, command.words, env)] = rank
        except OSError as error:
            end(_everything_below, 0.0, _reap_all)
            raise Ended("failed", _cannot_run(command.words[0], error), 126) from None
        finally:
            os.chdir(self._folder.path)
            os.umask(0o077)
        self._journal.add("started", boot=boot(), ranks=[[pid, _started(pid)] for pid in pids])
        return pids

    def _spawn(self, rank: int, words: list[str], env: dict[str, str]) -> int:
        if self._prepared.containers is not None:
            words, env = self._prepared.containers.wrap(rank, words, env)
        output = self._folder.open_stream(self._ranks.stream(rank))
        try:
            return spawn(words, env, output)
        finally:
            os.close(output)

    # -- watching

    def _watch(self, ranks: dict[int, int]) -> dict[str, Any]:
        """Wait until every rank has ended; the first failure, order or limit ends them all."""
        limit = self._launch["timeout"]
        deadline = time.monotonic() + limit if limit else None
        verdict: tuple[str, str, int | None] | None = None
        left, first = dict(ranks), time.monotonic() + _FIRST
        while left and verdict is None:
            self._sleep(deadline, first)
            for pid, status in _reap_all():
                rank = left.pop(pid, None)
                if rank is not None and status != 0 and verdict is None:
                    verdict = ("failed", self._failure(rank, status), _exit_code(status))
            if verdict is None and left:
                verdict = self._interrupted(deadline)
        return self._clear(*(verdict or ("succeeded", "", 0)))

    def _interrupted(self, deadline: float | None) -> tuple[str, str, int | None] | None:
        if self._orders.stopped:
            return self._orders.outcome, self._orders.reason, None
        if deadline is not None and time.monotonic() >= deadline:
            return "failed", f"timed out: it ran longer than {self._launch['timeout']:g} s", 124
        return None

    def _sleep(self, deadline: float | None, first: float) -> None:
        """Wait until something happens, or the deadline. Reporting begins at `first`, not before.

        Of a script that ends at once all is told at once.
        """
        moments = [deadline, first if self._reporter is None else None]
        patience = [max(0.0, at - time.monotonic()) for at in moments if at is not None]
        if select.select([self._orders.wake_read], [], [], min(patience, default=None))[0]:
            os.read(self._orders.wake_read, 4096)
        if self._reporter is None and time.monotonic() >= first:
            self._report_now()

    def _failure(self, rank: int, status: int) -> str:
        who = self._ranks.title(rank)
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) == signal.SIGKILL and kills() > self._kills:
                return out_of_memory(limit())
            return f"{who} was killed by {_signal_name(os.WTERMSIG(status))}"
        code = os.WEXITSTATUS(status)
        if self._prepared.containers is not None:
            return str(self._prepared.containers.failure(rank, who, code))
        return f"{who} ended with exit code {code}"

    # -- ending

    def _clear(self, outcome: str, reason: str, code: int | None) -> dict[str, Any]:
        """End what the script leaves running, daemons too, and write down how it ended."""
        if _has_children():  # it may take a while: a runner that takes over must know the rest
            # that of a cancel is in the folder, and must not wait for room on a full disk
            if outcome != "canceled" or not self._folder.has("cancel"):
                self._journal.add("clearing", outcome=outcome, reason=reason, exit_code=code)
            self._report_now()
        grace = float(self._launch["grace"])
        if self._prepared.containers is not None:
            self._prepared.containers.end(grace, _reap_all, _has_children)
            grace = 0.0  # what is left is the engine's
        end(_everything_below, grace, _reap_all)
        if self._prepared.containers is not None:
            self._prepared.containers.remove()
        return self._exit(outcome, reason, code)

    def _exit(self, outcome: str, reason: str, code: int | None = None) -> dict[str, Any]:
        return _ending(self._journal.add("exited", outcome=outcome, reason=reason, exit_code=code))

    def _end_leftovers(self) -> None:
        started = self._journal.find("started")
        ranks: list[tuple[int, str]] = []
        if started is not None and started["boot"] == boot():  # pids begin anew at every boot
            ranks = [(int(pid), str(when)) for pid, when in started["ranks"]]
        grace = float(self._launch["grace"])
        containers = self._prepared.left_containers()
        if containers is not None:
            containers.end(grace, _reap_all, _has_children)
        end(lambda: _look_thrice(self._launch["key"], ranks), grace, _reap_all)
        if containers is not None:
            containers.remove()

    def _report_now(self) -> None:
        """Report, and hear orders. Late on purpose: that costs more than starting the script."""
        self._orders.listen()
        self._made_reporter().start()

    def _made_reporter(self) -> Any:
        if self._reporter is None:
            from retarget.runner.report import Reporter

            self._reporter = Reporter(
                self._folder, self._journal, self._orders, self._ranks.node, self._launch["fence"]
            )
        return self._reporter


def _ending(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("outcome", "reason", "exit_code")}


def _reap_all() -> list[tuple[int, int]]:
    """Collect every child that has ended, with its status."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


def _exit_code(status: int) -> int:
    """Return the exit code a shell would show."""
    killed = os.WIFSIGNALED(status)
    return 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one


def _everything_below() -> list[Process]:
    """List every descendant. Orphans become children, so without a child there is none.

    The list alone may come out empty when one forks and leaves while it is being made.
    """
    while _has_children():
        found = descendants()
        if found:
            return found
        _reap_all()
    return []


def _look_thrice(key: str, ranks: list[tuple[int, str]]) -> list[Process]:
    """List what is left of a dead runner's. One that forks and leaves can be missed once."""
    for _ in range(3):
        found = leftovers(key, ranks)
        if found:
            return found
    return []


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _started(pid: int) -> str:
    process = look(pid)
    return process.started if process else ""


def _cannot_run(program: str, error: OSError) -> str:
    return f"{program} cannot be run: {error.strerror}"


def _in_words(error: OSError) -> str:
    what = os.path.basename(str(error.filename or ""))
    return f"{what}: {error.strerror}" if what else str(error.strerror or error)
