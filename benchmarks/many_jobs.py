"""Measures many jobs: 500 at once, a store with 100,000, and the cost of an idle server."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    RETARGET,
    Goal,
    Row,
    measure_rounds,
    run_server,
    temporary_folder,
    wait_until_stable,
)
from benchmarks.retarget_server import Retarget, run_retarget, start_retarget
from benchmarks.starting import BARE, time_command

_EMPTY_JOB = ("python", "-c", "pass")
_JOBS_AT_ONCE = 500
_STORED_JOBS = 100_000
_PARALLEL = os.cpu_count() or 1


def measure() -> Iterator[Row]:
    with temporary_folder() as temporary:
        folder = Path(temporary)
        yield from _idle(folder)
        with run_retarget(folder / "home") as retarget:
            sides = {RETARGET: lambda: _jobs_per_second(retarget), BARE: _processes_per_second}
            yield Row(
                f"{_JOBS_AT_ONCE} empty jobs at once, {_PARALLEL} in parallel",
                "/s",
                measure_rounds(sides, 5),
                higher_is_better=True,
                goal=Goal(ratio=0.5, peer=BARE),
            )
        yield from _large_store(folder)


def _idle(folder: Path) -> Iterator[Row]:
    start_seconds: list[float] = []
    memory: list[float] = []
    for number in range(5):
        with run_server(start_retarget(folder / f"idle-{number}")) as server:
            start_seconds.append(server.start_seconds)
            if number == 0:
                wait_until_stable(server)
                memory.append(server.memory())
    yield Row("server start to ready", "s", {RETARGET: start_seconds}, goal=Goal(1.5))
    yield Row("memory of an idle server (RSS)", "MB", {RETARGET: memory}, goal=Goal(120))


def _jobs_per_second(retarget: Retarget) -> float:
    start_time = time.perf_counter()
    retarget.wait_all(retarget.submit_all(_JOBS_AT_ONCE, *_EMPTY_JOB))
    return _JOBS_AT_ONCE / (time.perf_counter() - start_time)


def _processes_per_second() -> float:
    def run(_: int) -> None:
        subprocess.run([sys.executable, *_EMPTY_JOB[1:]], check=True)

    start_time = time.perf_counter()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(run, range(_JOBS_AT_ONCE)))
    return _JOBS_AT_ONCE / (time.perf_counter() - start_time)


def _large_store(folder: Path) -> Iterator[Row]:
    with run_retarget(folder / "few") as retarget:
        retarget.wait(retarget.submit(*_EMPTY_JOB)["name"])
    with run_retarget(folder / "many") as retarget:
        retarget.wait(retarget.submit(*_EMPTY_JOB)["name"])
    _fill(folder / "many" / "retarget.db")
    with run_retarget(folder / "few") as few, run_retarget(folder / "many") as many:
        run = time_command(many, folder, "job", "list")
        run()
        name = f"`retarget job list`, the whole command, {_STORED_JOBS:,} jobs in the store"
        yield Row(name, "ms", measure_rounds({RETARGET: run}, 10), goal=Goal(200))
        empty = "an empty store"
        sides: dict[str, Callable[[], float]] = {
            RETARGET: lambda: _submit(many),
            empty: lambda: _submit(few),
        }
        for submit in sides.values():
            submit()
        name = f"submit, {_STORED_JOBS:,} jobs in the store"
        yield Row(name, "ms", measure_rounds(sides, 15), goal=Goal(ratio=0.5, peer=empty))


def _submit(retarget: Retarget) -> float:
    start_time = time.perf_counter()
    job = retarget.submit(*_EMPTY_JOB)
    duration = (time.perf_counter() - start_time) * 1000
    retarget.wait(job["name"])
    return duration


def _fill(database: Path) -> None:
    """Copy the only job in the store, with all its rows, many times."""
    with closing(sqlite3.connect(database)) as db:
        db.row_factory = sqlite3.Row
        for setting in ("synchronous = OFF", "cache_size = -400000", "foreign_keys = OFF"):
            db.execute(f"PRAGMA {setting}")
        (job,) = db.execute("SELECT * FROM jobs").fetchall()
        (key,) = db.execute("SELECT key FROM attempts").fetchone()
        old = {"id": job["id"], "name": job["name"], "key": key}
        for table in ("jobs", "history", "attempts", "runs", "tags"):
            rows = [dict(row) for row in db.execute(f"SELECT * FROM {table}")]
            _insert(db, table, (_copy(row, old, n) for n in range(_STORED_JOBS) for row in rows))
        db.commit()
        db.execute("ANALYZE")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _copy(row: dict[str, Any], old: dict[str, str], number: int) -> dict[str, Any]:
    new = {old["id"]: f"{number:032x}", old["name"]: f"job-{number}"}
    new[old["key"]] = f"{number:032x}"
    copied = {
        name: _replace(value, old["id"], new[old["id"]]) if isinstance(value, str) else value
        for name, value in row.items()
    }
    renamed = {name: new.get(str(value), value) for name, value in copied.items()}
    return renamed | (
        {"handle": None} if "handle" in renamed else {}
    )  # its launch was removed long ago


def _replace(value: str, old: str, new: str) -> str:
    return value.replace(old, new) if old in value else value


def _insert(db: sqlite3.Connection, table: str, rows: Iterator[dict[str, Any]]) -> None:
    first = next(rows, None)
    if first is None:
        return
    names = ", ".join(f'"{name}"' for name in first)
    marks = ", ".join(f":{name}" for name in first)
    insert = f"INSERT INTO {table} ({names}) VALUES ({marks})"
    db.execute(insert, first)
    db.executemany(insert, rows)
