"""Single stories of servers that die, come back, move, or come twice."""

import json
import os
import shutil
import sqlite3
import threading
import time
import urllib.error
from collections.abc import Generator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from retarget.core.jobs import Attempt, Job, JobSpec, Share
from retarget.core.names import new_id
from retarget.core.states import JobState
from retarget.store.engine import open_engine
from retarget.store.jobs import Jobs
from retarget.store.targets import Targets
from tests.chaos.arena import Arena, Submitted, eventually
from tests.chaos.packages import Slow
from tests.chaos.processes import kill_together
from tests.chaos.truth import check

pytestmark = pytest.mark.chaos


def test_a_server_at_another_port_goes_on_with_the_log(arena: Arena) -> None:
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    old = _url(arena)
    arena.kill_server()
    with _stranger_at(int(old.rpartition(":")[2])):
        arena.start()
        assert _url(arena) != old
        before = len(arena.log(job, 1))
        eventually(lambda: len(arena.log(job, 1)) > before + 50, "its log goes on")
        arena.open_gate(job)
        _succeeds(arena, job)
    arena.settle()


def test_a_job_that_ends_while_no_server_is_there(arena: Arena) -> None:
    job = arena.submit("late")
    arena.wait_for(job, "running")
    arena.kill_server()
    arena.open_gate(job)
    eventually(lambda: arena.has_event(job, "exited"), "the script has ended")
    time.sleep(0.5)
    arena.start()
    _succeeds(arena, job)
    arena.settle()


def test_a_job_that_ends_while_neither_server_nor_runner_is_there(arena: Arena) -> None:
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    arena.kill(("server", "runner"), job)
    arena.open_gate(job)
    eventually(lambda: not arena.scripts(job), "the script has ended")
    arena.start()
    assert arena.wait(job)["state"] == "failed"
    check(arena, job)
    arena.settle()


def test_a_runner_killed_while_it_ends_what_the_script_left_running(arena: Arena) -> None:
    job = arena.submit("family", grace=1.5)
    eventually(lambda: arena.has_event(job, "clearing"), "the script has ended")
    assert [kill.part for kill in arena.kill(("runner",), job)] == ["runner"]
    _succeeds(arena, job)
    arena.settle()


def test_what_forks_the_runners_may_be_killed_at_any_moment(arena: Arena) -> None:
    """Those it has forked live on, and one that it did not come to fork is started by the next."""
    held = arena.submit("hold")
    arena.wait_for(held, "running")
    jobs: list[Submitted] = []
    for pause in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        jobs += [arena.submit("quick") for _ in range(2)]
        time.sleep(pause)
        kill_together(arena.nurseries())
    arena.open_gate(held)
    for job in (held, *jobs):
        _succeeds(arena, job)
    arena.settle()


def test_of_two_servers_for_one_home_one_wins(fresh: Arena) -> None:
    servers = [fresh.start(ready=False) for _ in range(2)]
    eventually(lambda: fresh.home.server_file.exists(), "one of them is ready")
    eventually(lambda: any(each.poll() is not None for each in servers), "the other leaves")
    assert sorted(str(each.poll()) for each in servers) == ["1", "None"]
    winner = next(each for each in servers if each.poll() is None)
    assert fresh.pid == winner.pid
    fresh.adopt(winner)
    _succeeds(fresh, fresh.submit("quick"))
    fresh.settle()


def test_a_server_killed_at_any_moment_of_its_first_start(fresh: Arena) -> None:
    for delay in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        server = fresh.start(ready=False)
        time.sleep(delay)
        server.kill()
        server.wait()
    fresh.start()
    _succeeds(fresh, fresh.submit("quick"))
    fresh.settle()


@pytest.mark.parametrize("name", ["token", "secret"])
def test_a_server_killed_while_it_made_its_secrets(fresh: Arena, name: str) -> None:
    fresh.home.root.mkdir(mode=0o700)
    (fresh.home.root / f"{name}.part").touch(mode=0o600)
    fresh.start()
    _succeeds(fresh, fresh.submit("quick"))
    fresh.settle()


def test_killed_between_placing_and_launching(arena: Arena) -> None:
    template = arena.submit("quick")
    _succeeds(arena, template)
    spec = arena.show(template)
    arena.kill_server()
    job = _place(arena, spec)
    arena.start()
    _succeeds(arena, job)
    assert arena.starts(job) == 1
    arena.settle()


def test_killed_between_launching_and_writing_down_the_handle(arena: Arena) -> None:
    """It does not end before its launch is known: else that would never be cleared away."""
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    _write(arena, "UPDATE attempts SET handle = NULL WHERE job_id = ?", job.id)
    arena.open_gate(job)
    eventually(lambda: arena.has_event(job, "finished"), "its runner reports the end")
    time.sleep(0.2)
    assert arena.show(job)["state"] == "finalizing"
    arena.kill_server()
    arena.start()
    _succeeds(arena, job)
    arena.settle()


def test_a_launch_that_was_removed_is_not_started_again(arena: Arena) -> None:
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    folder = arena.launch_of(job)
    assert folder is not None
    arena.kill(("server", "runner", "script"), job)
    shutil.rmtree(folder)
    arena.start()
    view = arena.wait(job)
    assert view["state"] == "failed"
    assert view["reason"] == "the target has no trace of it any more"
    assert arena.starts(job) == 1
    arena.settle()


def test_jobs_deleted_the_moment_they_end(arena: Arena) -> None:
    for _ in range(8):
        job = arena.submit("quick")
        arena.wait(job)
        _delete(arena, job)
    arena.settle()


def test_a_job_deleted_before_a_new_server_has_cleared_it_away(arena: Arena) -> None:
    job = arena.submit("quick")
    arena.wait(job)
    arena.kill_server()
    arena.start()
    _delete(arena, job)
    arena.settle()


def test_a_canceled_job_whose_server_and_runner_are_killed(arena: Arena) -> None:
    job = arena.submit("hold")
    arena.wait_for(job, "running")
    arena.pause_runner(job)
    assert arena.cancel(job)
    arena.kill(("server", "runner"), job)
    arena.start()
    view = arena.wait(job)
    assert (view["state"], view["reason"]) == ("canceled", "canceled")
    arena.settle()


def test_a_build_that_is_canceled_after_its_runner_was_killed(arena: Arena) -> None:
    slow = Slow(arena.root / "packages")
    job = arena.submit("quick", environment=slow.environment)
    eventually(lambda: slow.is_building, "its environment is being built")
    arena.pause_server()
    kill_together(arena.runners(job))
    arena.kill(("server",), job)
    _write(arena, "UPDATE jobs SET state = 'canceling', version = version + 1 WHERE id = ?", job.id)
    arena.start()
    view = arena.wait(job)
    assert (view["state"], view["reason"]) == ("canceled", "canceled")
    arena.settle()
    environments = arena.home.target("local") / "environments"
    half = [each for each in environments.iterdir() if each.is_dir()]
    assert all((each / "ready.json").exists() for each in half), half


def test_killed_in_the_middle_of_a_large_output(arena: Arena) -> None:
    code = "import os; os.truncate(os.open('outputs/big', os.O_CREAT | os.O_RDWR), 400 << 20)"
    job = _run(arena, code)
    eventually(lambda: _half_taken_in(arena), "it is being taken in", patience=20)
    arena.kill_server()
    arena.start()
    view = arena.wait(job)
    assert view["state"] == "succeeded", view
    listed = arena.call("GET", f"/api/jobs/{job.id}/outputs")
    assert [(each["path"], each["size"]) for each in listed] == [("outputs/big", 400 << 20)]
    arena.settle()
    (arena.home.blobs / listed[0]["digest"][:2] / listed[0]["digest"]).unlink()


def test_an_output_that_was_removed_again_is_not_kept(arena: Arena) -> None:
    gate = arena.records / "gate.removal"
    code = (
        "import os, time; open('outputs/draft', 'w').close(); os.utime('outputs/draft', (1, 1))\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
        "os.unlink('outputs/draft'); open('outputs/final', 'w').close()"
    )
    job = _run(arena, code)
    path = f"/api/jobs/{job.id}/outputs"
    eventually(lambda: arena.call("GET", path), "the draft is taken in", patience=20)
    arena.pause_server()
    gate.touch()
    eventually(lambda: arena.has_event(job, "exited"), "the script has ended")
    arena.kill(("runner",), job)
    arena.continue_server()
    assert arena.wait(job)["state"] == "succeeded"
    assert [each["path"] for each in arena.call("GET", path)] == ["outputs/final"]
    arena.settle()


def test_a_server_ends_when_its_home_is_removed(fresh: Arena) -> None:
    server = fresh.start()
    job = fresh.submit("hold")
    fresh.wait_for(job, "running")
    while fresh.home.root.exists():
        shutil.rmtree(fresh.home.root, ignore_errors=True)
    assert server.wait(20) == 0
    eventually(lambda: not fresh.processes(), "its jobs end with it", patience=20)


def test_a_submission_whose_server_is_killed_is_there_once_or_not_at_all(arena: Arena) -> None:
    arena.wait(arena.submit("quick"))
    for delay in (0.0, 0.002, 0.005, 0.01):
        name = f"once-{new_id(time.time())[-8:]}"
        server = arena.kill_server_after(delay)
        submitted = True
        try:
            arena.submit("quick", name=name)
        except (OSError, urllib.error.URLError):
            submitted = False
        server.join()
        arena.reap()
        arena.start()
        found = [each for each in arena.call("GET", "/api/jobs") if each["name"] == name]
        assert len(found) <= 1
        assert found or not submitted, "an accepted job is gone"
        for each in found:
            _succeeds(arena, Submitted(each["id"], name, "quick"))
    arena.settle()


@contextmanager
def _stranger_at(port: int) -> Generator[None]:
    """Have another program answer there, which knows nothing of ours."""
    with HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler) as stranger:
        thread = threading.Thread(target=stranger.serve_forever, args=(0.05,))
        thread.start()
        yield
        stranger.shutdown()
        thread.join()


def _succeeds(arena: Arena, job: Submitted) -> None:
    view = arena.wait(job)
    assert view["state"] == "succeeded", view["reason"]
    check(arena, job)


def _run(arena: Arena, code: str) -> Submitted:
    view = arena.call("POST", "/api/jobs", {"command": ["python", "-S", "-c", code]})
    return Submitted(view["id"], view["name"], "other")


def _delete(arena: Arena, job: Submitted) -> None:
    """Delete, and again for as long as it is being cleared away."""

    def gone() -> bool:
        try:
            arena.call("DELETE", f"/api/jobs/{job.id}")
        except urllib.error.HTTPError as refused:
            if refused.code != 409:
                raise
            return False
        return True

    eventually(gone, f"{job.name} can be deleted", patience=10)


def _place(arena: Arena, view: dict[str, Any]) -> Submitted:
    """Do what a server does up to the moment before it launches."""
    now, name = time.time(), f"placed-{new_id(time.time())[-8:]}"
    fields = JobSpec.model_fields
    spec = JobSpec.model_validate({key: view[key] for key in fields if key in view})
    spec = spec.model_copy(update={"name": name})
    job = Job(
        id=new_id(now),
        name=name,
        state=JobState.QUEUED,
        reason="",
        version=0,
        spec=spec,
        created=now,
        changed=now,
    )
    share = Share(node=os.uname().nodename)
    attempt = Attempt(
        key=new_id(now), job_id=job.id, number=1, target="local", shares=(share,), created=now
    )
    engine = open_engine(f"sqlite:///{arena.home.database}")
    jobs, targets = Jobs(engine), Targets(engine)
    jobs.add(job)
    jobs.place(job, attempt, reason="", now=now, seen=targets.placements("local"))
    engine.dispose()
    return Submitted(job.id, name, "quick")


def _write(arena: Arena, statement: str, job: str) -> None:
    """Leave the database as a server would that was killed at just the wrong moment."""
    with closing(sqlite3.connect(arena.home.database)) as db, db:
        assert db.execute(statement, [job]).rowcount == 1


def _half_taken_in(arena: Arena) -> bool:
    return any(part.stat().st_size > 1 << 20 for part in _parts(arena.home.blobs))


def _parts(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.part") if path.exists()]


def _url(arena: Arena) -> str:
    return json.loads(arena.home.server_file.read_text())["url"]
