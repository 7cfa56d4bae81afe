"""What only root can create: a small disk, and another user who can run our commands."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

OTHER_UID = 54321  # of no existing user
_REPOSITORY = Path(__file__).parents[2]


def need_root() -> None:
    """Skip a test that needs root if we are not root; in CI, fail it."""
    message = "only root can mount a disk or become another user"
    if os.getuid() == 0 and _can_unshare():
        return
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def _can_unshare() -> bool:
    tools = [shutil.which(name) for name in ("unshare", "setpriv", "mount", "umount")]
    return (
        all(tools) and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0
    )


@contextmanager
def small_disk(path: Path, size: str) -> Generator[Path]:
    """Mount a disk of this size, such as 8m, until the end of the block."""
    need_root()
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "retarget-test", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Leave only this many bytes free on a disk; delete the returned file to free the space."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    os.truncate(ballast, max(0, ballast.stat().st_size - leave))
    return ballast


def as_other_user(*command: str, holding: Path) -> list[str]:
    """Return a command that runs `command` as another user.

    The folders above this interpreter and this clone may be closed to others, as /root is. So the
    command sees an open folder there that contains only those two. `holding` is an empty folder.
    """
    folders = {Path(sys.base_prefix).resolve(), _REPOSITORY}
    closed = {path: gate for path in folders if (gate := _closed_folder(path)) is not None}
    steps: list[str] = []
    for number, path in enumerate(closed):
        held = shlex.quote(f"{holding}/{number}")
        steps += [f"mkdir -p {held}", f"mount --bind {shlex.quote(str(path))} {held}"]
    for gate in set(closed.values()):
        steps.append(f"mount -t tmpfs -o mode=755 retarget-test {shlex.quote(str(gate))}")
    for number, path in enumerate(closed):
        target, source = shlex.quote(str(path)), shlex.quote(f"{holding}/{number}")
        steps += [f"mkdir -p {target}", f"mount --move {source} {target}"]
    prefix = f"setpriv --reuid {OTHER_UID} --regid {OTHER_UID} --clear-groups"
    steps.append(f"exec {prefix} {shlex.join(command)}")
    return ["unshare", "--mount", "sh", "-c", " && ".join(["umask 022", *steps])]


def _closed_folder(path: Path) -> Path | None:
    """Return the first folder above `path` that others cannot enter."""
    folders = [*reversed(path.parents), path]
    return next((folder for folder in folders if not folder.stat().st_mode & 0o001), None)
