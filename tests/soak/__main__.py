"""`make soak MINUTES=10`: load for so long, and then one look at what it has left."""

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
from tests.soak.watched import Sample, Sampler, Watched, watched

_FULL = Size(jobs=200, followers=50, lines=20_000, clients=20, seconds=600, rest=12)
_GROWTH = 1.10  # times as much memory at the end as in the middle is still flat,
_SLACK = 8.0  # or so many MB more
_FEW = 4  # files or threads more at rest than before


def main() -> int:
    """Return 1, after sentences that say why, if anything was not right."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=_FULL.seconds / 60)
    minutes = parser.parse_args().minutes
    size = replace(_FULL, seconds=minutes * 60)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ["RETARGET_HOME"] = f"{folder}/home"
        wrong = soak(Path(folder), size)
    for sentence in wrong[:50]:
        print(f"WRONG: {sentence}")
    print(f"{len(wrong)} things were wrong" if wrong else "all was right")
    return 1 if wrong else 0


def soak(folder: Path, size: Size) -> list[str]:
    """Load a server as told and return what was wrong, in sentences."""
    with watched(folder / "home") as server:
        load = Load(server, folder / "code")
        _timed(f"{size.jobs} jobs at once", lambda: load.crowd(size.jobs))
        what = f"{size.followers} followers of {size.lines} lines"
        _timed(what, lambda: load.follow(size.followers, size.lines))
        before = server.at_rest(size.rest)
        done = load.done
        with Sampler(server) as sampler:
            what = f"{size.clients} clients for {size.seconds:g} s"
            took = _timed(what, lambda: load.go_on(size.clients, size.seconds))
        after = server.at_rest(size.rest)
        print(f"{load.done} jobs were right, {(load.done - done) / took:.1f} a second at the last")
        wrong = list(load.wrong)
        if size.rest:
            wrong += _judged(before, sampler.samples, after)
        wrong += [f"left over: {each}" for each in server.left_over()]
        wrong += _said(server)
    if server.process.returncode not in (0, -signal.SIGTERM):
        wrong.append(f"the server ended with {server.process.returncode}")
    return wrong + [f"left at the end: {each}" for each in server.left_over()]


def _timed(what: str, work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    took = time.monotonic() - began
    print(f"{what}: {took:.1f} s", flush=True)
    return took


def _judged(before: Sample, samples: list[Sample], after: Sample) -> list[str]:
    """Tell what has grown: memory from the middle to the end, files and threads at rest."""
    for name, sample in (
        ("at rest before", before),
        ("after a tenth", samples[len(samples) // 10]),
        ("in the middle", samples[len(samples) // 2]),
        ("at the end", samples[-1]),
        ("at rest after", after),
    ):
        print(f"{name}: {sample}")
    wrong: list[str] = []
    middle, end = samples[len(samples) // 2].memory, samples[-1].memory
    if end > max(middle * _GROWTH, middle + _SLACK):
        wrong.append(f"memory grew from {middle:.0f} MB in the middle to {end:.0f} MB")
    if after.files > before.files + _FEW:
        wrong.append(f"{before.files} open files became {after.files}")
    if after.threads > before.threads + _FEW:
        wrong.append(f"{before.threads} threads became {after.threads}")
    return wrong


def _said(server: Watched) -> list[str]:
    return [f"the server said: {line}" for line in server.said()[:20]]


if __name__ == "__main__":
    sys.exit(main())
