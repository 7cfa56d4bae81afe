"""A real dockerd and a real Podman, each in its own namespaces, with a test image.

The bridge and firewall rules of an engine are in its own network namespace, which has no route
out. Tests reach the engine by its socket, which is a file. The pids that it reports are those of
its own PID namespace.

Every pytest worker starts its own engine when a test first needs it, and imports the image, which
takes about a second. Workers share only the archive of the image.
"""

import fcntl
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.testbeds.namespaces import Namespace, missing_for_namespaces, run, wait_until

IMAGE = "localhost/py:test"
_REPOSITORY = Path(__file__).parents[2]
_ARCHIVE = _REPOSITORY / ".parts/image/python.tar"
_engine_numbers = itertools.count(1)
_CGROUPS = Path("/sys/fs/cgroup")
_PROGRAMS = {
    "docker": ("dockerd", "containerd", "docker", "iptables", "runc"),
    "podman": ("podman", "conmon", "iptables", "runc"),
}
_SETUP = """\
ip link set lo up
mount -t tmpfs -o mode=755 none /run
"""
_PODMAN_CONFIG = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "/run/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
default_subnet = "172.31.78.0/24"
"""


def missing_for_engines(*names: str) -> str | None:
    """Say what this machine lacks for these engines, or for all of them; None if nothing."""
    programs = [program for name in names or _PROGRAMS for program in _PROGRAMS[name]]
    missing = missing_for_namespaces(*dict.fromkeys(programs))
    if missing is None and not _ARCHIVE.exists() and not shutil.which("apt-get"):
        return f"{_ARCHIVE} cannot be built without apt-get"
    return missing


def image_archive() -> Path:
    """Return a tar of a root file system with Python and a shell. It is built if missing."""
    if not _ARCHIVE.exists():
        run([str(_REPOSITORY / "scripts/python-image.sh")])
    return _ARCHIVE


@contextmanager
def docker_engine(folder: Path, *, live_restore: bool = False) -> Generator["Engine"]:
    """Start dockerd. Unless `live_restore` is set, its containers end with it."""
    # An absolute path: otherwise it would be below the cgroup of these tests.
    parent = f"/rt{os.getpid()}-docker{next(_engine_numbers)}"
    for stale in _cgroups("rt*-docker*"):
        if not Path("/proc", stale.name[2:].split("-")[0]).exists():
            _remove_cgroup(stale)
    (folder / "daemon.json").write_text("{}")
    with short_folder() as short:
        url = f"unix://{short}/socket"
        daemon = [
            *("dockerd", "--config-file", f"{folder}/daemon.json", "-H", url),
            *("--data-root", f"{folder}/data", "--exec-root", f"{short}/exec"),
            *("--pidfile", f"{folder}/pid", "--bip", "172.31.77.1/24"),
            *("--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", parent),
            *(("--live-restore",) if live_restore else ()),
        ]
        client = ["env", f"DOCKER_CONFIG={folder}", "docker", "-H", url]
        engine = Engine("docker", folder, url, daemon, client)
        try:
            engine.start()
            yield engine
        finally:
            engine.close()
            for cgroup in _cgroups(parent[1:]):
                _remove_cgroup(cgroup)


@contextmanager
def podman_engine(folder: Path) -> Generator["Engine"]:
    """Start the service of Podman. Its containers have their own parents and outlive it."""
    (folder / "containers.conf").write_text(_PODMAN_CONFIG.format(folder=folder))
    # with this TMPDIR, the files of a killed build are removed with the rest
    conf = ["env", f"CONTAINERS_CONF={folder}/containers.conf", f"TMPDIR={folder}", "podman"]
    stores = [f"--root={folder}/root", "--runroot=/run/store", "--storage-driver=overlay"]
    with _sharing_cgroup("libpod_parent"), short_folder() as short:
        url = f"unix://{short}/socket"
        service = ["system", "service", "--time=0", url]
        client = [*conf, "--remote", "--url", url]
        engine = Engine("podman", folder, url, [*conf, *stores, *service], client)
        try:
            engine.start()
            yield engine
        finally:
            engine.close()


@contextmanager
def short_folder() -> Generator[Path]:
    """Make a folder with a short path, as the folders of tests have long ones.

    The path of a socket may have at most 107 characters, that of Podman's run folder 50.
    """
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        yield Path(folder)


class Engine:
    """The daemon of an engine, its socket and its command."""

    def __init__(
        self, name: str, folder: Path, url: str, daemon: list[str], client: list[str]
    ) -> None:
        self.name = name
        self.url = url
        self.namespace = Namespace(_SETUP)
        self._folder = folder
        self._daemon_argv = daemon
        self._client_argv = client
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def start(self) -> None:
        """Start the daemon unless it runs, and return when it answers."""
        if self._daemon is None:
            # Podman's conmon leaves a file named oom where it was started.
            argv = ["env", "-C", str(self._folder), *self._daemon_argv]
            self._daemon = self.namespace.popen(*argv, log=self.log)
            wait_until(self._answers, f"{self.name} answers; see {self.log}")

    def stop(self) -> None:
        """Stop the daemon and wait for it. Docker gives its containers ten seconds."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill only the daemon. Docker's containers run until it restarts, Podman's continue."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def cli(self, *argv: str) -> str:
        """Run the command of the engine and return its output."""
        return self.namespace.run(*self._client_argv, *argv)

    def load_image(self) -> str:
        """Import the test image unless the engine has it, and return its name."""
        if not self.cli("images", "--quiet", IMAGE).strip():
            self.cli("import", str(image_archive()), IMAGE)
        return IMAGE

    def restore(self) -> None:
        """Make the engine run, and remove all containers and volumes. Images stay."""
        if self._daemon is None:
            self.namespace.kill()  # at its start, Docker would wait ten seconds for them
        self.start()
        wait_until(self._has_no_containers, "all containers are removed")
        self.cli("volume", "prune", "--force")

    def _has_no_containers(self) -> bool:
        """Remove all containers; return whether there were none."""
        containers = self.cli("ps", "--all", "--quiet").split()
        if containers:
            at_once = ("--time=0",) if self.name == "podman" else ()
            try:
                self.cli("rm", "--force", "--volumes", *at_once, *containers)
            except RuntimeError as error:
                if "already in progress" not in str(error):  # by the server, which has ended
                    raise
        return not containers

    def close(self) -> None:
        """Kill the daemon and all containers, and remove their files."""
        self.namespace.close()
        if self._daemon:
            self._daemon.wait(200)
        for entry in self._folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _end(self, signal_number: signal.Signals) -> None:
        if self._daemon is None:
            return
        program = "dockerd" if self.name == "docker" else "podman"
        for pid, argv in self.namespace.processes():
            if os.path.basename(argv[0]) == program and self.url in argv:
                os.kill(pid, signal_number)
        self._daemon.wait(200)
        self._daemon = None

    def _answers(self) -> bool:
        assert self._daemon
        if self._daemon.poll() is not None:
            raise RuntimeError(f"{self.name} did not start: {self.log.read_text()[-2000:]}")
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.settimeout(200)
            connection.connect(self.url.removeprefix("unix://"))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
        return False


@contextmanager
def _sharing_cgroup(name: str) -> Generator[None]:
    """Remove a cgroup that several engines share when the last of them ends."""
    lock = os.open(_CGROUPS, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        yield
    finally:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for cgroup in _cgroups(name):
                _remove_cgroup(cgroup)
        os.close(lock)


def _cgroups(pattern: str) -> list[Path]:
    """Return the cgroups of that name: below each controller in v1, below the root in v2."""
    return [*_CGROUPS.glob(pattern), *_CGROUPS.glob(f"*/{pattern}")]


def _remove_cgroup(cgroup: Path) -> None:
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):  # another process is in it
            os.rmdir(folder)
