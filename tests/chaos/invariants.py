"""Checks what must hold for every job, whatever was killed, against the records of its script."""

import re
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any
from urllib.parse import quote

from retarget.core.snapshots import digest_bytes
from tests.chaos.chaos_script import ARTIFACT, OUTPUTS, STEP, TRACKS, WRITES, content
from tests.chaos.chaos_server import SCRIPT_FILE, ChaosServer, Submitted

LOST = "its runner was killed while the script ran"
REBOOTED = "the host has rebooted while the script ran"
_LOST = re.compile(
    "(its runner was killed|the host has rebooted) while the script (ran|was being started)"
)
KILLED = "was killed by SIGKILL"
_NODE = re.compile(r"^node \d+: ")  # the node, if there are several
_FINAL = {"succeeded", "failed", "canceled"}


def check(chaos_server: ChaosServer, job: Submitted) -> None:
    """Check that a job ended once, for a true reason, with its whole log, in an allowed way."""
    view = chaos_server.show(job)
    launches = _launches(chaos_server, job)
    _check_history(chaos_server, job, view)
    _check_starts(chaos_server, launches)
    assert len(view["attempts"]) <= job.retries + 1
    outcomes = [_outcome(attempt, view) for attempt in view["attempts"]]
    for number, outcome in enumerate(outcomes, start=1):
        launch = launches[number]
        assert outcome in _allowed(chaos_server, job, launch), _describe(chaos_server, job, view)
        _check_log(chaos_server, job, number, launch)
        if job.kind in TRACKS:
            check_points(chaos_server, job, launch)
    _check_end(chaos_server, job, view, outcomes)
    if job.kind in WRITES and view["state"] == "succeeded":
        _check_outputs(chaos_server, job)
    if job.kind in TRACKS and view["state"] == "succeeded":
        _check_artifact(chaos_server, job)


def _launches(chaos_server: ChaosServer, job: Submitted) -> dict[int, str]:
    """Return the launch of each attempt, and check that no other was ever started."""
    with closing(sqlite3.connect(chaos_server.home.database)) as db:
        rows = db.execute("SELECT number, key FROM attempts WHERE job_id = ?", [job.id])
        launches: dict[int, str] = dict(rows.fetchall())
    started = {line[0] for line in _lines(chaos_server, "starts") if line[2] == job.name}
    assert started <= set(launches.values()), f"{job.name} was started outside of its attempts"
    return launches


def _check_history(chaos_server: ChaosServer, job: Submitted, view: dict[str, Any]) -> None:
    history = chaos_server.call("GET", f"/api/jobs/{job.id}/history")
    finals = [transition for transition in history if transition["state"] in _FINAL]
    assert len(finals) == 1, history
    assert finals == history[-1:], history
    assert finals[0]["state"] == view["state"]
    events = Counter(transition["event"] for transition in history)
    assert events["placed"] - events["unplaced"] == len(view["attempts"]) == view["attempt"]
    assert all(attempt["ended_at"] is not None for attempt in view["attempts"])


def _check_starts(chaos_server: ChaosServer, launches: dict[int, str]) -> None:
    starts = Counter((line[0], line[1]) for line in _lines(chaos_server, "starts"))
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
    if _LOST.fullmatch(_NODE.sub("", reason)):
        return "lost"
    if "no report for" in reason:
        return "silent"
    if reason == "canceled":
        return "canceled"
    return f"exit {code}" if f"exit code {code}" in reason else f"{reason} ({view['reason']})"


def _allowed(chaos_server: ChaosServer, job: Submitted, launch: str) -> set[str]:
    """Return how this attempt may have ended, given the kills and the records of its script."""
    fails = job.kind == "fails" or (job.kind == "flaky" and launch == _first(chaos_server, job))
    natural = "exit 3" if fails else "exit 0"
    kills = [kill for kill in chaos_server.kills if kill.job == job.id and kill.launch == launch]
    finished = {(line[0], line[1]) for line in _lines(chaos_server, "finished")}
    if any(kill.part == "host" for kill in kills):
        allowed = {"silent"}
    elif any(kill.part == "runner" and kill.started and not kill.decided for kill in kills):
        allowed = {"lost"}
    elif any(kill.part == "script" for kill in kills):
        is_complete = {(launch, str(rank)) for rank in range(job.ranks)} <= finished
        allowed = {"killed", natural} if is_complete else {"killed"}
    else:
        allowed = {natural}
    return allowed | ({"canceled"} if job.id in chaos_server.canceled else set())


def _check_end(
    chaos_server: ChaosServer, job: Submitted, view: dict[str, Any], outcomes: list[str]
) -> None:
    canceled = job.id in chaos_server.canceled
    description = _describe(chaos_server, job, view)
    if outcomes and outcomes[-1] == "exit 0":
        assert view["state"] == "succeeded", description
        assert view["exit_code"] == 0, description
    elif canceled:
        assert view["state"] == "canceled", description
    else:
        assert view["state"] == "failed", description
        assert view["reason"] == view["attempts"][-1]["reason"], description
        assert view["exit_code"] == view["attempts"][-1]["exit_code"], description
        assert len(outcomes) == job.retries + 1, description
    assert "exit 0" not in outcomes[:-1], description


def _check_log(chaos_server: ChaosServer, job: Submitted, number: int, launch: str) -> None:
    finished = {(line[0], line[1]) for line in _lines(chaos_server, "finished")}
    for rank in range(job.ranks):
        log = chaos_server.log(job, number, "output" if job.ranks == 1 else f"rank-{rank}")
        record = chaos_server.records / f"{launch}.{rank}"
        written = record.read_bytes() if record.exists() else b""
        assert written[: len(log)] == log, (
            f"{job.name}: the log is not what the script wrote: {log[-500:]!r}"
        )
        missing = len(written) - len(log)
        limit = 0 if (launch, str(rank)) in finished else STEP
        assert missing <= limit, f"{job.name}: {missing} of {len(written)} bytes never arrived"


def _check_outputs(chaos_server: ChaosServer, job: Submitted) -> None:
    listed = chaos_server.call("GET", f"/api/jobs/{job.id}/outputs")
    outputs = {output["path"]: (output["size"], output["digest"]) for output in listed}
    expected = {path: content(path) for path in OUTPUTS}
    expected["logs/train.log"] = b"epoch 1\nepoch 2"
    assert outputs == {path: (len(data), digest_bytes(data)) for path, data in expected.items()}
    for path, data in expected.items():
        assert chaos_server.fetch("GET", f"/api/jobs/{job.id}/outputs/{quote(path)}") == data


def points_of(chaos_server: ChaosServer, metric: str) -> list[int]:
    """Return the steps of all points of a metric that the server has."""
    query = "SELECT step FROM points WHERE metric_id = (SELECT id FROM metrics WHERE key = ?)"
    with closing(sqlite3.connect(chaos_server.home.database)) as db:
        return sorted(row[0] for row in db.execute(query, [metric]))


def check_points(chaos_server: ChaosServer, job: Submitted, launch: str) -> None:
    """Check that every point whose call returned is stored once, and at most one more."""
    for rank in range(job.ranks):
        record = chaos_server.records / f"track.{launch}.{rank}"
        returned = record.stat().st_size if record.exists() else 0
        steps = points_of(chaos_server, f"{launch}/{rank}")
        assert steps == list(range(len(steps))), f"{job.name}: {len(steps)} points with gaps"
        assert 0 <= len(steps) - returned <= 1, (
            f"{job.name}: {returned} calls returned, but {len(steps)} points are stored"
        )


def _check_artifact(chaos_server: ChaosServer, job: Submitted) -> None:
    query = f"run_id={job.id}&path={ARTIFACT.partition('/')[0]}"
    listed = chaos_server.call("GET", f"/api/2.0/mlflow/artifacts/list?{query}")
    size = SCRIPT_FILE.stat().st_size
    assert [(file["path"], int(file["file_size"])) for file in listed["files"]] == [
        (ARTIFACT, size)
    ]


def _first(chaos_server: ChaosServer, job: Submitted) -> str:
    starts = (line[0] for line in _lines(chaos_server, "starts") if line[2] == job.name)
    return next(starts, "")


def _lines(chaos_server: ChaosServer, name: str) -> list[list[str]]:
    path = chaos_server.records / name
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _describe(chaos_server: ChaosServer, job: Submitted, view: dict[str, Any]) -> str:
    """Return everything that is known about a job, for the message of a failure."""
    attempts = [f"  {attempt}" for attempt in view["attempts"]]
    history = [
        f"  {transition}" for transition in chaos_server.call("GET", f"/api/jobs/{job.id}/history")
    ]
    kills = [f"  {kill}" for kill in chaos_server.kills if kill.job == job.id]
    canceled = "canceled" if job.id in chaos_server.canceled else "not canceled"
    head = f"{job}: {view['state']}, {view['reason']}; {canceled}"
    return "\n".join([head, "attempts:", *attempts, "history:", *history, "kills:", *kills])
