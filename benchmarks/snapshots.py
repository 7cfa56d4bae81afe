"""Measures how long it takes to submit a large folder, the first time and again."""

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

from benchmarks.harness import (
    CACHE,
    CONSOLE,
    RETARGET,
    Goal,
    MeasurementFailed,
    Row,
    measure_rounds,
    temporary_folder,
)
from benchmarks.retarget_server import Retarget, run_retarget
from benchmarks.starting import time_command
from retarget.sdk.snapshot import scan

_FILES = 20_000
_BYTES = 1_000_000_000
_READ = "read and hash"
_COPY = "cp -r"


def measure() -> Iterator[Row]:
    folder = large_folder()
    with temporary_folder() as temporary:
        scratch = Path(temporary)
        numbers = iter(range(100))

        def cold() -> float:
            # delete nothing in between: ext4 creates files slowly just after many were removed
            with run_retarget(scratch / f"home-{next(numbers)}") as retarget:
                return _submit(retarget, folder)

        peers = _peers(folder, scratch)
        sides = {RETARGET: lambda: _take(folder, scratch), _READ: lambda: _read(folder), **peers}
        name = f"snapshot of a folder of {_FILES:,} files, 1 GB, without a cache"
        yield Row(name, "s", measure_rounds(sides), goal=Goal(ratio=1 / 3, peer=_READ))
        first = {RETARGET: cold, _COPY: lambda: _copy(folder, scratch / f"copy-{next(numbers)}")}
        yield Row("first submit: 1 GB is sent and stored", "s", measure_rounds(first))
        with run_retarget(scratch / "warm") as retarget:
            _submit(retarget, folder)
            again = {RETARGET: lambda: _submit(retarget, folder), **_again(folder, scratch)}
            yield Row("second submit, unchanged", "s", measure_rounds(again, 5), goal=Goal(0.5))


def _take(folder: Path, scratch: Path) -> float:
    """Take a snapshot, like a client that has never seen the folder."""
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        start_time = time.perf_counter()
        manifest = scan(folder, cache=Path(cache)).manifest
        duration = time.perf_counter() - start_time
    if len(manifest.entries) != _FILES:
        raise MeasurementFailed(f"the snapshot has {len(manifest.entries)} files, not {_FILES}")
    return duration


def _copy(folder: Path, copy: Path) -> float:
    return _run("cp", "-r", str(folder), str(copy))


def _submit(retarget: Retarget, folder: Path) -> float:
    """Return the seconds that the command takes, after waiting for its job to end."""
    duration = time_command(retarget, folder, "run", "--detach", "--", "true")() / 1000
    (newest,) = retarget.client.get("/api/jobs?limit=1")
    retarget.wait(newest["name"])
    return duration


def large_folder() -> Path:
    """Return the folder, with a hundred files per subfolder; create it if it does not exist."""
    folder = CACHE / "folder"
    if folder.exists():
        return folder
    CONSOLE.print("creating a folder of 1 GB")
    partial = folder.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    rng = random.Random(5)
    for number in range(_FILES):
        path = partial / f"{number // 100:03}" / f"file-{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(_BYTES // _FILES))
    return partial.rename(folder)


def _read(folder: Path) -> float:
    start_time = time.perf_counter()
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                blake3(file.read()).hexdigest()
    return time.perf_counter() - start_time


def _peers(folder: Path, scratch: Path) -> dict[str, Callable[[], float]]:
    numbers = iter(range(100))

    def add() -> float:
        repository = scratch / f"git-{next(numbers)}"
        _run("git", "init", "--quiet", "--bare", str(repository))
        return _git_add(folder, repository)

    def pack() -> float:
        return _run("sh", "-c", f"tar cf - -C '{folder}' . | cat > /dev/null")

    return {"git add": add, "tar": pack}


def _again(folder: Path, scratch: Path) -> dict[str, Callable[[], float]]:
    copy = scratch / "copy"
    shutil.copytree(folder, copy)
    peers: dict[str, Callable[[], float]] = {"git add": lambda: _git_add(folder, scratch / "git-0")}
    if shutil.which("rsync"):
        peers["rsync -n"] = lambda: _run("rsync", "-an", f"{folder}/", f"{copy}/")
    return peers


def _git_add(folder: Path, repository: Path) -> float:
    options = ("--git-dir", str(repository), "--work-tree", str(folder))
    return _run("git", *options, "-c", "core.bare=false", "add", "-A", cwd=folder)


def _run(*command: str, cwd: Path | None = None) -> float:
    start_time = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_time
