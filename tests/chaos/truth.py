"""What must hold for every job, whatever was killed: compared with what its script wrote down."""

import re
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any
from urllib.parse import quote

from retarget.core.snapshots import digest_bytes
from tests.chaos.arena import VICTIM, Arena, Submitted
from tests.chaos.victim import ARTIFACT, OUTPUTS, STEP, TRACKS, WRITES, content

LOST = "its runner was killed while the script ran"
KILLED = "was killed by SIGKILL"
_NODE = re.compile(r"^node \d+: ")  # who of several said it
_FINAL = {"succeeded", "failed", "canceled"}


def check(arena: Arena, job: Submitted) -> None:
    """See that an ended job ended once, truly, with the whole log, and as it had to."""
    view = arena.show(job)
    launches = _launches(arena, job)
    _check_history(arena, job, view)
    _check_starts(arena, launches)
    assert len(view["attempts"]) <= job.retries + 1
    outcomes = [_outcome(attempt, view) for attempt in view["attempts"]]
    for number, outcome in enumerate(outcomes, start=1):
        launch = launches[number]
        assert outcome in _allowed(arena, job, launch), _story(arena, job, view)
        _check_log(arena, job, number, launch)
        if job.kind in TRACKS:
            check_points(arena, job, launch)
    _check_end(arena, job, view, outcomes)
    if job.kind in WRITES and view["state"] == "succeeded":
        _check_outputs(arena, job)
    if job.kind in TRACKS and view["state"] == "succeeded":
        _check_artifact(arena, job)


def _launches(arena: Arena, job: Submitted) -> dict[int, str]:
    """Return the launch of each attempt, and see that no other was ever started."""
    with closing(sqlite3.connect(arena.home.database)) as db:
        rows = db.execute("SELECT number, key FROM attempts WHERE job_id = ?", [job.id])
        launches: dict[int, str] = dict(rows.fetchall())
    started = {line[0] for line in _lines(arena, "starts") if line[2] == job.name}
    assert started <= set(launches.values()), f"{job.name} was started outside of its attempts"
    return launches


def _check_history(arena: Arena, job: Submitted, view: dict[str, Any]) -> None:
    history = arena.call("GET", f"/api/jobs/{job.id}/history")
    finals = [move for move in history if move["state"] in _FINAL]
    assert len(finals) == 1, history
    assert finals == history[-1:], history
    assert finals[0]["state"] == view["state"]
    events = Counter(move["event"] for move in history)
    assert events["placed"] - events["returned"] == len(view["attempts"]) == view["attempt"]
    assert all(attempt["ended"] is not None for attempt in view["attempts"])


def _check_starts(arena: Arena, launches: dict[int, str]) -> None:
    starts = Counter((line[0], line[1]) for line in _lines(arena, "starts"))
    for launch in launches.values():
        twice = {rank: n for (key, rank), n in starts.items() if key == launch and n > 1}
        assert not twice, f"launch {launch} was started more than once: {twice}"


def _outcome(attempt: dict[str, Any], view: dict[str, Any]) -> str:
    reason, code = attempt["reason"], attempt["exit_code"]
    if code == 0:
        return "exit 0"
    if KILLED in reason:
        assert code == 137
        return "killed"
    if _NODE.sub("", reason) in (LOST, "its runner was killed while the script was being started"):
        return "lost"
    if "nothing was heard of it for" in reason:
        return "silent"
    if reason == "canceled":
        return "canceled"
    return f"exit {code}" if f"exit code {code}" in reason else f"{reason} ({view['reason']})"


def _allowed(arena: Arena, job: Submitted, launch: str) -> set[str]:
    """Return how this attempt may have ended, given what was killed and what it wrote down."""
    fails = job.kind == "fails" or (job.kind == "flaky" and launch == _first(arena, job))
    natural = "exit 3" if fails else "exit 0"
    kills = [kill for kill in arena.kills if kill.job == job.id and kill.launch == launch]
    finished = {(line[0], line[1]) for line in _lines(arena, "finished")}
    if any(kill.part == "host" for kill in kills):
        allowed = {"silent"}
    elif any(kill.part == "runner" and kill.started and not kill.decided for kill in kills):
        allowed = {"lost"}
    elif any(kill.part == "script" for kill in kills):
        whole = {(launch, str(rank)) for rank in range(job.ranks)} <= finished
        allowed = {"killed", natural} if whole else {"killed"}
    else:
        allowed = {natural}
    return allowed | ({"canceled"} if job.id in arena.canceled else set())


def _check_end(arena: Arena, job: Submitted, view: dict[str, Any], outcomes: list[str]) -> None:
    canceled = job.id in arena.canceled
    story = _story(arena, job, view)
    if outcomes and outcomes[-1] == "exit 0":
        assert view["state"] == "succeeded", story
        assert view["exit_code"] == 0, story
    elif canceled:
        assert view["state"] == "canceled", story
    else:
        assert view["state"] == "failed", story
        assert view["reason"] == view["attempts"][-1]["reason"], story
        assert view["exit_code"] == view["attempts"][-1]["exit_code"], story
        assert len(outcomes) == job.retries + 1, story
    assert "exit 0" not in outcomes[:-1], story


def _check_log(arena: Arena, job: Submitted, number: int, launch: str) -> None:
    finished = {(line[0], line[1]) for line in _lines(arena, "finished")}
    for rank in range(job.ranks):
        log = arena.log(job, number, "output" if job.ranks == 1 else f"rank-{rank}")
        record = arena.records / f"{launch}.{rank}"
        wrote = record.read_bytes() if record.exists() else b""
        assert wrote[: len(log)] == log, (
            f"{job.name}: the log is not what the script wrote: {log[-500:]!r}"
        )
        missing = len(wrote) - len(log)
        most = 0 if (launch, str(rank)) in finished else STEP
        assert missing <= most, f"{job.name}: {missing} of {len(wrote)} bytes never came"


def _check_outputs(arena: Arena, job: Submitted) -> None:
    listed = arena.call("GET", f"/api/jobs/{job.id}/outputs")
    found = {each["path"]: (each["size"], each["digest"]) for each in listed}
    expected = {path: content(path) for path in OUTPUTS}
    expected["logs/train.log"] = b"epoch 1\nepoch 2"
    assert found == {path: (len(each), digest_bytes(each)) for path, each in expected.items()}
    for path, each in expected.items():
        assert arena.fetch("GET", f"/api/jobs/{job.id}/outputs/{quote(path)}") == each


def points_of(arena: Arena, metric: str) -> list[int]:
    """Return the steps of all points the server has of a metric."""
    query = "SELECT step FROM points WHERE metric_id = (SELECT id FROM metrics WHERE key = ?)"
    with closing(sqlite3.connect(arena.home.database)) as db:
        return sorted(row[0] for row in db.execute(query, [metric]))


def check_points(arena: Arena, job: Submitted, launch: str) -> None:
    """See that every point whose call has returned is there, once, and at most one more."""
    for rank in range(job.ranks):
        record = arena.records / f"track.{launch}.{rank}"
        returned = record.stat().st_size if record.exists() else 0
        steps = points_of(arena, f"{launch}/{rank}")
        assert steps == list(range(len(steps))), f"{job.name}: {len(steps)} points, not in a row"
        assert 0 <= len(steps) - returned <= 1, (
            f"{job.name}: {returned} calls have returned, and {len(steps)} points came"
        )


def _check_artifact(arena: Arena, job: Submitted) -> None:
    query = f"run_id={job.id}&path={ARTIFACT.partition('/')[0]}"
    listed = arena.call("GET", f"/api/2.0/mlflow/artifacts/list?{query}")
    size = VICTIM.stat().st_size
    assert [(each["path"], int(each["file_size"])) for each in listed["files"]] == [
        (ARTIFACT, size)
    ]


def _first(arena: Arena, job: Submitted) -> str:
    starts = (line[0] for line in _lines(arena, "starts") if line[2] == job.name)
    return next(starts, "")


def _lines(arena: Arena, name: str) -> list[list[str]]:
    path = arena.records / name
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _story(arena: Arena, job: Submitted, view: dict[str, Any]) -> str:
    """Return all that is known about a job, for whoever reads the failure."""
    attempts = [f"  {attempt}" for attempt in view["attempts"]]
    history = [f"  {move}" for move in arena.call("GET", f"/api/jobs/{job.id}/history")]
    kills = [f"  {kill}" for kill in arena.kills if kill.job == job.id]
    canceled = "canceled" if job.id in arena.canceled else "not canceled"
    head = f"{job}: {view['state']}, {view['reason']}; {canceled}"
    return "\n".join([head, "attempts:", *attempts, "history:", *history, "kills:", *kills])
