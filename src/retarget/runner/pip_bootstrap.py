"""Installs pip into the layer of a job, whose interpreter has none, and runs it."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile

_NO_PIP = (
    "pip is not installed in this environment, and could not be installed: its Python comes "
    "without ensurepip, and {why}; add pip to the packages of the environment"
)


def run_pip(uv: str, arguments: list[str]) -> int:
    """Replace this process, which runs with the Python of a layer, by pip; 1 if that fails."""
    if not _ensure_pip(uv):
        return 1
    return os.execv(sys.executable, [sys.executable, "-m", "pip", *arguments])


def _ensure_pip(uv: str) -> bool:
    packages = sysconfig.get_path("purelib")
    lock = os.open(packages, os.O_RDONLY | os.O_CLOEXEC)  # of ranks that need it at once
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        if os.path.isdir(os.path.join(packages, "pip")):
            return True
        wheel = _bundled_wheel()
        if wheel is None:
            return _install_with(uv)
        _unpack(wheel, packages)
        return True
    finally:
        os.close(lock)


def _bundled_wheel() -> str | None:
    """Return the wheel that comes with Python. Debian keeps it elsewhere."""
    folders = [os.path.join(sysconfig.get_path("stdlib"), "ensurepip", "_bundled")]
    folders += [sysconfig.get_config_var("WHEEL_PKG_DIR") or "", "/usr/share/python-wheels"]
    for folder in folders:
        wheels = sorted(glob.glob(os.path.join(folder, "pip-*.whl"))) if folder else []
        if wheels:
            return wheels[-1]
    return None


def _unpack(wheel: str, packages: str) -> None:
    part = os.path.join(packages, ".pip.part")
    shutil.rmtree(part, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(part)
    for name in sorted(os.listdir(part), reverse=True):  # the package last: then pip is complete
        os.rename(os.path.join(part, name), os.path.join(packages, name))
    os.rmdir(part)


def _install_with(uv: str) -> bool:
    why = "uv was not found"
    if uv:
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "pip"]
        if subprocess.call(command) == 0:
            return True
        why = "uv could not download it"
    print(_NO_PIP.format(why=why), file=sys.stderr)
    return False
