"""A newly installed extra is used without a restart of the server."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import retarget

pytest.importorskip("rattler")
_CHECK = """
import os, sys
sys.path[:] = [*(path for path in sys.path if not path.endswith("-packages")), *sys.argv[1:3]]
from retarget.core.links import Links
from retarget.drivers._channels import NO_RATTLER, CondaChannels, has_rattler
obstacle = CondaChannels(Links()).obstacle
assert not has_rattler()
assert obstacle(["file:///"]) == NO_RATTLER
os.symlink(sys.argv[3], os.path.join(sys.argv[2], "rattler"))
assert has_rattler()
assert obstacle(["file:///"]) == ""
assert "/none does not exist" in obstacle(["file:///", "file:///none"])
"""


def test_py_rattler_is_found_as_soon_as_it_is_installed(tmp_path: Path) -> None:
    installed = Path(sysconfig.get_path("purelib"))
    for entry in installed.iterdir():
        if entry.name != "rattler":
            (tmp_path / entry.name).symlink_to(entry)
    source = os.path.dirname(os.path.dirname(retarget.__file__))
    paths = [source, str(tmp_path), str(installed / "rattler")]
    subprocess.run([sys.executable, "-I", "-c", _CHECK, *paths], check=True, timeout=200)
