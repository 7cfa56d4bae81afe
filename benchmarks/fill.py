"""Fills databases with 100,000 runs and one long history, straight through SQL."""

import sqlite3
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

RUNS = 100_000
POINTS = 1_000_000
RARE = 5_000  # one run in so many has the tag "rare"
HISTORY = uuid.UUID(int=0xFEDC).hex  # the run with the long history
_BEGAN = 1_700_000_000_000


@dataclass(frozen=True)
class Filled:
    """What one run is made of: the same for all databases."""

    id: str
    started: int
    metrics: dict[str, float]
    params: dict[str, str]
    tags: dict[str, str]


def runs() -> Iterator[Filled]:
    """Return the runs, always the same."""
    dice = Random(7)
    for number in range(RUNS):
        yield Filled(
            id=uuid.UUID(int=dice.getrandbits(128), version=4).hex,
            started=_BEGAN + number * 1000,
            metrics={key: dice.random() for key in ("acc", "auc", "f1", "loss", "seconds")},
            params={
                "lr": dice.choice(("0.1", "0.03", "0.01", "0.003", "0.001")),
                "optimizer": dice.choice(("adam", "sgd")),
                "batch": str(2 ** dice.randint(4, 9)),
                "layers": str(dice.randint(1, 48)),
                "seed": str(number),
            },
            tags={
                "mlflow.runName": f"run-{number}",
                "mlflow.user": dice.choice(("ada", "alan", "grace")),
                "mlflow.source.name": "train.py",
                "team": dice.choice(("vision", "speech", "text", "ads", "search")),
                "rare": "yes" if number % RARE == 0 else "no",
            },
        )


def points() -> Iterator[tuple[float, int, int, int]]:
    """Return the long history but for its last point: value, step, time, and 0 for "no NaN"."""
    dice = Random(11)
    for step in range(POINTS - 1):
        yield 1.0 / (1 + step * 1e-4) + dice.random() * 0.05, step, _BEGAN + step, 0


def fill_retarget(database: Path, experiment: str) -> None:
    every = list(runs())
    with _bulk(database) as db:
        columns = "id experiment_id name user status stage started ended location"
        _insert(db, "runs", columns, _runs(every, experiment))
        _insert(db, "params", "run_id key value", _pairs(every, "params"))
        _insert(db, "tags", "run_id key value", _pairs(every, "tags"))
        # SQLite numbers the metrics from 1 on, in this order
        _insert(db, "metrics", "run_id key value step timestamp nan", _latest(every))
        latest = enumerate(_latest(every), 1)
        columns = "metric_id value step timestamp nan"
        _insert(db, "points", columns, ((number, *row[2:]) for number, row in latest))
        _insert(db, "points", columns, ((len(every) * 5 + 1, *row) for row in points()))


def fill_mlflow(database: Path, experiment: str) -> None:
    every = sorted(runs(), key=lambda run: run.id)
    with _bulk(database) as db:
        columns = (
            "run_uuid experiment_id name user_id status lifecycle_stage start_time end_time "
            "artifact_uri"
        )
        _insert(db, "runs", columns, _runs(every, experiment))
        _insert(db, "params", "run_uuid key value", _pairs(every, "params"))
        _insert(db, "tags", "run_uuid key value", _pairs(every, "tags"))
        columns = "run_uuid key value step timestamp is_nan"
        _insert(db, "latest_metrics", columns, _latest(every))
        _insert(db, "metrics", columns, _latest(every))
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


def _runs(every: list[Filled], experiment: str) -> Iterator[tuple[object, ...]]:
    for run in (*every, Filled(HISTORY, _BEGAN, {}, {}, {"mlflow.runName": "long"})):
        location = f"mlflow-artifacts:/{experiment}/{run.id}/artifacts"
        name, user = run.tags["mlflow.runName"], run.tags.get("mlflow.user", "ada")
        times = (run.started, run.started + 60_000)
        yield run.id, int(experiment), name, user, "FINISHED", "active", *times, location


def _pairs(every: list[Filled], of: str) -> Iterator[tuple[object, ...]]:
    return ((run.id, key, value) for run in every for key, value in getattr(run, of).items())


def _latest(every: list[Filled]) -> Iterator[tuple[object, ...]]:
    """Return the last point of each metric; the one of the long history comes at the end."""
    for run in every:
        for key, value in run.metrics.items():
            yield run.id, key, value, 10, run.started + 50_000, 0
    yield HISTORY, "loss", 0.1, POINTS, _BEGAN + POINTS, 0
