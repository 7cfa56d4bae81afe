"""Servers that are killed, restarted, moved, or started twice."""

import json
import os
import shutil
import signal
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

from retarget.core.jobs import Allocation, Attempt, Job, JobSpec
from retarget.core.names import new_id
from retarget.core.states import JobState
from retarget.store.engine import open_engine
from retarget.store.jobs import Jobs
from retarget.store.targets import Targets
from tests.chaos.chaos_server import ChaosServer, Submitted, eventually
from tests.chaos.invariants import check
from tests.chaos.packages import SlowPackage
from tests.chaos.processes import kill_together

pytestmark = pytest.mark.chaos


def test_a_server_at_another_port_continues_the_log(chaos_server: ChaosServer) -> None:
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    old = _url(chaos_server)
    chaos_server.kill_server()
    with _other_program_at(int(old.rpartition(":")[2])):
        chaos_server.start()
        assert _url(chaos_server) != old
        before = len(chaos_server.log(job, 1))
        eventually(lambda: len(chaos_server.log(job, 1)) > before + 50, "its log grows")
        chaos_server.open_gate(job)
        _succeeds(chaos_server, job)
    chaos_server.settle()


def test_a_job_that_ends_while_no_server_runs(chaos_server: ChaosServer) -> None:
    job = chaos_server.submit("late")
    chaos_server.wait_for(job, "running")
    chaos_server.kill_server()
    chaos_server.open_gate(job)
    eventually(lambda: chaos_server.has_event(job, "exited"), "the script has ended")
    time.sleep(0.5)
    chaos_server.start()
    _succeeds(chaos_server, job)
    chaos_server.settle()


def test_a_job_that_ends_while_neither_server_nor_runner_runs(
    chaos_server: ChaosServer,
) -> None:
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    chaos_server.kill(("server", "runner"), job)
    chaos_server.open_gate(job)
    eventually(lambda: not chaos_server.scripts(job), "the script has ended")
    chaos_server.start()
    assert chaos_server.wait(job)["state"] == "failed"
    check(chaos_server, job)
    chaos_server.settle()


def test_a_runner_killed_while_it_ends_leftover_processes(
    chaos_server: ChaosServer,
) -> None:
    job = chaos_server.submit("children", grace_seconds=1.5)
    eventually(lambda: chaos_server.has_event(job, "clearing"), "the script has ended")
    assert [kill.part for kill in chaos_server.kill(("runner",), job)] == ["runner"]
    _succeeds(chaos_server, job)
    chaos_server.settle()


def test_the_fork_server_may_be_killed_at_any_moment(chaos_server: ChaosServer) -> None:
    """Its runners continue, and the next fork server starts those that it did not fork."""
    held = chaos_server.submit("hold")
    chaos_server.wait_for(held, "running")
    jobs: list[Submitted] = []
    for pause in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        jobs += [chaos_server.submit("quick") for _ in range(2)]
        time.sleep(pause)
        kill_together(chaos_server.fork_servers())
    chaos_server.open_gate(held)
    for job in (held, *jobs):
        _succeeds(chaos_server, job)
    chaos_server.settle()


def test_of_two_servers_for_one_home_one_wins(fresh: ChaosServer) -> None:
    servers = [fresh.start(ready=False) for _ in range(2)]
    eventually(lambda: fresh.home.server("main").info.exists(), "one of them is ready")
    eventually(lambda: any(server.poll() is not None for server in servers), "the other exits")
    assert sorted(str(server.poll()) for server in servers) == ["1", "None"]
    winner = next(server for server in servers if server.poll() is None)
    assert fresh.pid == winner.pid
    fresh.adopt(winner)
    _succeeds(fresh, fresh.submit("quick"))
    fresh.settle()


def test_a_server_killed_at_any_moment_of_its_first_start(fresh: ChaosServer) -> None:
    for delay in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        server = fresh.start(ready=False)
        time.sleep(delay)
        server.send_signal(signal.SIGKILL)
        server.wait()
    fresh.start()
    _succeeds(fresh, fresh.submit("quick"))
    fresh.settle()


@pytest.mark.parametrize("name", ["token", "secret"])
def test_a_server_killed_while_it_made_its_secrets(fresh: ChaosServer, name: str) -> None:
    fresh.home.root.mkdir(mode=0o700)
    (fresh.home.root / f"{name}.part").touch(mode=0o600)
    fresh.start()
    _succeeds(fresh, fresh.submit("quick"))
    fresh.settle()


def test_killed_between_placing_and_launching(chaos_server: ChaosServer) -> None:
    template = chaos_server.submit("quick")
    _succeeds(chaos_server, template)
    spec = chaos_server.show(template)
    chaos_server.kill_server()
    job = _place(chaos_server, spec)
    chaos_server.start()
    _succeeds(chaos_server, job)
    assert chaos_server.starts(job) == 1
    chaos_server.settle()


def test_killed_between_launching_and_storing_the_handle(chaos_server: ChaosServer) -> None:
    """The job does not end before its handle is stored: its files could never be removed."""
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    _write(chaos_server, "UPDATE attempts SET handle = NULL WHERE job_id = ?", job.id)
    chaos_server.open_gate(job)
    eventually(lambda: chaos_server.has_event(job, "finished"), "its runner reports the end")
    time.sleep(0.2)
    assert chaos_server.show(job)["state"] == "finalizing"
    chaos_server.kill_server()
    chaos_server.start()
    _succeeds(chaos_server, job)
    chaos_server.settle()


def test_a_launch_that_was_removed_is_not_started_again(chaos_server: ChaosServer) -> None:
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    folder = chaos_server.launch_of(job)
    assert folder is not None
    chaos_server.kill(("server", "runner", "script"), job)
    shutil.rmtree(folder)
    chaos_server.start()
    view = chaos_server.wait(job)
    assert view["state"] == "failed"
    assert view["reason"] == "the launch no longer exists on the target"
    assert chaos_server.starts(job) == 1
    chaos_server.settle()


def test_jobs_deleted_the_moment_they_end(chaos_server: ChaosServer) -> None:
    for _ in range(8):
        job = chaos_server.submit("quick")
        chaos_server.wait(job)
        _delete(chaos_server, job)
    chaos_server.settle()


def test_a_job_deleted_before_a_new_server_has_cleaned_it_up(chaos_server: ChaosServer) -> None:
    job = chaos_server.submit("quick")
    chaos_server.wait(job)
    chaos_server.kill_server()
    chaos_server.start()
    _delete(chaos_server, job)
    chaos_server.settle()


def test_a_canceled_job_whose_server_and_runner_are_killed(chaos_server: ChaosServer) -> None:
    job = chaos_server.submit("hold")
    chaos_server.wait_for(job, "running")
    chaos_server.pause_runner(job)
    assert chaos_server.cancel(job)
    chaos_server.kill(("server", "runner"), job)
    chaos_server.start()
    view = chaos_server.wait(job)
    assert (view["state"], view["reason"]) == ("canceled", "canceled")
    chaos_server.settle()


def test_a_build_that_is_canceled_after_its_runner_was_killed(chaos_server: ChaosServer) -> None:
    slow = SlowPackage(chaos_server.root / "packages")
    job = chaos_server.submit("quick", environment=slow.environment)
    eventually(lambda: slow.is_building, "its environment is being built")
    chaos_server.pause_server()
    kill_together(chaos_server.runners(job))
    chaos_server.kill(("server",), job)
    _write(
        chaos_server,
        "UPDATE jobs SET state = 'canceling', version = version + 1 WHERE id = ?",
        job.id,
    )
    chaos_server.start()
    view = chaos_server.wait(job)
    assert (view["state"], view["reason"]) == ("canceled", "canceled")
    chaos_server.settle()
    environments = chaos_server.home.target("local") / "environments"
    folders = [folder for folder in environments.iterdir() if folder.is_dir()]
    assert all((folder / "ready.json").exists() for folder in folders), folders


def test_killed_in_the_middle_of_a_large_output(chaos_server: ChaosServer) -> None:
    code = "import os; os.truncate(os.open('outputs/big', os.O_CREAT | os.O_RDWR), 400 << 20)"
    job = _run(chaos_server, code)
    eventually(lambda: _is_half_uploaded(chaos_server), "it is being uploaded")
    chaos_server.kill_server()
    chaos_server.start()
    view = chaos_server.wait(job)
    assert view["state"] == "succeeded", view
    listed = chaos_server.call("GET", f"/api/jobs/{job.id}/outputs")
    assert [(output["path"], output["size"]) for output in listed] == [("outputs/big", 400 << 20)]
    chaos_server.settle()
    (chaos_server.home.blobs / listed[0]["digest"][:2] / listed[0]["digest"]).unlink()


def test_an_output_that_was_removed_again_is_not_kept(chaos_server: ChaosServer) -> None:
    gate = chaos_server.records / "gate.removal"
    code = (
        "import os, time; open('outputs/draft', 'w').close(); os.utime('outputs/draft', (1, 1))\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
        "os.unlink('outputs/draft'); open('outputs/final', 'w').close()"
    )
    job = _run(chaos_server, code)
    path = f"/api/jobs/{job.id}/outputs"
    eventually(lambda: chaos_server.call("GET", path), "the draft is uploaded")
    chaos_server.pause_server()
    gate.touch()
    eventually(lambda: chaos_server.has_event(job, "exited"), "the script has ended")
    chaos_server.kill(("runner",), job)
    chaos_server.continue_server()
    assert chaos_server.wait(job)["state"] == "succeeded"
    assert [output["path"] for output in chaos_server.call("GET", path)] == ["outputs/final"]
    chaos_server.settle()


def test_a_server_ends_when_its_home_is_removed(fresh: ChaosServer) -> None:
    server = fresh.start()
    job = fresh.submit("hold")
    fresh.wait_for(job, "running")
    while fresh.home.root.exists():
        shutil.rmtree(fresh.home.root, ignore_errors=True)
    assert server.wait(200) == 0
    eventually(lambda: not fresh.processes(), "its jobs end with it")


def test_a_submission_whose_server_is_killed_is_stored_once_or_not_at_all(
    chaos_server: ChaosServer,
) -> None:
    chaos_server.wait(chaos_server.submit("quick"))
    for delay in (0.0, 0.002, 0.005, 0.01):
        name = f"once-{new_id(time.time())[-8:]}"
        timer = chaos_server.kill_server_after(delay)
        is_submitted = True
        try:
            chaos_server.submit("quick", name=name)
        except (OSError, urllib.error.URLError):
            is_submitted = False
        timer.join()
        chaos_server.reap()
        chaos_server.start()
        jobs = [job for job in chaos_server.call("GET", "/api/jobs") if job["name"] == name]
        assert len(jobs) <= 1
        assert jobs or not is_submitted, "an accepted job is gone"
        for job in jobs:
            _succeeds(chaos_server, Submitted(job["id"], name, "quick"))
    chaos_server.settle()


@contextmanager
def _other_program_at(port: int) -> Generator[None]:
    """Run another program that answers at this port."""
    with HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler) as program:
        thread = threading.Thread(target=program.serve_forever, args=(0.05,))
        thread.start()
        yield
        program.shutdown()
        thread.join()


def _succeeds(chaos_server: ChaosServer, job: Submitted) -> None:
    view = chaos_server.wait(job)
    assert view["state"] == "succeeded", view["reason"]
    check(chaos_server, job)


def _run(chaos_server: ChaosServer, code: str) -> Submitted:
    view = chaos_server.call("POST", "/api/jobs", {"command": ["python", "-S", "-c", code]})
    return Submitted(view["id"], view["name"], "other")


def _delete(chaos_server: ChaosServer, job: Submitted) -> None:
    """Delete a job; retry while it is being removed from its target."""

    def is_deleted() -> bool:
        try:
            chaos_server.call("DELETE", f"/api/jobs/{job.id}")
        except urllib.error.HTTPError as refused:
            if refused.code != 409:
                raise
            return False
        return True

    eventually(is_deleted, f"{job.name} can be deleted")


def _place(chaos_server: ChaosServer, view: dict[str, Any]) -> Submitted:
    """Do what a server does until just before it launches."""
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
        created_at=now,
        changed_at=now,
    )
    allocation = Allocation(node=os.uname().nodename)
    attempt = Attempt(
        key=new_id(now),
        job_id=job.id,
        number=1,
        target="local",
        allocations=(allocation,),
        created_at=now,
    )
    engine = open_engine(f"sqlite:///{chaos_server.home.database}")
    jobs, targets = Jobs(engine), Targets(engine)
    jobs.add(job)
    jobs.place(job, attempt, reason="", now=now, placements=targets.placements("local"))
    engine.dispose()
    return Submitted(job.id, name, "quick")


def _write(chaos_server: ChaosServer, statement: str, job: str) -> None:
    """Change the database to what a server killed at the worst moment leaves."""
    with closing(sqlite3.connect(chaos_server.home.database)) as db, db:
        assert db.execute(statement, [job]).rowcount == 1


def _is_half_uploaded(chaos_server: ChaosServer) -> bool:
    return any(part.stat().st_size > 1 << 20 for part in _parts(chaos_server.home.blobs))


def _parts(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.part") if path.exists()]


def _url(chaos_server: ChaosServer) -> str:
    return json.loads(chaos_server.home.server("main").info.read_text())["url"]
