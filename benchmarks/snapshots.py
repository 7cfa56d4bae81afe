"""A large folder: how long until it is submitted, the first time and again."""

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from blake3 import blake3

from benchmarks.frame import CACHE, CONSOLE, OURS, Bar, Refused, Row, take_turns
from benchmarks.ours import Retarget, running
from benchmarks.starting import timed_command
from retarget.sdk.snapshot import scan

_FILES = 20_000
_SIZE = 1_000_000_000
_READ = "read and hash"
_COPY = "cp -r"


def measure() -> Iterator[Row]:
    folder = large_folder()
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        place = Path(temporary)
        numbers = iter(range(100))

        def cold() -> float:
            # nothing is deleted in between: ext4 is slow to make files just after many were removed
            with running(place / f"home-{next(numbers)}") as retarget:
                return _submit(retarget, folder)

        others = _others(folder, place)
        turns = {OURS: lambda: _take(folder, place), _READ: lambda: _read(folder), **others}
        what = f"the snapshot of a folder of {_FILES:,} files, 1 GB, nothing known of it"
        yield Row(what, "s", take_turns(turns), bar=Bar(times=1 / 3, of=_READ))
        first = {OURS: cold, _COPY: lambda: _copy(folder, place / f"copy-{next(numbers)}")}
        yield Row("submit it for the first time: 1 GB is sent and stored", "s", take_turns(first))
        with running(place / "warm") as retarget:
            _submit(retarget, folder)
            again = {OURS: lambda: _submit(retarget, folder), **_again(folder, place)}
            yield Row("submit it again, unchanged", "s", take_turns(again, 5), bar=Bar(0.5))


def _take(folder: Path, place: Path) -> float:
    """Take a snapshot as a client does that has never seen the folder."""
    with tempfile.TemporaryDirectory(dir=place) as cache:
        began = time.perf_counter()
        found = scan(folder, cache=Path(cache)).manifest
        took = time.perf_counter() - began
    if len(found.entries) != _FILES:
        raise Refused(f"the snapshot has {len(found.entries)} files, not {_FILES}")
    return took


def _copy(folder: Path, to: Path) -> float:
    return _run("cp", "-r", str(folder), str(to))


def _submit(retarget: Retarget, folder: Path) -> float:
    """Return the seconds that the command takes, and wait until its job is through, too."""
    took = timed_command(retarget, folder, "run", "--detach", "--", "true")() / 1000
    (newest,) = retarget.client.get("/api/jobs?limit=1")
    retarget.wait(newest["name"])
    return took


def large_folder() -> Path:
    """Return the folder, made if it is not there: files of all sizes in folders of a hundred."""
    folder = CACHE / "folder"
    if folder.exists():
        return folder
    CONSOLE.print("making a folder of 1 GB")
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    dice = random.Random(5)
    for number in range(_FILES):
        path = part / f"{number // 100:03}" / f"file-{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dice.randbytes(_SIZE // _FILES))
    return part.rename(folder)


def _read(folder: Path) -> float:
    began = time.perf_counter()
    for where, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                blake3(file.read()).hexdigest()
    return time.perf_counter() - began


def _others(folder: Path, place: Path) -> dict[str, Callable[[], float]]:
    numbers = iter(range(100))

    def add() -> float:
        repository = place / f"git-{next(numbers)}"
        _run("git", "init", "--quiet", "--bare", str(repository))
        return _git_add(folder, repository)

    def pack() -> float:
        return _run("sh", "-c", f"tar cf - -C '{folder}' . | cat > /dev/null")

    return {"git add": add, "tar": pack}


def _again(folder: Path, place: Path) -> dict[str, Callable[[], float]]:
    copy = place / "copy"
    shutil.copytree(folder, copy)
    found: dict[str, Callable[[], float]] = {"git add": lambda: _git_add(folder, place / "git-0")}
    if shutil.which("rsync"):
        found["rsync -n"] = lambda: _run("rsync", "-an", f"{folder}/", f"{copy}/")
    return found


def _git_add(folder: Path, repository: Path) -> float:
    where = ("--git-dir", str(repository), "--work-tree", str(folder))
    return _run("git", *where, "-c", "core.bare=false", "add", "-A", cwd=folder)


def _run(*command: str, cwd: Path | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
