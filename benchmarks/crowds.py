"""Many jobs: 500 at once, and 100,000 that have ended; and what an idle server costs."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.frame import CACHE, OURS, Bar, Row, serving, settle, take_turns
from benchmarks.ours import Retarget, running, start_retarget
from benchmarks.starting import BARE, timed_command

_EMPTY = ("python", "-c", "pass")
_JOBS = 500
_MANY = 100_000
_WIDE = os.cpu_count() or 1  # so many run at the same time


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        place = Path(folder)
        yield from _idle(place)
        with running(place / "home") as retarget:
            turns = {OURS: lambda: _ours(retarget), BARE: _bare}
            yield Row(
                f"{_JOBS} empty jobs at once, {_WIDE} in parallel",
                "/s",
                take_turns(turns, 5),
                more=True,
                bar=Bar(times=0.5, of=BARE),
            )
        yield from _among_many(place)


def _idle(place: Path) -> Iterator[Row]:
    started: list[float] = []
    memory: list[float] = []
    for number in range(5):
        with serving(start_retarget(place / f"idle-{number}")) as server:
            started.append(server.started)
            if number == 0:
                settle(server)
                memory.append(server.memory())
    yield Row("a server, start to ready", "s", {OURS: started}, bar=Bar(1.5))
    yield Row("a server that does nothing, memory (RSS)", "MB", {OURS: memory}, bar=Bar(120))


def _ours(retarget: Retarget) -> float:
    began = time.perf_counter()
    retarget.wait_all(retarget.submit_all(_JOBS, *_EMPTY))
    return _JOBS / (time.perf_counter() - began)


def _bare() -> float:
    def run(_: int) -> None:
        subprocess.run([sys.executable, *_EMPTY[1:]], check=True)

    began = time.perf_counter()
    with ThreadPoolExecutor(_WIDE) as pool:
        list(pool.map(run, range(_JOBS)))
    return _JOBS / (time.perf_counter() - began)


def _among_many(place: Path) -> Iterator[Row]:
    with running(place / "few") as retarget:
        retarget.wait(retarget.submit(*_EMPTY)["name"])
    with running(place / "many") as retarget:
        retarget.wait(retarget.submit(*_EMPTY)["name"])
    _fill(place / "many" / "retarget.db")
    with running(place / "few") as few, running(place / "many") as many:
        once = timed_command(many, place, "job", "list")
        once()
        what = f"retarget job list, the whole command, {_MANY:,} jobs in the store"
        yield Row(what, "ms", take_turns({OURS: once}, 10), bar=Bar(200))
        empty = "an empty store"
        turns: dict[str, Callable[[], float]] = {
            OURS: lambda: _submit(many),
            empty: lambda: _submit(few),
        }
        for submit in turns.values():
            submit()
        what = f"submit, {_MANY:,} jobs in the store"
        yield Row(what, "ms", take_turns(turns, 15), bar=Bar(times=0.5, of=empty))


def _submit(retarget: Retarget) -> float:
    began = time.perf_counter()
    job = retarget.submit(*_EMPTY)
    took = (time.perf_counter() - began) * 1000
    retarget.wait(job["name"])
    return took


def _fill(database: Path) -> None:
    """Copy the one job that is there, with all its rows, again and again."""
    with closing(sqlite3.connect(database)) as db:
        db.row_factory = sqlite3.Row
        for setting in ("synchronous = OFF", "cache_size = -400000", "foreign_keys = OFF"):
            db.execute(f"PRAGMA {setting}")
        (job,) = db.execute("SELECT * FROM jobs").fetchall()
        (key,) = db.execute("SELECT key FROM attempts").fetchone()
        old = {"id": job["id"], "name": job["name"], "key": key}
        for table in ("jobs", "history", "attempts", "runs", "tags"):
            rows = [dict(row) for row in db.execute(f"SELECT * FROM {table}")]
            _insert(db, table, (_copy(row, old, n) for n in range(_MANY) for row in rows))
        db.commit()
        db.execute("ANALYZE")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _copy(row: dict[str, Any], old: dict[str, str], number: int) -> dict[str, Any]:
    new = {old["id"]: f"{number:032x}", old["name"]: f"job-{number}"}
    new[old["key"]] = f"{number:032x}"
    copied = {
        name: _replaced(value, old["id"], new[old["id"]]) if isinstance(value, str) else value
        for name, value in row.items()
    }
    renamed = {name: new.get(str(value), value) for name, value in copied.items()}
    return renamed | ({"handle": None} if "handle" in renamed else {})  # cleared away long ago


def _replaced(value: str, old: str, new: str) -> str:
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
