"""`make soak MINUTES=10`: loads a server for that long, then checks results and growth."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.soak.load import Load, Size
from tests.soak.watched import Sample, Sampler, watched

_FULL = Size(jobs=200, followers=50, lines=20_000, clients=20, seconds=600, rest=12)
_MAX_GROWTH = 1.10  # of memory from the middle to the end, as a factor,
_MAX_GROWTH_MB = 8.0  # or in MB
_MAX_MORE = 4  # files or threads more at rest than before


def main() -> int:
    """Print every problem; return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=_FULL.seconds / 60)
    minutes = parser.parse_args().minutes
    size = replace(_FULL, seconds=minutes * 60)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["RETARGET_HOME"] = f"{folder}/home"
        problems = soak(Path(folder), size)
    for sentence in problems[:50]:
        print(f"PROBLEM: {sentence}")
    print(f"{len(problems)} problems" if problems else "no problems")
    return 1 if problems else 0


def soak(folder: Path, size: Size) -> list[str]:
    """Load a server, and return the problems as sentences."""
    with watched(folder / "home") as server:
        load = Load(server, folder / "code")
        _timed(f"{size.jobs} jobs at once", lambda: load.run_jobs(size.jobs))
        title = f"{size.followers} followers of {size.lines} lines"
        _timed(title, lambda: load.follow(size.followers, size.lines))
        before = server.at_rest(size.rest)
        done = load.done
        with Sampler(server) as sampler:
            title = f"{size.clients} clients for {size.seconds:g} s"
            seconds = _timed(title, lambda: load.run_clients(size.clients, size.seconds))
        after = server.at_rest(size.rest)
        rate = (load.done - done) / seconds
        print(f"{load.done} jobs were correct; the clients ran {rate:.1f} per second")
        problems = list(load.problems)
        if size.rest:
            problems += _check_growth(before, sampler.samples, after)
        problems += [f"left over: {name}" for name in server.leftovers()]
        problems += [f"the server logged: {line}" for line in server.logged_problems()[:20]]
    if server.process.returncode not in (0, -signal.SIGTERM):
        problems.append(f"the server ended with {server.process.returncode}")
    return problems + [f"left at the end: {name}" for name in server.leftovers(timeout=100)]


def _timed(title: str, work: Callable[[], None]) -> float:
    began_at = time.monotonic()
    work()
    seconds = time.monotonic() - began_at
    print(f"{title}: {seconds:.1f} s", flush=True)
    return seconds


def _check_growth(before: Sample, samples: list[Sample], after: Sample) -> list[str]:
    """Return what has grown: memory from the middle to the end, files and threads at rest."""
    for name, sample in (
        ("at rest before", before),
        ("after a tenth", samples[len(samples) // 10]),
        ("in the middle", samples[len(samples) // 2]),
        ("at the end", samples[-1]),
        ("at rest after", after),
    ):
        print(f"{name}: {sample}")
    problems: list[str] = []
    middle, end = samples[len(samples) // 2].memory, samples[-1].memory
    if end > max(middle * _MAX_GROWTH, middle + _MAX_GROWTH_MB):
        problems.append(f"memory grew from {middle:.0f} MB in the middle to {end:.0f} MB")
    if after.files > before.files + _MAX_MORE:
        problems.append(f"{before.files} open files became {after.files}")
    if after.threads > before.threads + _MAX_MORE:
        problems.append(f"{before.threads} threads became {after.threads}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
