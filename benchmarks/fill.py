"""Fills databases with 100,000 runs and one long history, directly with SQL."""

import sqlite3
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

RUNS = 100_000
POINTS = 1_000_000
RARE_INTERVAL = 5_000  # one run in this many has the tag rare=yes
HISTORY = uuid.UUID(int=0xFEDC).hex  # the run with the long history
_FIRST_START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class RunContent:
    """The content of one run, the same for all databases."""

    id: str
    started_at: int
    metrics: dict[str, float]
    params: dict[str, str]
    tags: dict[str, str]


def runs() -> Iterator[RunContent]:
    """Yield the runs, the same on every call."""
    rng = Random(7)
    for number in range(RUNS):
        yield RunContent(
            id=uuid.UUID(int=rng.getrandbits(128), version=4).hex,
            started_at=_FIRST_START_MS + number * 1000,
            metrics={key: rng.random() for key in ("acc", "auc", "f1", "loss", "seconds")},
            params={
                "lr": rng.choice(("0.1", "0.03", "0.01", "0.003", "0.001")),
                "optimizer": rng.choice(("adam", "sgd")),
                "batch": str(2 ** rng.randint(4, 9)),
                "layers": str(rng.randint(1, 48)),
                "seed": str(number),
            },
            tags={
                "mlflow.runName": f"run-{number}",
                "mlflow.user": rng.choice(("ada", "alan", "grace")),
                "mlflow.source.name": "train.py",
                "team": rng.choice(("vision", "speech", "text", "ads", "search")),
                "rare": "yes" if number % RARE_INTERVAL == 0 else "no",
            },
        )


def points() -> Iterator[tuple[float, int, int, int]]:
    """Yield the long history without its last point: value, step, time, and 0 for "not NaN"."""
    rng = Random(11)
    for step in range(POINTS - 1):
        yield 1.0 / (1 + step * 1e-4) + rng.random() * 0.05, step, _FIRST_START_MS + step, 0


def fill_retarget(database: Path, experiment: str) -> None:
    every_run = list(runs())
    with _bulk(database) as db:
        columns = "id experiment_id name user status stage started_at ended_at location"
        _insert(db, "runs", columns, _runs(every_run, experiment))
        _insert(db, "params", "run_id key value", _pairs(every_run, "params"))
        _insert(db, "tags", "run_id key value", _pairs(every_run, "tags"))
        # SQLite numbers the metrics from 1, in this order
        _insert(db, "metrics", "run_id key value step logged_at nan", _latest(every_run))
        latest = enumerate(_latest(every_run), 1)
        columns = "metric_id value step logged_at nan"
        _insert(db, "points", columns, ((number, *row[2:]) for number, row in latest))
        _insert(db, "points", columns, ((len(every_run) * 5 + 1, *row) for row in points()))


def fill_mlflow(database: Path, experiment: str) -> None:
    every_run = sorted(runs(), key=lambda run: run.id)
    with _bulk(database) as db:
        columns = (
            "run_uuid experiment_id name user_id status lifecycle_stage start_time end_time "
            "artifact_uri"
        )
        _insert(db, "runs", columns, _runs(every_run, experiment))
        _insert(db, "params", "run_uuid key value", _pairs(every_run, "params"))
        _insert(db, "tags", "run_uuid key value", _pairs(every_run, "tags"))
        columns = "run_uuid key value step timestamp is_nan"
        _insert(db, "latest_metrics", columns, _latest(every_run))
        _insert(db, "metrics", columns, _latest(every_run))
        _insert(db, "metrics", columns, ((HISTORY, "loss", *row) for row in points()))


@contextmanager
def _bulk(database: Path) -> Generator[sqlite3.Connection, None, None]:
    with closing(sqlite3.connect(database)) as db:
        for setting in ("synchronous = OFF", "cache_size = -400000", "foreign_keys = OFF"):
            db.execute(f"PRAGMA {setting}")
        with db:
            yield db
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _insert(
    db: sqlite3.Connection, table: str, columns: str, rows: Iterable[tuple[object, ...]]
) -> None:
    names = columns.split()
    marks = ", ".join("?" * len(names))
    db.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)


def _runs(every_run: list[RunContent], experiment: str) -> Iterator[tuple[object, ...]]:
    for run in (
        *every_run,
        RunContent(HISTORY, _FIRST_START_MS, {}, {}, {"mlflow.runName": "long"}),
    ):
        location = f"mlflow-artifacts:/{experiment}/{run.id}/artifacts"
        name, user = run.tags["mlflow.runName"], run.tags.get("mlflow.user", "ada")
        times = (run.started_at, run.started_at + 60_000)
        yield run.id, int(experiment), name, user, "FINISHED", "active", *times, location


def _pairs(every_run: list[RunContent], field: str) -> Iterator[tuple[object, ...]]:
    return ((run.id, key, value) for run in every_run for key, value in getattr(run, field).items())


def _latest(every_run: list[RunContent]) -> Iterator[tuple[object, ...]]:
    """Yield the last point of each metric; the long history comes last."""
    for run in every_run:
        for key, value in run.metrics.items():
            yield run.id, key, value, 10, run.started_at + 50_000, 0
    yield HISTORY, "loss", 0.1, POINTS, _FIRST_START_MS + POINTS, 0
