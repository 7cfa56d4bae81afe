"""The containers of a launch: starts them, finds out how they ended, and removes them.

A container shares the network, IPC and pid namespaces of its host: ranks find each other as they
do without containers, and its processes can be seen and signalled from outside. The engine's
command is our child process. It writes the output, and its exit code is that of the container.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

from retarget.runner import memory
from retarget.runner.container_secrets import (
    SHELL,
    add_secrets,
    can_be_exported,
    remove_secrets,
    secrets_folder,
    with_secrets,
    write_secrets,
)
from retarget.runner.engine import Engine, find_engine, mount
from retarget.runner.error_lines import engine_sentence
from retarget.runner.errors import Ended, Unprepared
from retarget.runner.folder import Folder
from retarget.runner.processes import Process, end, processes

_NO_ENGINE = (
    "environment: image needs a container engine, and none answers on this machine; "
    "install Docker or Podman, or check that it runs and that this user may use it"
)
# Variables that the engine's command itself reads: a job's value must not reach that command.
_ENGINE_VARIABLES = re.compile(
    r"PATH|HOME|TMPDIR|XDG_.*|DOCKER_.*|CONTAINER.*|LD_.*|SSL_.*|GO.*|REGISTRY_.*"
)
_HOST_VARIABLES = (
    "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
_FATAL_SIGNALS = (1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15)  # shown as exit code 128 + n
_COMMAND_EXIT_SECONDS = 3.0  # for an engine's command to exit after its container is empty
_REMOVE_TRIES = 5
_NO_DETACH_KEYS = "ctrl-@,ctrl-_,ctrl-@,ctrl-_"  # nobody types these: all keys reach the program
_COMMAND_NOT_FOUND = 127  # the exit code of engines and shells


def engine_of(node: dict[str, Any]) -> Engine:
    engine = find_engine(node.get("engine"))
    if engine is None:
        raise Unprepared(_NO_ENGINE)
    return engine


class Containers:
    """The containers of one launch, one per rank."""

    def __init__(self, engine: Engine, folder: Folder, launch: dict[str, Any], cache: str) -> None:
        self._engine = engine
        self._folder = folder
        self._launch = launch
        self._cache = cache
        self._image = ""
        environment = launch["environment"]
        self._image_title = str(environment["image"] or environment["dockerfile"])
        self._image_variables: dict[str, str] = {}
        self._are_secrets_chosen = False
        self._secrets: list[str] = []  # the names of those that are passed through a file

    def use(self, image: str) -> None:
        """Use an image that the engine has."""
        description = self._engine.image(image)
        if description is None:
            raise Unprepared(f"environment: image {image!r} was removed while it was needed")
        self._image = image
        lines: list[str] = description["Config"].get("Env") or []
        pairs = (line.partition("=") for line in lines)
        self._image_variables = {name: value for name, _, value in pairs}
        self._id = str(description["Id"]).rpartition(":")[2]

    def variables(self) -> dict[str, str]:
        """Return the variables that come neither from the image nor from the launch."""
        variables = {name: os.environ[name] for name in _HOST_VARIABLES if os.environ.get(name)}
        if self._image_variables.get("PYTHONPATH"):  # the folder of `track` is appended to it
            variables["PYTHONPATH"] = self._image_variables["PYTHONPATH"]
        home = self._folder.file("home")
        os.makedirs(home, mode=0o700, exist_ok=True)
        user = os.environ.get("USER") or _user_name()
        variables.update(HOME=home, USER=user, LOGNAME=user)
        return variables

    def resolve(self, argv: list[str]) -> list[str]:
        """Return the command with the program as a path or name in the container."""
        self._choose_secrets()
        program = argv[0]
        if program == "python":
            return [self._python(), *argv[1:]]
        if "/" in program and not program.startswith("/"):
            path = os.path.join(self._folder.work, program)
            if not os.path.exists(path):
                raise Ended("failed", f"command {program!r} not found in the code", 127)
            if not os.access(path, os.X_OK):
                raise Ended("failed", f"{program!r} cannot be run: it is not executable", 126)
            return [path, *argv[1:]]
        return argv

    def wrap(
        self, rank: int, argv: list[str], variables: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the engine's command for a rank, and the variables of that command.

        Values are passed as variables of the command: they may be secret, and everybody can read
        a command line.
        """
        inside = {name: value for name, value in variables.items() if name not in self._secrets}
        gpus = _gpus(self._launch)
        if gpus and inside.get("CUDA_VISIBLE_DEVICES") == ",".join(gpus):
            # in the container they are numbered from 0
            inside["CUDA_VISIBLE_DEVICES"] = ",".join(str(number) for number in range(len(gpus)))
        outside = dict(os.environ)
        options: list[str] = []
        for name, value in inside.items():
            if _ENGINE_VARIABLES.fullmatch(name):
                options += ["-e", f"{name}={value}"]
            else:
                outside[name] = value
                options += ["-e", name]
        command = run_command(
            self._engine, self._name(rank), self._launch["key"], self._limits(), gpus
        )
        os.makedirs(self._folder.track, exist_ok=True)
        for folder in (self._folder.work, self._folder.track, self._folder.file("home")):
            command += mount(folder, writable=True)
        command += mount(os.path.join(self._cache, "track"))
        if self._secrets:
            secrets = secrets_folder(self._launch["key"], rank)
            write_secrets(secrets, {name: variables[name] for name in self._secrets})
            command += mount(secrets, writable=True)
            argv = with_secrets(secrets, argv)
        command += ["--cidfile", self._cidfile(rank), "--workdir", self._folder.work]
        options += ["-e", f"RETARGET_CONTAINER={self._name(rank)}"]
        return [*command, *options, "--entrypoint", argv[0], self._image, *argv[1:]], outside

    def wrap_exec(
        self, rank: int, argv: list[str], variables: dict[str, str], more: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the engine's command for another process in the container of a rank.

        It has the variables of the container; `more` are its own.
        """
        command = [self._engine.path, "exec", "--interactive", "--workdir", self._folder.work]
        if "TERM" in more:
            command += ["--tty", "--detach-keys", _NO_DETACH_KEYS]
        for name, value in more.items():
            command += ["-e", f"{name}={value}"]
        if self._secrets:
            folder, name = secrets_folder(self._launch["key"], rank), os.urandom(8).hex()
            add_secrets(folder, {name: variables[name] for name in self._secrets}, name)
            argv = with_secrets(folder, argv, name)
        return [*command, self._name(rank), *argv], dict(os.environ)

    def failure(self, rank: int, title: str, code: int) -> str | None:
        """Return why a rank failed; None if its program ended with this exit code by itself.

        `code` is the exit code of the engine's command, not 0.
        """
        description = self._engine.container(self._name(rank))
        state: dict[str, Any] = description["State"] if description else {}
        if str(state.get("StartedAt", "0001-")).startswith("0001-"):
            return self._start_failure(rank, code)
        if code - 128 not in _FATAL_SIGNALS:
            return None
        if code - 128 == signal.SIGKILL and (
            state.get("OOMKilled") or _kernel_killed_in(self._id_of(rank))
        ):
            return memory.out_of_memory_message(self._limits().get("memory"))
        return f"{title} was killed by {signal.Signals(code - 128).name}"

    def end(
        self, grace_seconds: float, reap: Callable[[], object], has_commands: Callable[[], bool]
    ) -> None:
        """End whatever runs in them. `has_commands`: whether a command of the engine is alive.

        Such a command may be about to start a container, or have output to write. It gets a
        moment for that.
        """
        end(self.members, grace_seconds, reap)
        deadline = time.monotonic() + _COMMAND_EXIT_SECONDS
        while has_commands() and time.monotonic() < deadline:
            reap()
            if self.members():
                end(self.members, grace_seconds, reap)
            time.sleep(0.01)

    def remove(self) -> None:
        """Remove them, with any process in them that could not be signalled from here."""
        if self._launch.get("secrets", []):
            remove_secrets(self._launch["key"], int(self._launch["processes_per_node"]))
        label = f"label=retarget.launch={self._launch['key']}"
        error = ""
        for _ in range(_REMOVE_TRIES):
            listing = self._engine.ask("ps", "-aq", "--no-trunc", "--filter", label)
            ids, error = listing.stdout.split(), listing.stderr.strip()
            if listing.returncode == 0 and not ids:
                return
            if ids:
                self._engine.ask("rm", "-f", "-v", *ids)
            else:
                time.sleep(0.2)
        self._folder.log(f"retarget: a container may not have been removed: {error[-300:]}")

    def members(self) -> list[Process]:
        """List the processes in them, by the container's cgroup or by our variable."""
        ranks = range(int(self._launch["processes_per_node"]))
        ids = [container for container in map(self._id_of, ranks) if container]
        mark = f"RETARGET_CONTAINER=retarget-{self._launch['key']}-"
        return [process for process in processes() if _is_in(process.pid, ids, mark.encode())]

    def _choose_secrets(self) -> None:
        """Choose the secrets that go through a file: all of them, if the image has a shell."""
        if self._are_secrets_chosen:
            return
        self._are_secrets_chosen = True
        names: list[str] = self._launch.get("secrets", [])
        if names and self._find_program("shells", (SHELL,), ":"):
            self._secrets = [name for name in names if can_be_exported(name)]
        others = [name for name in names if name not in self._secrets]
        for name in others:
            if _ENGINE_VARIABLES.fullmatch(name):
                reason = f"secret {name} cannot be passed to image {self._image_title!r}"
                raise Ended("failed", f"{reason}, which has no {SHELL}; rename the secret", 125)
        if others:
            self._folder.log(
                f"retarget: {', '.join(others)}: visible in `{self._engine.kind} inspect` while "
                f"the job runs, because image {self._image_title!r} has no {SHELL} to pass secrets "
                "to, or because a shell cannot set a variable of this name"
            )

    def _python(self) -> str:
        """Return the name of the image's Python; the engine is asked once per image."""
        name = self._find_program("pythons", ("python3", "python"), "pass")
        if not name:
            raise Ended("failed", f"no Python was found in image {self._image_title!r}", 127)
        return name

    def _find_program(self, kind: str, names: tuple[str, ...], code: str) -> str:
        """Return the first of these programs that the image has and that runs `code`, or ""."""
        path = os.path.join(self._cache, kind, self._id)
        try:
            with open(path, encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            pass
        name = next((name for name in names if self._has_program(name, code)), "")
        if name:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            part = f"{path}.{os.getpid()}.part"
            with open(part, "w", encoding="ascii") as file:
                file.write(name)
            os.rename(part, path)
        return name

    def _has_program(self, name: str, code: str) -> bool:
        label = ["--label", f"retarget.launch={self._launch['key']}"]
        options = ["--rm", "--network", "none", "--entrypoint", name]
        answer = self._engine.ask("run", *label, *options, self._image, "-c", code)
        if answer.returncode not in (0, _COMMAND_NOT_FOUND):
            cause = engine_sentence(answer.stderr or answer.stdout)
            raise Ended("failed", f"the container could not be started: {cause}", 125)
        return answer.returncode == 0

    def _limits(self) -> dict[str, Any]:
        """Return the CPUs and memory of one container: a rank's part of the allocation."""
        count = int(self._launch["processes_per_node"])
        total = self._launch["memory"]
        return {
            "cpus": min(float(self._launch["cpus"]) / count, float(os.cpu_count() or 1)),
            "memory": int(total) // count if total else None,
        }

    def _start_failure(self, rank: int, code: int) -> str:
        if code == _COMMAND_NOT_FOUND:
            program = self._launch["command"][0]
            return f"command {program!r} not found in image {self._image_title!r}"
        cause = _engine_error(os.path.join(self._folder.streams, _stream(self._launch, rank)))
        return f"the container could not be started: {cause}"

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
    """Return the engine's command, up to the folders, variables and command. Pure."""
    command = [engine.path, "run", "--name", name, "--label", f"retarget.launch={key}"]
    command += ["--network", "host", "--ipc", "host", "--pid", "host"]
    # the output is in our file: a second copy in the engine's log would only fill the disk
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
    """Return the options that make this user the owner of the files a container writes."""
    user = f"{os.getuid()}:{os.getgid()}"
    if engine.kind == "podman" and engine.rootless and _has_subordinate_ids():
        return ["--user", user, "--userns", "keep-id"]
    if engine.rootless:
        return ["--user", "0:0"]  # root in the container is this user outside
    return ["--user", user] if engine.kind == "podman" else ["--user", user, "--userns", "host"]


def _has_subordinate_ids() -> bool:
    """Return whether this user may map further ids, which Podman's keep-id requires."""
    names = {_user_name().encode(), str(os.getuid()).encode()}
    return all(
        any(line.split(b":")[0] in names for line in _lines(path, b"\n"))
        for path in ("/etc/subuid", "/etc/subgid")
    )


def _gpus(launch: dict[str, Any]) -> list[str]:
    return [str(gpu) for allocation in launch["allocations"][:1] for gpu in allocation["gpus"]]


def _stream(launch: dict[str, Any], rank: int) -> str:
    world = int(launch["nodes"]) * int(launch["processes_per_node"])
    return "output" if world == 1 else f"rank-{rank}"


def _engine_error(path: str) -> str:
    """Return the engine's sentence in this output about why it did not start a container."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        match = re.match(r"(?:docker: |Error: )(?:Error response from daemon: )?(.+)", line)
        if match:
            return match[1].rstrip(".")
    return "the engine gave no reason"


def _is_in(pid: int, ids: list[str], mark: bytes) -> bool:
    for line in _lines(f"/proc/{pid}/cgroup", b"\n") if ids else ():
        text = line.decode("utf-8", "replace")
        if any(container in text for container in ids) and "conmon" not in text:
            return True
    return any(entry.startswith(mark) for entry in _lines(f"/proc/{pid}/environ", b"\0"))


def _lines(path: str, separator: bytes) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().split(separator)
    except OSError:
        return []


def _kernel_killed_in(container: str) -> bool:
    """Return whether the kernel log, if it is readable, has an OOM kill in this container.

    Some engines do not notice one.
    """
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        while container:
            try:
                record = os.read(log, 8192)
            except BrokenPipeError:
                continue  # the record was overwritten while it was read
            if b"oom-kill:" in record and container.encode() in record:
                return True
    except OSError:
        pass  # that was the last record
    finally:
        os.close(log)
    return False


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
