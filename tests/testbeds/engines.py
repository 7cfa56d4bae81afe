"""A real dockerd and a real Podman, each in namespaces of its own, with an image of our own.

An engine's bridge and rules are in its own network, from where no route leads anywhere; it is
reached by its socket, which is a file. The pids it tells are those of its own PID namespace.

Every worker of a test session starts its own engine when the first test asks for it, and imports
the image, which takes about a second: nothing is shared between workers but the image's archive.
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

from tests.testbeds.namespaces import Namespace, namespaces_missing, run, wait_until

IMAGE = "localhost/py:test"
_REPOSITORY = Path(__file__).parents[2]
_ARCHIVE = _REPOSITORY / ".parts/image/python.tar"
_numbers = itertools.count(1)
_CGROUPS = Path("/sys/fs/cgroup")
_PROGRAMS = {
    "docker": ("dockerd", "containerd", "docker", "iptables", "runc"),
    "podman": ("podman", "conmon", "iptables", "runc"),
}
_SETUP = """\
ip link set lo up
mount -t tmpfs -o mode=755 none /run
"""
_PODMAN = """\
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
network_config_dir = "{where}/networks"
default_subnet = "172.31.78.0/24"
"""


def engines_missing(*names: str) -> str | None:
    """Say what this machine lacks for these engines, or for any."""
    programs = [program for name in names or _PROGRAMS for program in _PROGRAMS[name]]
    missing = namespaces_missing(*dict.fromkeys(programs))
    if missing is None and not _ARCHIVE.exists() and not shutil.which("apt-get"):
        return f"{_ARCHIVE} cannot be made without apt-get"
    return missing


def image_archive() -> Path:
    """Return a tar of a root with Python and a shell, which is made when it is not there."""
    if not _ARCHIVE.exists():
        run([str(_REPOSITORY / "scripts/python-image.sh")])
    return _ARCHIVE


@contextmanager
def docker_engine(where: Path, *, live_restore: bool = False) -> Generator["Engine"]:
    """Start dockerd. Unless it restores what lives, its end is that of its containers too."""
    # From the root: else it is below the group of these tests.
    parent = f"/rt{os.getpid()}-docker{next(_numbers)}"
    for stale in _cgroups("rt*-docker*"):
        if not Path("/proc", stale.name[2:].split("-")[0]).exists():
            _remove_cgroup(stale)
    (where / "daemon.json").write_text("{}")
    with short_folder() as short:
        url = f"unix://{short}/socket"
        daemon = [
            *("dockerd", "--config-file", f"{where}/daemon.json", "-H", url),
            *("--data-root", f"{where}/data", "--exec-root", f"{short}/exec"),
            *("--pidfile", f"{where}/pid", "--bip", "172.31.77.1/24"),
            *("--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", parent),
            *(("--live-restore",) if live_restore else ()),
        ]
        client = ["env", f"DOCKER_CONFIG={where}", "docker", "-H", url]
        engine = Engine("docker", where, url, daemon, client)
        try:
            engine.start()
            yield engine
        finally:
            engine.close()
            for cgroup in _cgroups(parent[1:]):
                _remove_cgroup(cgroup)


@contextmanager
def podman_engine(where: Path) -> Generator["Engine"]:
    """Start Podman's service. Its containers have parents of their own, and outlive it."""
    (where / "containers.conf").write_text(_PODMAN.format(where=where))
    # what a killed build leaves goes with the rest
    conf = ["env", f"CONTAINERS_CONF={where}/containers.conf", f"TMPDIR={where}", "podman"]
    stores = [f"--root={where}/root", "--runroot=/run/store", "--storage-driver=overlay"]
    with _sharing_cgroup("libpod_parent"), short_folder() as short:
        url = f"unix://{short}/socket"
        service = ["system", "service", "--time=0", url]
        client = [*conf, "--remote", "--url", url]
        engine = Engine("podman", where, url, [*conf, *stores, *service], client)
        try:
            engine.start()
            yield engine
        finally:
            engine.close()


@contextmanager
def short_folder() -> Generator[Path]:
    """Make a folder for what may have no long name, as those in the tests' own folders do.

    A socket's has 107 characters at most, and that of what Podman keeps until a reboot 50.
    """
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        yield Path(folder)


class Engine:
    """An engine's daemon, its socket and its command."""

    def __init__(
        self, name: str, where: Path, url: str, daemon: list[str], client: list[str]
    ) -> None:
        self.name = name
        self.url = url
        self.namespace = Namespace(_SETUP)
        self._where = where
        self._argv = daemon
        self._client = client
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._where / "log"

    def start(self) -> None:
        """Start the daemon unless it runs, and return when it answers."""
        if self._daemon is None:
            # Podman's conmon leaves a file named oom where it was started.
            argv = ["env", "-C", str(self._where), *self._argv]
            self._daemon = self.namespace.popen(*argv, log=self.log)
            wait_until(self._answers, f"{self.name} answers; see {self.log}")

    def stop(self) -> None:
        """Ask the daemon to end, and wait for it. Docker gives its containers ten seconds."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the daemon alone; containers go on until it is started, or for good."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def cli(self, *argv: str) -> str:
        """Run the engine's own command and return what it printed."""
        return self.namespace.run(*self._client, *argv)

    def load_image(self) -> str:
        """Import the image unless it is there, and return its name."""
        if not self.cli("images", "--quiet", IMAGE).strip():
            self.cli("import", str(image_archive()), IMAGE)
        return IMAGE

    def restore(self) -> None:
        """Run again, without any container or volume. Images stay."""
        if self._daemon is None:
            self.namespace.kill()  # Docker would give containers ten seconds at its start
        self.start()
        containers = self.cli("ps", "--all", "--quiet").split()
        if containers:
            at_once = ("--time=0",) if self.name == "podman" else ()
            self.cli("rm", "--force", "--volumes", *at_once, *containers)
        self.cli("volume", "prune", "--force")

    def close(self) -> None:
        """End the daemon and all containers, and remove what they stored."""
        self.namespace.close()
        if self._daemon:
            self._daemon.wait(60)
        for entry in self._where.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _end(self, how: signal.Signals) -> None:
        if self._daemon is None:
            return
        program = "dockerd" if self.name == "docker" else "podman"
        for pid, argv in self.namespace.processes():
            if os.path.basename(argv[0]) == program and self.url in argv:
                os.kill(pid, how)
        self._daemon.wait(60)
        self._daemon = None

    def _answers(self) -> bool:
        assert self._daemon
        if self._daemon.poll() is not None:
            raise RuntimeError(f"{self.name} did not start: {self.log.read_text()[-2000:]}")
        with socket.socket(socket.AF_UNIX) as talk, suppress(OSError):
            talk.settimeout(10)
            talk.connect(self.url.removeprefix("unix://"))
            talk.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in talk.recv(64)
        return False


@contextmanager
def _sharing_cgroup(name: str) -> Generator[None]:
    """Remove a cgroup that several engines share, when the last of them ends."""
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
    """Return the groups of that name: below each controller in version 1, below the root in 2."""
    return [*_CGROUPS.glob(pattern), *_CGROUPS.glob(f"*/{pattern}")]


def _remove_cgroup(cgroup: Path) -> None:
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):  # it has processes, which are not ours
            os.rmdir(folder)
