"""The runner: prepares a launch, starts its processes, waits for their end, and reports.

It may be killed at any time and started again on the same folder. Whatever must not happen twice
is written to the journal first, so a runner that takes over continues from there.
"""

from __future__ import annotations

import os
import select
import signal
import time

from retarget.runner.command import Command, Ranks
from retarget.runner.durations import show_duration
from retarget.runner.errors import AttemptOver, Ended, Stopped, Unprepared
from retarget.runner.executions import Executions
from retarget.runner.folder import Folder, Journal
from retarget.runner.memory import kills, limit, out_of_memory_message
from retarget.runner.prepare import Preparation
from retarget.runner.processes import (
    Process,
    become_subreaper,
    boot,
    descendants,
    end,
    leftovers,
    read_process,
    spawn,
)
from retarget.runner.script_log import ScriptLog
from retarget.runner.script_start import mark_start
from retarget.runner.stop import StopSignal
from retarget.runner.tracking_variables import open_relay

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.relay import Relay

_FIRST_REPORT_SECONDS = 0.05
_SHELL_SIGKILL = 128 + signal.SIGKILL  # the exit code of a shell whose command was killed
_NOT_RESTARTED = "the script was not started again; submit the job again to run it"
_LINGER_SECONDS = 600.0  # without a server for this long, it leaves the rest to a later runner


def supervise(path: str, lock: int | None = None) -> bool:
    """Work on the folder of a launch until it is done, unless another runner does.

    `lock`: the descriptor of its lock, if the parent process has taken it already.
    Returns whether this process is unchanged, so that it can work on another folder.
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
        return False  # DEAD to the driver, which starts another runner once a server is back
    return runner.leave()


class Runner:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._stop_signal = StopSignal(folder)
        content = folder.read("launch.json")
        self._journal = Journal(folder, content["launch"].get("events_acked") or 0)
        self._content = content
        self._launch: dict[str, Any] = content["launch"]
        self._node: dict[str, Any] = content["node"]
        self._ranks = Ranks(content)
        self._reporter: Any = None
        self._relay: Relay | None = None  # for MLflow clients of the script
        self._executions = Executions(folder)
        self._prepared = Preparation(
            folder, content, self._journal, self._stop_signal, report=self._report_now
        )
        self._log = ScriptLog(folder, self._ranks, self._prepared.secrets)
        # Every child process inherits the key, so that a later runner can find it.
        os.environ["RETARGET_LAUNCH"] = self._launch["key"]

    def ending(self) -> dict[str, Any] | None:
        """Return how the attempt ended, if an earlier runner recorded that or was killed."""
        exited = self._journal.find("exited")
        if exited is not None:
            return _ending(exited)
        if not self._journal.events:
            return None
        exception = self._log.last_exception()  # before its processes are stopped
        self._end_leftovers()
        clearing = self._journal.find("clearing")
        if clearing is not None:
            return self._exit(clearing["outcome"], clearing["reason"], clearing["exit_code"])
        loss = self._loss()
        if loss is None:
            return None
        self._report_now()
        if self._stop_signal.stopped and self._stop_signal.outcome == "canceled":
            return self._exit("canceled", "canceled")
        details = f"; the log ends with {exception}" if exception else ""
        return self._exit("lost", f"{loss}{details}")

    def _loss(self) -> str | None:
        """Return why the script must not be started: an earlier runner has done so, or may have."""
        if self._journal.find("damaged"):
            return f"the journal of this attempt on its host is damaged; {_NOT_RESTARTED}"
        if self._journal.find("forgotten"):
            return (
                "the host lost part of the journal of this attempt, for example in a power cut; "
                f"{_NOT_RESTARTED}"
            )
        starting = self._journal.find("starting")
        if starting is None:
            return None
        activity = "ran" if self._journal.find("started") else "was being started"
        if starting.get("boot", boot()) != boot():
            return f"the host has rebooted while the script {activity}"
        return f"its runner was killed while the script {activity}"

    def run(self) -> dict[str, Any]:
        """Prepare, start and watch the user's process or processes."""
        try:
            self._prepared.prepare()
            self._relay = open_relay(self._folder, self._content)
            command = Command(self._folder, self._content, self._prepared, self._relay)
            ranks = self._start(command)
        except Ended as ended:
            return self._exit(ended.outcome, str(ended), ended.code)
        except Unprepared as error:
            return self._exit("failed", str(error))
        except Stopped:
            self._prepared.discard_build()
            return self._exit(self._stop_signal.outcome, self._stop_signal.reason)
        except AttemptOver as over:
            return self._exit("canceled", f"the server gave up this attempt: {over}")
        except OSError as error:
            self._prepared.make_room()
            return self._exit("failed", f"the job could not be prepared: {_describe(error)}")
        return self._watch(ranks)

    def report(self, ending: dict[str, Any]) -> bool:
        if self._relay is not None:
            self._relay.close()  # the script has ended
        if not self._folder.has("launch.json"):
            return False  # the folder was removed, so there is nothing to report
        linger_seconds = float(self._node.get("linger", _LINGER_SECONDS))
        return bool(self._reporter_instance().finish(ending, linger_seconds))

    def leave(self) -> bool:
        """Release the folder; False if only the exit of this process would do that.

        A runner that received a stop signal is not reused: its sender may still kill it.
        """
        if self._launch["snapshot"]:
            self._prepared.discard_part()
        self._prepared.secrets.remove_files()
        self._prepared.give_back_layer()  # while the folder exists
        self._journal.finish()
        if self._stop_signal.is_listening or self._stop_signal.stopped or _has_children():
            return False
        if self._relay is not None and self._relay.is_serving:
            return False  # its threads may still run
        self._prepared.release()
        self._stop_signal.close()
        os.chdir("/")
        if self._folder.has("cancel"):
            return False
        self._folder.release()
        return True

    # -- starting

    def _start(self, command: Command) -> dict[int, int]:
        """Start every rank and return their pids. The script is never started a second time."""
        variables = [dict(command.variables, **rank) for rank in self._ranks.variables()]
        os.chdir(self._folder.work)
        mark_start(self._folder)
        os.umask(0o022)
        self._kills = kills()
        self._journal.add("starting", boot=boot())
        self._journal.sync()  # a power cut must not make a later runner start it again
        pids: dict[int, int] = {}
        try:
            for rank, rank_variables in enumerate(variables):
                pids[self._spawn(rank, command.argv, rank_variables)] = rank
        except OSError as error:
            end(_all_descendants, 0.0, _reap_all)
            raise Ended("failed", _cannot_run(command.argv[0], error), 126) from None
        finally:
            os.chdir(self._folder.path)
            os.umask(0o077)
        self._executions.offer(command, variables)
        if self._reporter is not None:
            self._executions.listen()  # before the server learns that the script runs
        self._journal.add("started", boot=boot(), ranks=[[pid, _started(pid)] for pid in pids])
        return pids

    def _spawn(self, rank: int, argv: list[str], variables: dict[str, str]) -> int:
        if self._prepared.containers is not None:
            argv, variables = self._prepared.containers.wrap(rank, argv, variables)
        outputs = [self._folder.open_stream(name) for name in self._ranks.streams(rank)]
        try:
            return spawn(argv, variables, outputs[0], outputs[-1])
        finally:
            for output in outputs:
                os.close(output)

    # -- watching

    def _watch(self, ranks: dict[int, int]) -> dict[str, Any]:
        """Wait until every rank has ended; a failure, a stop signal or the timeout ends all."""
        timeout = self._launch["timeout"]
        deadline = time.monotonic() + timeout if timeout else None
        verdict: tuple[str, str, int | None] | None = None
        running, first_report = dict(ranks), time.monotonic() + _FIRST_REPORT_SECONDS
        while running and verdict is None:
            self._sleep(deadline, first_report)
            for pid, status in self._reap():
                rank = running.pop(pid, None)
                if rank is not None and status != 0 and verdict is None:
                    verdict = ("failed", self._failure(rank, status), _exit_code(status))
            if verdict is None and running:
                verdict = self._interrupted(deadline)
        return self._clear(*(verdict or ("succeeded", "", 0)))

    def _interrupted(self, deadline: float | None) -> tuple[str, str, int | None] | None:
        if self._stop_signal.stopped:
            return self._stop_signal.outcome, self._stop_signal.reason, None
        if deadline is not None and time.monotonic() >= deadline:
            return "failed", f"timed out after {show_duration(self._launch['timeout'])}", 124
        return None

    def _sleep(self, deadline: float | None, first_report: float) -> None:
        """Wait until something happens, or the deadline. Reporting begins at `first_report`.

        A script that ends before that is reported in one go.
        """
        moments = [deadline, first_report if self._reporter is None else None]
        timeouts = [max(0.0, at - time.monotonic()) for at in moments if at is not None]
        wake_read, relay = self._stop_signal.wake_read, self._relay
        awaited = [wake_read]
        if relay is not None and not relay.is_serving:
            awaited.append(relay.fileno())
        ready = select.select(awaited, [], [], min(timeouts, default=None))[0]
        if wake_read in ready:
            os.read(wake_read, 4096)
        if relay is not None and relay.fileno() in ready:
            relay.serve()
        if self._reporter is None and time.monotonic() >= first_report:
            self._executions.listen()
            self._report_now()

    def _failure(self, rank: int, status: int) -> str:
        title = self._ranks.title(rank)
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) == signal.SIGKILL and kills() > self._kills:
                return out_of_memory_message(limit())
            return f"{title} was killed by {_signal_name(os.WTERMSIG(status))}"
        code = os.WEXITSTATUS(status)
        if code == _SHELL_SIGKILL and kills() > self._kills:
            return out_of_memory_message(limit())
        if self._prepared.containers is not None:
            failure = self._prepared.containers.failure(rank, title, code)
            if failure is not None:
                return failure
        return self._log.describe_failure(rank, title, code)

    # -- ending

    def _clear(self, outcome: str, reason: str, code: int | None) -> dict[str, Any]:
        """End whatever the script leaves running, daemons too, and record how it ended."""
        self._executions.close(self._reap)
        if _has_children():  # this may take a while: a runner that takes over must know the outcome
            # a cancel is in the folder already, and must not wait for space on a full disk
            reason = self._prepared.secrets.mask(reason)
            if outcome != "canceled" or not self._folder.has("cancel"):
                self._journal.add("clearing", outcome=outcome, reason=reason, exit_code=code)
            self._report_now()
            if self._relay is not None:
                self._relay.serve()  # processes that get SIGTERM may log their last metrics
        grace_seconds = float(self._launch["grace_seconds"])
        if self._prepared.containers is not None:
            self._prepared.containers.end(grace_seconds, _reap_all, _has_children)
            grace_seconds = 0.0  # only processes of the engine remain
        end(_all_descendants, grace_seconds, _reap_all)
        if self._prepared.containers is not None:
            self._prepared.containers.remove()
        return self._exit(outcome, reason, code)

    def _reap(self) -> list[tuple[int, int]]:
        """Reap every child that has ended."""
        reaped = _reap_all()
        self._executions.take_exits(reaped)
        return reaped

    def _exit(self, outcome: str, reason: str, code: int | None = None) -> dict[str, Any]:
        reason = self._prepared.secrets.mask(reason)
        return _ending(self._journal.add("exited", outcome=outcome, reason=reason, exit_code=code))

    def _end_leftovers(self) -> None:
        started = self._journal.find("started")
        ranks: list[tuple[int, str]] = []
        if started is not None and started["boot"] == boot():  # pids are reused after a boot
            ranks = [(int(pid), str(start_time)) for pid, start_time in started["ranks"]]
        grace_seconds = float(self._launch["grace_seconds"])
        containers = self._prepared.leftover_containers()
        if containers is not None:
            containers.end(grace_seconds, _reap_all, _has_children)
        key, folder = self._launch["key"], self._folder.path
        end(lambda: _find_leftovers(key, ranks, folder), grace_seconds, _reap_all)
        if containers is not None:
            containers.remove()

    def _report_now(self) -> None:
        """Start to report and to listen. Late on purpose: it costs more than the script's start."""
        self._stop_signal.listen()
        self._reporter_instance().start(self._launch["lost_after_seconds"])

    def _reporter_instance(self) -> Any:
        if self._reporter is None:
            from retarget.runner.report import Reporter

            self._reporter = Reporter(
                self._folder,
                self._journal,
                self._stop_signal,
                self._ranks,
                self._prepared.secrets,
            )
        return self._reporter


def _ending(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("outcome", "reason", "exit_code")}


def _reap_all() -> list[tuple[int, int]]:
    """Reap every child that has ended. Return their pids and statuses."""
    reaped: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid == 0:
            return reaped
        reaped.append((pid, status))


def _exit_code(status: int) -> int:
    """Return the exit code a shell would show."""
    killed = os.WIFSIGNALED(status)
    return 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal


def _all_descendants() -> list[Process]:
    """List every descendant. Orphans become children, so without a child there is none.

    One listing may come out empty, if a process forks and exits while it is made.
    """
    while _has_children():
        listed = descendants()
        if listed:
            return listed
        _reap_all()
    return []


def _find_leftovers(key: str, ranks: list[tuple[int, str]], folder: str) -> list[Process]:
    """List the processes of a dead runner. One listing may miss a process that forks and exits."""
    for _ in range(3):
        listed = leftovers(key, ranks, folder)
        if listed:
            return listed
    return []


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _started(pid: int) -> str:
    process = read_process(pid)
    return process.started if process else ""


def _cannot_run(program: str, error: OSError) -> str:
    return f"{program} cannot be run: {error.strerror}"


def _describe(error: OSError) -> str:
    name = os.path.basename(str(error.filename or ""))
    return f"{name}: {error.strerror}" if name else str(error.strerror or error)
