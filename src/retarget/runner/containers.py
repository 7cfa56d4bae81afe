"""The user's process in a container: what starts it, how it ended, and that nothing is left.

A container shares network, memory segments and process numbers with its machine: ranks find each
other as they do without, and what runs in it can be seen and signalled from outside. The engine's
own command stands for it among our children; it writes the output and has the exit code.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

from retarget.runner import memory
from retarget.runner.engine import Engine, find_engine, mount
from retarget.runner.errors import Ended, Unprepared
from retarget.runner.folder import Folder
from retarget.runner.processes import Process, end, processes
from retarget.runner.sentences import engine_sentence

_NO_ENGINE = (
    "environment: image needs a container engine, and this machine has none that answers; "
    "install Docker or Podman, or see that it runs and that this user may use it"
)
# What decides how the engine's own command works: a job's value for it goes past that command.
_ITS_OWN = re.compile(
    r"PATH|HOME|TMPDIR|XDG_.*|DOCKER_.*|CONTAINER.*|LD_.*|SSL_.*|GO.*|REGISTRY_.*"
)
_FROM_MACHINE = (
    "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
_DEADLY = (1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15)  # signals that end a program, as 128 + n
_LAST_WORDS = 3.0  # seconds that an engine's command has to end after all in its container has
_TRIES = 5
_NOT_THERE = 127  # what engines and shells end with when there is no such command


def engine_of(node: dict[str, Any]) -> Engine:
    engine = find_engine(node.get("engine"))
    if engine is None:
        raise Unprepared(_NO_ENGINE)
    return engine


class Containers:
    """The containers of one launch, one for each rank."""

    def __init__(self, engine: Engine, folder: Folder, launch: dict[str, Any], cache: str) -> None:
        self._engine = engine
        self._folder = folder
        self._launch = launch
        self._cache = cache
        self._image = ""
        self._called = str(launch["environment"]["image"] or launch["environment"]["dockerfile"])
        self._image_env: dict[str, str] = {}

    def use(self, image: str) -> None:
        """Take an image that is here."""
        known = self._engine.image(image)
        if known is None:
            raise Unprepared(f"environment: image {image!r} was removed while it was needed")
        self._image = image
        given: list[str] = known["Config"].get("Env") or []
        pairs = (text.partition("=") for text in given)
        self._image_env = {name: value for name, _, value in pairs}
        self._id = str(known["Id"]).rpartition(":")[2]

    def variables(self) -> dict[str, str]:
        """Return what a process in it gets beside the image's own, and not from the launch."""
        env = {name: os.environ[name] for name in _FROM_MACHINE if os.environ.get(name)}
        if self._image_env.get("PYTHONPATH"):  # ours is added to it
            env["PYTHONPATH"] = self._image_env["PYTHONPATH"]
        home = self._folder.file("home")
        os.makedirs(home, mode=0o700, exist_ok=True)
        user = os.environ.get("USER") or _user_name()
        env.update(HOME=home, USER=user, LOGNAME=user)
        return env

    def resolve(self, words: list[str]) -> list[str]:
        """Return the command as it is called in the container."""
        word = words[0]
        if word == "python":
            return [self._python(), *words[1:]]
        if "/" in word and not word.startswith("/"):
            path = os.path.join(self._folder.work, word)
            if not os.path.exists(path):
                raise Ended("failed", f"there is no command {word!r} in the code", 127)
            if not os.access(path, os.X_OK):
                raise Ended("failed", f"{word!r} cannot be run: it is not executable", 126)
            return [path, *words[1:]]
        return words

    def wrap(
        self, rank: int, words: list[str], env: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the engine's command for a rank, and the variables of that command itself.

        Values go through the latter: they may be secret, and a command line is everybody's.
        """
        given = dict(env)
        gpus = _gpus(self._launch)
        if gpus and given.get("CUDA_VISIBLE_DEVICES") == ",".join(gpus):
            # in it they are counted anew
            given["CUDA_VISIBLE_DEVICES"] = ",".join(str(number) for number in range(len(gpus)))
        around = dict(os.environ)
        options: list[str] = []
        for name, value in given.items():
            if _ITS_OWN.fullmatch(name):
                options += ["-e", f"{name}={value}"]
            else:
                around[name] = value
                options += ["-e", name]
        command = run_command(
            self._engine, self._name(rank), self._launch["key"], self._limits(), gpus
        )
        os.makedirs(self._folder.track, exist_ok=True)
        for folder in (self._folder.work, self._folder.track, self._folder.file("home")):
            command += mount(folder, writable=True)
        command += mount(os.path.join(self._cache, "track"))
        command += ["--cidfile", self._cidfile(rank), "--workdir", self._folder.work]
        options += ["-e", f"RETARGET_CONTAINER={self._name(rank)}"]
        return [*command, *options, "--entrypoint", words[0], self._image, *words[1:]], around

    def failure(self, rank: int, who: str, code: int) -> str:
        """Say how it ended; `code` is what the engine's command ended with, and not 0."""
        known = self._engine.container(self._name(rank))
        state: dict[str, Any] = known["State"] if known else {}
        if str(state.get("StartedAt", "0001-")).startswith("0001-"):
            return self._not_started(rank, code)
        if code - 128 not in _DEADLY:
            return f"{who} ended with exit code {code}"
        if code - 128 == signal.SIGKILL and (
            state.get("OOMKilled") or _kernel_killed_in(self._id_of(rank))
        ):
            return memory.sentence(self._limits().get("memory"))
        return f"{who} was killed by {signal.Signals(code - 128).name}"

    def end(self, grace: float, reap: Callable[[], object], commands: Callable[[], bool]) -> None:
        """End whatever runs in them. `commands`: whether one of the engine's is still at work.

        Such a one may be about to start a container, or have last words to write; both take a
        moment, which it gets.
        """
        end(self.members, grace, reap)
        deadline = time.monotonic() + _LAST_WORDS
        while commands() and time.monotonic() < deadline:
            reap()
            if self.members():
                end(self.members, grace, reap)
            time.sleep(0.01)

    def remove(self) -> None:
        """Remove them, with whatever is in them that could not be reached from here."""
        label = f"label=retarget.launch={self._launch['key']}"
        said = ""
        for _ in range(_TRIES):
            listed = self._engine.ask("ps", "-aq", "--no-trunc", "--filter", label)
            found, said = listed.stdout.split(), listed.stderr.strip()
            if listed.returncode == 0 and not found:
                return
            if found:
                self._engine.ask("rm", "-f", "-v", *found)
            else:
                time.sleep(0.2)
        self._folder.say(f"retarget: a container may be left: {said[-300:]}")

    def members(self) -> list[Process]:
        """List what runs in them: by the container's own cgroup, or by a mark of ours."""
        ranks = range(int(self._launch["processes_per_node"]))
        ids = [known for known in map(self._id_of, ranks) if known]
        mark = f"RETARGET_CONTAINER=retarget-{self._launch['key']}-"
        return [process for process in processes() if _is_in(process.pid, ids, mark.encode())]

    def _python(self) -> str:
        """Return what the image calls its Python; asked once for each image."""
        path = os.path.join(self._cache, "pythons", self._id)
        try:
            with open(path, encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            pass
        for name in ("python3", "python"):
            words = ["run", "--rm", "--network", "none", "--entrypoint", name, self._image]
            label = ["--label", f"retarget.launch={self._launch['key']}"]
            answer = self._engine.ask(*words[:1], *label, *words[1:], "-c", "pass")
            if answer.returncode not in (0, _NOT_THERE):
                why = engine_sentence(answer.stderr or answer.stdout)
                raise Ended("failed", f"its container could not be started: {why}", 125)
            if answer.returncode == 0:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                part = f"{path}.{os.getpid()}.part"
                with open(part, "w", encoding="ascii") as file:
                    file.write(name)
                os.rename(part, path)
                return name
        raise Ended("failed", f"there is no python in image {self._called!r}", 127)

    def _limits(self) -> dict[str, Any]:
        """Return each container's part of what the launch was given here."""
        count = int(self._launch["processes_per_node"])
        total = self._launch["memory"]
        return {
            "cpus": min(float(self._launch["cpus"]) / count, float(os.cpu_count() or 1)),
            "memory": int(total) // count if total else None,
        }

    def _not_started(self, rank: int, code: int) -> str:
        if code == _NOT_THERE:
            word = self._launch["command"][0]
            return f"there is no command {word!r} in image {self._called!r}"
        said = _said(os.path.join(self._folder.streams, _stream(self._launch, rank)))
        return f"its container could not be started: {said}"

    def _name(self, rank: int) -> str:
        return f"retarget-{self._launch['key']}-{rank}"

    def _cidfile(self, rank: int) -> str:
        return self._folder.file(f"container-{rank}")

    def _id_of(self, rank: int) -> str:
        try:
            with open(self._cidfile(rank), encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""


def run_command(
    engine: Engine, name: str, key: str, limits: dict[str, Any], gpus: list[str]
) -> list[str]:
    """Return how a container is started, up to its folders, variables and command. Pure."""
    command = [engine.path, "run", "--name", name, "--label", f"retarget.launch={key}"]
    command += ["--network", "host", "--ipc", "host", "--pid", "host"]
    # its output is in our file; a second copy in the engine's would only fill the disk
    command += ["--log-driver", "none", "--no-healthcheck", "--security-opt", "label=disable"]
    command += _user(engine)
    if engine.limits:
        command += ["--cpus", f"{max(0.01, limits['cpus']):.2f}"]
        if limits["memory"]:
            command += ["--memory", str(limits["memory"]), "--memory-swap", str(limits["memory"])]
    if gpus and engine.hooks:
        command += ["--gpus", '"device=' + ",".join(gpus) + '"']
    elif gpus:
        for gpu in gpus:
            command += ["--device", f"nvidia.com/gpu={gpu}"]
    return command


def _user(engine: Engine) -> list[str]:
    """Have files come out as this user's own."""
    own = f"{os.getuid()}:{os.getgid()}"
    if engine.kind == "podman" and engine.rootless and _has_further_ids():
        return ["--user", own, "--userns", "keep-id"]
    if engine.rootless:
        return ["--user", "0:0"]  # its root is this user outside
    return ["--user", own] if engine.kind == "podman" else ["--user", own, "--userns", "host"]


def _has_further_ids() -> bool:
    """Tell whether this user may map other ids than its own, which Podman needs to keep that."""
    names = {_user_name().encode(), str(os.getuid()).encode()}
    return all(
        any(line.split(b":")[0] in names for line in _lines(path, b"\n"))
        for path in ("/etc/subuid", "/etc/subgid")
    )


def _gpus(launch: dict[str, Any]) -> list[str]:
    return [str(gpu) for share in launch["shares"][:1] for gpu in share["gpus"]]


def _stream(launch: dict[str, Any], rank: int) -> str:
    world = int(launch["nodes"]) * int(launch["processes_per_node"])
    return "output" if world == 1 else f"rank-{rank}"


def _said(path: str) -> str:
    """Return the sentence in which an engine says why it did not start a container."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        match = re.match(r"(?:docker: |Error: )(?:Error response from daemon: )?(.+)", line)
        if match:
            return match[1].rstrip(".")
    return "its engine did not say why"


def _is_in(pid: int, ids: list[str], mark: bytes) -> bool:
    for line in _lines(f"/proc/{pid}/cgroup", b"\n") if ids else ():
        text = line.decode("utf-8", "replace")
        if any(known in text for known in ids) and "conmon" not in text:
            return True
    return any(entry.startswith(mark) for entry in _lines(f"/proc/{pid}/environ", b"\0"))


def _lines(path: str, separator: bytes) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().split(separator)
    except OSError:
        return []


def _kernel_killed_in(known: str) -> bool:
    """Look into the kernel's messages, where one may: some engines do not notice such an end."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        while known:
            try:
                record = os.read(log, 8192)
            except BrokenPipeError:
                continue  # overwritten while it was read
            if b"oom-kill:" in record and known.encode() in record:
                return True
    except OSError:
        pass  # the last was read
    finally:
        os.close(log)
    return False


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
