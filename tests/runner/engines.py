"""The engines that containers are tested with: the testbeds' dockerd, and Podman by its command."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbeds.engines import IMAGE, engines_missing, image_archive, short_folder
from tests.testbeds.namespaces import need

_PODMAN = """\
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
_STORE = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/graph"\nrunroot = "{1}/run"\n'


@dataclass(frozen=True)
class Bed:
    """An engine that tests may use; `variables` make its command find it."""

    name: str
    variables: dict[str, str]

    def ask(self, *words: str) -> str:
        answer = subprocess.run(
            [self.name, *words],
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def containers(self) -> list[str]:
        """Name those that are there, and Podman's that only a build knows."""
        also = ("--external",) if self.name == "podman" else ()
        return self.ask("ps", "-a", *also, "--format", "{{.Names}}").split()

    def clear(self) -> None:
        """Leave nothing to the next test."""
        if left := self.containers():
            self.ask("rm", "-f", "-v", *left)


def own_podman(where: Path) -> Iterator[Bed]:
    """Give Podman stores of its own. There is no daemon: whoever calls it runs the containers.

    Its locks too: in the memory that all Podmans of a machine share, one that starts with an empty
    store takes those of the others for its own.
    """
    need(engines_missing("podman"))
    with short_folder() as short:
        (where / "containers.conf").write_text(_PODMAN.format(where, short))
        (where / "storage.conf").write_text(_STORE.format(where, short))
        variables = {
            "CONTAINERS_CONF": f"{where}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{where}/storage.conf",
        }
        bed = Bed("podman", variables)
        try:
            bed.ask("import", str(image_archive()), IMAGE)
            yield bed
            bed.clear()
        finally:
            _unmount(where, short)


def _unmount(*folders: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted(mounts, reverse=True):
        if any(place.startswith(f"{folder}/") for folder in folders):
            subprocess.run(["umount", "--lazy", place], check=True)
