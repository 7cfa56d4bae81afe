"""The engines that containers are tested with: the testbeds' dockerd, and Podman by its command."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbeds.engines import IMAGE, engines_missing, image_archive
from tests.testbeds.namespaces import need

_PODMAN = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORE = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'


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
        return self.ask("ps", "-a", "--format", "{{.Names}}").split()


def own_podman(where: Path) -> Iterator[Bed]:
    """Give Podman stores of its own. There is no daemon: whoever calls it runs the containers."""
    need(engines_missing("podman"))
    (where / "containers.conf").write_text(_PODMAN)
    (where / "storage.conf").write_text(_STORE.format(where))
    variables = {
        "CONTAINERS_CONF": f"{where}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{where}/storage.conf",
    }
    bed = Bed("podman", variables)
    try:
        bed.ask("import", str(image_archive()), IMAGE)
        yield bed
    finally:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted((one for one in mounts if one.startswith(f"{where}/")), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=True)
