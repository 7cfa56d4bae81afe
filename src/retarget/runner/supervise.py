"""The runner: prepares, starts the user's process or processes, sees them end, and reports.

It may be killed at any moment and started again on the same folder. What it must not do twice is
written to the journal before it is done; so a runner that takes over goes on from there.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from retarget.runner.errors import Ended, Over, Refused, Stopped, Unprepared, Unreachable
from retarget.runner.folder import Folder, Journal
from retarget.runner.memory import kills, limit
from retarget.runner.memory import sentence as out_of_memory
from retarget.runner.offer import offer_tracking
from retarget.runner.orders import Orders
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

_NO_PORT = "29500"  # what PyTorch takes by itself; one process needs none
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
        self._launch: dict[str, Any] = content["launch"]
        self._node: dict[str, Any] = content["node"]
        self._gang: dict[str, Any] = content.get("gang") or {"node": 0}
        self._reporter: Any = None
        self._environments: Any = None
        self._containers: Any = None
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
            self._prepare()
            command, env = self._resolve()
            ranks = self._start(command, env)
        except Ended as ended:
            return self._exit(ended.outcome, str(ended), ended.code)
        except Unprepared as error:
            return self._exit("failed", str(error))
        except Stopped:
            self._discard_build()
            return self._exit(self._orders.outcome, self._orders.reason)
        except Over as over:
            return self._exit("canceled", f"the server has given this attempt up: {over}")
        except OSError as error:
            self._make_room()
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
            self._discard_part()
        self._journal.finish()
        if self._orders.listens or self._orders.stopped or _has_children():
            return False
        if self._environments is not None:
            self._environments.release()
        self._orders.close()
        os.chdir("/")
        if self._folder.has("cancel"):
            return False
        self._folder.release()
        return True

    def _discard_part(self) -> None:
        """Remove what a killed runner had on its way, if none after it had to fetch that."""
        from retarget.runner.snapshot import part_of

        try:
            os.unlink(part_of(os.path.join(self._node["cache"], "blobs"), self._folder))
        except OSError:
            pass  # there is none, as usual

    # -- preparing

    def _prepare(self) -> None:
        self._journal.add("preparing", pid=os.getpid(), node=os.uname().nodename)
        if self._orders.stopped:
            raise Stopped
        self._lay_out()
        self._python = self._interpreter()
        self._orders.look()
        if self._orders.stopped:
            raise Stopped

    def _lay_out(self) -> None:
        work = self._folder.work
        if os.path.lexists(work):  # an earlier runner was killed here
            import shutil

            shutil.rmtree(work)
        os.mkdir(work)
        try:
            if self._launch["snapshot"]:
                self._fetch(self._launch["snapshot"])
            for name in ("outputs", "logs"):
                os.makedirs(os.path.join(work, name), exist_ok=True)
        except FileExistsError as error:
            name = os.path.basename(str(error.filename))
            raise Unprepared(f"the code has a file where the folder {name!r} must be") from None

    def _fetch(self, digest: str) -> None:
        from retarget.runner.snapshot import Blobs, lay_out

        cache = os.path.join(self._node["cache"], "blobs")
        blobs = Blobs(cache, self._node.get("blobs", []), self._folder)
        while True:
            try:
                lay_out(digest, self._folder.work, blobs)
                break
            except Refused as error:
                raise Unprepared(f"the code cannot be had: {error}") from error
            except Unreachable:
                import shutil

                self._report_now()
                shutil.rmtree(self._folder.work)
                os.mkdir(self._folder.work)
                if self._orders.pause(0.5):
                    raise Stopped from None
        if os.path.lexists(os.path.join(self._folder.work, "outputs")) or os.path.lexists(
            os.path.join(self._folder.work, "logs")
        ):
            from retarget.runner.outputs import Collector

            Collector(self._folder).note_given()

    def _interpreter(self) -> str:
        """Return the interpreter of the environment, which is built when it is not there."""
        wanted = self._launch["environment"]
        if wanted["kind"] == "user":
            return self._users_own(wanted)
        from retarget.runner.environments import Environments

        environments = self._environments = Environments(self._node, self._folder, self._orders)
        if wanted["kind"] == "image":
            return self._image(wanted, environments)
        ready = environments.find(wanted["digest"])
        reused = ready is not None
        if ready is None:
            self._report_now()
            ready = environments.build(wanted["digest"], wanted)
        self._journal.add("environment", digest=wanted["digest"], how=ready["how"], reused=reused)
        return str(ready["python"])

    def _image(self, wanted: dict[str, Any], environments: Any) -> str:
        """Have the image here; the interpreter is the one in it."""
        from retarget.runner.containers import Containers

        engine = environments.images().engine
        self._containers = Containers(engine, self._folder, self._launch, self._node["cache"])
        image, reused = wanted["image"], True
        if wanted["context"] or wanted["conda"] or wanted["pip"]:
            image = environments.find_image(wanted["digest"])
            if image is None:
                self._report_now()
                reused, image = False, environments.build(wanted["digest"], wanted)["image"]
        else:
            reused = environments.images().has(image)
            if not reused:
                self._report_now()
                environments.images().ensure(image)
        self._containers.use(image)
        self._journal.add("environment", digest=wanted["digest"], how="image", reused=reused)
        return "python"

    def _discard_build(self) -> None:
        """Remove what an earlier runner, killed while it built the environment, left of it."""
        wanted = self._launch["environment"]
        if wanted["kind"] != "user":
            from retarget.runner.environments import Environments

            Environments(self._node, self._folder, self._orders).discard(wanted["digest"])

    def _make_room(self) -> None:
        """Remove what was laid out in vain: on a full disk nothing could be written down."""
        import shutil

        shutil.rmtree(self._folder.work, ignore_errors=True)

    def _users_own(self, wanted: dict[str, Any]) -> str:
        python = wanted["python"]
        if python:
            if not os.access(python, os.X_OK):
                raise Ended("failed", f"there is no interpreter {python} on this machine", 127)
            return str(python)
        prefer = wanted["prefer"]
        if prefer and os.access(prefer, os.X_OK):
            return str(prefer)
        return str(self._node.get("python") or sys.executable)

    # -- starting

    def _resolve(self) -> tuple[list[str], dict[str, str]]:
        """Return the command with its program as a path, and the variables all ranks share."""
        launch = self._launch
        env = self._containers.variables() if self._containers else self._surroundings()
        share = max(1, int(launch["cpus"] // launch["processes_per_node"]))
        env.update(PYTHONUNBUFFERED="1", OMP_NUM_THREADS=str(share))
        env.update(launch["env"])
        env.update(
            RETARGET_LAUNCH=launch["key"],
            RETARGET_JOB=launch["name"],
            RETARGET_JOB_ID=launch["job"],
            AZUREML_RUN_ID=launch["job"],
        )
        offer_tracking(self._folder, launch, self._node["cache"], env)
        words = list(launch["command"])
        if self._containers is not None:
            return self._containers.resolve(words), env
        words[0] = self._python if words[0] == "python" else self._program(words[0], env["PATH"])
        return words, env

    def _surroundings(self) -> dict[str, str]:
        """Return the variables of this machine, with the interpreter first in PATH."""
        env = dict(os.environ)
        folder = os.path.dirname(self._python)
        if not os.path.exists(os.path.join(folder, "python")):
            folder = self._python_shim()
        env["PATH"] = folder + os.pathsep + env.get("PATH", os.defpath)
        if os.path.exists(os.path.join(folder, "..", "pyvenv.cfg")):
            env["VIRTUAL_ENV"] = os.path.dirname(folder)
        return env

    def _python_shim(self) -> str:
        """Make `python` the chosen interpreter in shells too. A link would lose its packages."""
        folder = self._folder.file("bin")
        os.makedirs(folder, exist_ok=True)
        for name in ("python", "python3"):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\nexec "$RETARGET_PYTHON" "$@"\n')
            os.chmod(path, 0o755)
        self._launch["env"].setdefault("RETARGET_PYTHON", self._python)
        return folder

    def _program(self, word: str, path: str) -> str:
        import shutil

        found = (
            os.path.join(self._folder.work, word) if "/" in word else shutil.which(word, path=path)
        )
        if found is None or not os.path.exists(found):
            raise Ended("failed", f"there is no command {word!r} on this machine", 127)
        if not os.access(found, os.X_OK):
            raise Ended("failed", f"{word!r} cannot be run: it is not executable", 126)
        return found

    def _start(self, command: list[str], env: dict[str, str]) -> dict[int, int]:
        """Start every rank and return their pids. From here on it is never started again."""
        count = self._launch["processes_per_node"]
        port = str(_free_port()) if self._world(count) > 1 else _NO_PORT
        variables = [dict(env, **self._rank(rank, count, port)) for rank in range(count)]
        os.chdir(self._folder.work)
        os.umask(0o022)
        self._kills = kills()
        self._journal.add("starting")
        ranks: dict[int, int] = {}
        try:
            for rank in range(count):
                name = "output" if self._world(count) == 1 else f"rank-{self._global(rank, count)}"
                output = self._folder.open_stream(name)
                words, env = command, variables[rank]
                if self._containers is not None:
                    words, env = self._containers.wrap(rank, command, env)
                ranks[spawn(words, env, output)] = rank
                os.close(output)
        except OSError as error:
            end(_everything_below, 0.0, _reap_all)
            raise Ended("failed", _cannot_run(command[0], error), 126) from None
        finally:
            os.chdir(self._folder.path)
            os.umask(0o077)
        self._journal.add("started", boot=boot(), ranks=[[pid, _started(pid)] for pid in ranks])
        return ranks

    def _world(self, count: int) -> int:
        return int(self._launch["nodes"]) * count

    def _global(self, rank: int, count: int) -> int:
        """Return the number of a rank among those of all nodes."""
        return int(self._gang["node"]) * count + rank

    def _rank(self, rank: int, count: int, port: str) -> dict[str, str]:
        names = {
            "RANK": str(self._global(rank, count)),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": str(self._gang["node"]),
            "WORLD_SIZE": str(self._world(count)),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": str(self._gang.get("master", "127.0.0.1")),
            "MASTER_PORT": str(self._gang.get("port", port)),
        }
        return {name: self._launch["env"].get(name, value) for name, value in names.items()}

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
        count = self._launch["processes_per_node"]
        who = "the script" if count == 1 else f"rank {self._global(rank, count)}"
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) == signal.SIGKILL and kills() > self._kills:
                return out_of_memory(limit())
            return f"{who} was killed by {_signal_name(os.WTERMSIG(status))}"
        code = os.WEXITSTATUS(status)
        if self._containers is not None:
            return str(self._containers.failure(rank, who, code))
        return f"{who} ended with exit code {code}"

    # -- ending

    def _clear(self, outcome: str, reason: str, code: int | None) -> dict[str, Any]:
        """End what the script leaves running, daemons too, and write down how it ended."""
        if _has_children():  # it may take a while: a runner that takes over must know the rest
            self._journal.add("clearing", outcome=outcome, reason=reason, exit_code=code)
            self._report_now()
        grace = float(self._launch["grace"])
        if self._containers is not None:
            self._containers.end(grace, _reap_all, _has_children)
            grace = 0.0  # what is left is the engine's
        end(_everything_below, grace, _reap_all)
        if self._containers is not None:
            self._containers.remove()
        return self._exit(outcome, reason, code)

    def _exit(self, outcome: str, reason: str, code: int | None = None) -> dict[str, Any]:
        return _ending(self._journal.add("exited", outcome=outcome, reason=reason, exit_code=code))

    def _end_leftovers(self) -> None:
        started = self._journal.find("started")
        ranks: list[tuple[int, str]] = []
        if started is not None and started["boot"] == boot():  # pids begin anew at every boot
            ranks = [(int(pid), str(when)) for pid, when in started["ranks"]]
        grace = float(self._launch["grace"])
        containers = self._left_containers()
        if containers is not None:
            containers.end(grace, _reap_all, _has_children)
        end(lambda: _look_thrice(self._launch["key"], ranks), grace, _reap_all)
        if containers is not None:
            containers.remove()

    def _left_containers(self) -> Any:
        """Return what an earlier runner may have started, where this is about containers."""
        if self._launch["environment"]["kind"] != "image":
            return None
        from retarget.runner.containers import Containers
        from retarget.runner.engine import find_engine

        engine = find_engine(self._node.get("engine"))
        if engine is None:
            return None  # it did not come so far
        return Containers(engine, self._folder, self._launch, self._node["cache"])

    def _report_now(self) -> None:
        """Report, and hear orders. Late on purpose: that costs more than starting the script."""
        self._orders.listen()
        self._made_reporter().start()

    def _made_reporter(self) -> Any:
        if self._reporter is None:
            from retarget.runner.report import Reporter

            self._reporter = Reporter(
                self._folder, self._journal, self._orders, self._gang["node"], self._launch["fence"]
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


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
