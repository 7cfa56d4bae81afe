"""The engines that containers are tested with: the testbeds' dockerd, and Podman."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbeds.engines import IMAGE, image_archive, missing_for_engines, short_folder
from tests.testbeds.namespaces import require

_CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{1}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{0}/networks"
"""
_STORAGE_CONF = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/graph"\nrunroot = "{1}/run"\n'


@dataclass(frozen=True)
class ContainerEngine:
    """An engine for tests; its command finds it through `variables`."""

    name: str
    variables: dict[str, str]

    def ask(self, *arguments: str) -> str:
        answer = subprocess.run(
            [self.name, *arguments],
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def containers(self) -> list[str]:
        """Return the names of all containers, including those of Podman's builds."""
        options = ("--external",) if self.name == "podman" else ()
        return self.ask("ps", "-a", *options, "--format", "{{.Names}}").split()

    def clear(self) -> None:
        """Remove all containers, so that the next test starts clean."""
        if containers := self.containers():
            self.ask("rm", "-f", "-v", *containers)


def isolated_podman(folder: Path) -> Iterator[ContainerEngine]:
    """Yield a Podman with its own stores and locks.

    Locks are normally in memory that all Podmans of a host share, and one that starts with an
    empty store takes over the locks of the others.
    """
    require(missing_for_engines("podman"))
    with short_folder() as short:
        (folder / "containers.conf").write_text(_CONTAINERS_CONF.format(folder, short))
        (folder / "storage.conf").write_text(_STORAGE_CONF.format(folder, short))
        variables = {
            "CONTAINERS_CONF": f"{folder}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
        }
        engine = ContainerEngine("podman", variables)
        try:
            engine.ask("import", str(image_archive()), IMAGE)
            yield engine
            engine.clear()
        finally:
            _unmount(folder, short)


def _unmount(*folders: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if any(mount.startswith(f"{folder}/") for folder in folders):
            subprocess.run(["umount", "--lazy", mount], check=True)
