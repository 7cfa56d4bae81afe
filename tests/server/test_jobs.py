"""Jobs over the API: submit, follow, cancel, rerun, delete, and the reasons of their states."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from retarget.core.snapshots import Entry, Manifest
from tests.server.conftest import Api

Hold = Callable[[str], dict[str, Any]]


def log(api: Api, name: str, **query: Any) -> bytes:
    return api.ask("GET", f"/api/jobs/{name}/logs", **query).content


def frame(content: bytes) -> bytes:
    return blake3(content).digest() + len(content).to_bytes(8, "big") + content


def send(api: Api, files: dict[str, bytes]) -> str:
    """Send a snapshot of these files."""
    entries = [
        Entry(path=path, size=len(content), digest=blake3(content).hexdigest())
        for path, content in files.items()
    ]
    manifest = Manifest(tuple(entries))
    body = b"".join(map(frame, (*files.values(), manifest.encode())))
    assert api.ask("POST", "/api/blobs", body).json == {"stored": len(files) + 1}
    return manifest.digest


def test_a_job_runs_and_can_be_inspected(api: Api) -> None:
    script = "import sys; open('outputs/a.txt', 'w').write('kept'); print('hi', sys.argv[1])"
    snapshot = send(api, {"main.py": script.encode()})
    job = api.submit("python", "main.py", "there", snapshot=snapshot)
    assert (job["state"], job["attempt"]) == ("queued", 0)
    done = api.wait(job["name"])
    assert (done["state"], done["exit_code"], done["attempt"]) == ("succeeded", 0, 1)
    assert done["created_at"] <= done["started_at"] <= done["ended_at"]
    assert log(api, job["name"]) == b"hi there\n"
    assert log(api, job["id"], offset=3) == b"there\n"
    (output,) = api.ask("GET", f"/api/jobs/{job['name']}/outputs").json
    assert (output["path"], output["size"]) == ("outputs/a.txt", 4)
    assert api.ask("GET", f"/api/jobs/{job['name']}/outputs/outputs/a.txt").content == b"kept"
    transitions = api.ask("GET", f"/api/jobs/{job['name']}/history").json
    assert [transition["state"] for transition in transitions] == [
        "queued",
        "launching",
        "preparing",
        "running",
        "finalizing",
        "succeeded",
    ]
    assert all(transition["reason"] for transition in transitions)


def test_a_failed_job_has_a_reason(api: Api) -> None:
    job = api.wait(api.submit("sh", "-c", "echo no; exit 3")["name"])
    assert (job["state"], job["exit_code"]) == ("failed", 3)
    assert job["reason"] == "the script ended with exit code 3; its last line: no"


def test_a_failed_job_says_where_and_what_to_do(api: Api) -> None:
    script = "import lib\nlib.load()"
    library = "def load():\n    import no_such_module"
    snapshot = send(api, {"main.py": script.encode(), "lib.py": library.encode()})
    job = api.wait(api.submit("python", "main.py", snapshot=snapshot)["name"])
    error = "ModuleNotFoundError: No module named 'no_such_module'"
    assert job["reason"] == f"exit code 1: {error} (lib.py:2)"
    assert job["hint"].startswith("module 'no_such_module' is not in the job's environment")
    why = api.ask("GET", f"/api/jobs/{job['name']}/why").json
    assert (why["reason"], why["hint"]) == (job["reason"], job["hint"])
    assert job["attempts"][0]["reason"] == job["reason"]
    assert str(log(api, job["name"])).count("/work/") == 2  # the stored bytes are the script's


def test_a_killed_script_names_the_signal(api: Api) -> None:
    job = api.wait(api.submit("sh", "-c", "kill -SEGV $$")["name"])
    assert (job["exit_code"], job["reason"]) == (139, "the script was killed by SIGSEGV")


def test_an_exit_code_above_128_is_no_signal(api: Api) -> None:
    job = api.wait(api.submit("sh", "-c", "exit 137")["name"])
    assert (job["exit_code"], job["reason"]) == (137, "the script ended with exit code 137")


def test_a_missing_command_fails_with_127(api: Api) -> None:
    job = api.wait(api.submit("no-such-command")["name"])
    assert (job["state"], job["exit_code"]) == ("failed", 127)
    assert job["reason"] == "command 'no-such-command' not found on this machine"


def test_retries_try_again_with_a_new_attempt(api: Api, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    command = f"echo x >> {tries}; echo try $(wc -l < {tries}); test $(wc -l < {tries}) = 3"
    job = api.wait(api.submit("sh", "-c", command, retries=3)["name"])
    assert (job["state"], job["attempt"], job["exit_code"]) == ("succeeded", 3, 0)
    assert (job["failures"], job["preemptions"]) == (2, 0)
    assert [attempt["exit_code"] for attempt in job["attempts"]] == [1, 1, 0]
    assert log(api, job["name"]) == b"try 3\n"
    assert log(api, job["name"], attempt=1) == b"try 1\n"


def test_retries_end(api: Api) -> None:
    job = api.wait(api.submit("false", retries=1)["name"])
    assert (job["state"], job["attempt"]) == ("failed", 2)


def test_a_timeout_ends_it(api: Api) -> None:
    job = api.wait(api.submit("sleep", "60", timeout=0.3)["name"])
    assert (job["state"], job["exit_code"]) == ("failed", 124)
    assert job["reason"] == "timed out after 300 ms"


def test_a_running_job_is_canceled_with_all_its_processes(api: Api) -> None:
    name = api.submit("sh", "-c", "setsid sleep 987654 & sleep 987654; wait")["name"]
    api.wait(name, "running")
    answer = api.ask("POST", f"/api/jobs/{name}/cancel")
    assert (answer.status, answer.json["state"]) == (202, "canceling")
    assert api.wait(name)["state"] == "canceled"
    commands = [
        (entry / "cmdline").read_bytes()
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (entry / "cmdline").exists()
    ]
    assert not any(b"987654" in command for command in commands)
    again = api.ask("POST", f"/api/jobs/{name}/cancel")
    assert (again.status, again.json["error"]) == (409, "Conflict")


def test_a_waiting_job_says_why_and_can_be_canceled(api: Api, all_cpus: Hold) -> None:
    all_cpus("holder")
    api.submit("true", name="first")
    api.submit("true", name="second", priority=-1)
    while not api.job("second")["reason"].startswith("waiting behind first"):
        time.sleep(0.02)
    why = api.ask("GET", "/api/jobs/first/why").json
    assert why["state"] == "queued"
    assert "1 CPU (0 of" in why["reason"]
    assert "held by holder" in why["reason"]
    assert why["behind"] == ["holder"]
    assert api.ask("GET", "/api/jobs/second/why").json["behind"] == ["holder", "first"]
    assert api.ask("POST", "/api/jobs/first/cancel").json["state"] == "canceled"
    api.ask("POST", "/api/jobs/holder/cancel")
    assert api.wait("second")["state"] == "succeeded"


def test_priority_goes_first(api: Api, all_cpus: Hold) -> None:
    cpus = all_cpus("gate")["cpus"]
    for name, priority in (("low", 0), ("high", 5), ("mid", 1)):
        api.submit("true", name=name, priority=priority, cpus=cpus)
    api.ask("POST", "/api/jobs/gate/cancel")
    started = {name: api.wait(name)["started_at"] for name in ("low", "mid", "high")}
    assert started["high"] < started["mid"] < started["low"]


def test_a_follower_gets_every_byte_as_it_comes(api: Api) -> None:
    name = api.submit("sh", "-c", "for i in 1 2 3; do printf 'x%s\\r' $i; sleep 0.1; done")["name"]
    assert log(api, name, follow="true") == b"x1\rx2\rx3\r"
    assert api.job(name)["state"] == "succeeded"


def test_waiting_answers_as_soon_as_something_moves(api: Api) -> None:
    job = api.submit("sleep", "0.5")
    running = api.wait(job["name"], "running")
    began = time.monotonic()
    moved = api.ask("GET", f"/api/jobs/{job['name']}", wait=30, version=running["version"])
    assert moved.json["version"] > running["version"]
    assert time.monotonic() - began < 25


def test_ranks_are_merged_by_line_and_readable_one_by_one(api: Api) -> None:
    code = "import os; print('of', os.environ['WORLD_SIZE']); print('me', os.environ['RANK'])"
    name = api.submit("python", "-c", code, processes_per_node=3)["name"]
    lines = log(api, name, follow="true").decode().splitlines()
    assert sorted(lines) == sorted(
        f"[rank {rank}] {text}" for rank in range(3) for text in ("of 3", f"me {rank}")
    )
    assert log(api, name, stream="rank-1") == b"of 3\nme 1\n"


def test_the_first_failing_rank_is_the_reason(api: Api) -> None:
    code = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(9); time.sleep(60)"
    job = api.wait(api.submit("python", "-c", code, processes_per_node=2)["name"])
    assert (job["exit_code"], job["reason"]) == (9, "rank 1 ended with exit code 9")


def test_files_under_logs_stream(api: Api) -> None:
    code = "import time; f = open('logs/train.log', 'w', 1); print('one', file=f); time.sleep(30)"
    name = api.submit("python", "-c", code)["name"]
    api.wait(name, "running")
    deadline = time.monotonic() + 200
    while log(api, name, stream="logs/train.log") != b"one\n":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    api.ask("POST", f"/api/jobs/{name}/cancel")


def test_a_rerun_is_the_same_again(api: Api) -> None:
    first = api.wait(api.submit("sh", "-c", "echo $X", variables={"X": "y"}, name="once")["name"])
    again = api.ask("POST", "/api/jobs/once/rerun", {"name": "twice"}).json
    assert (again["name"], again["command"], again["variables"]) == (
        "twice",
        first["command"],
        {"X": "y"},
    )
    assert api.wait("twice")["state"] == "succeeded"
    assert log(api, "twice") == b"y\n"


def test_a_rerun_replaces_the_arguments_of_a_script(api: Api) -> None:
    api.wait(
        api.submit("sh", "-c", "echo $0 $X", "old", arguments_index=3, name="with-args")["name"]
    )
    changes = {"arguments": ["new"], "variables": {"X": "y"}, "retries": 2}
    again = api.ask("POST", "/api/jobs/with-args/rerun", changes).json
    assert again["command"] == ["sh", "-c", "echo $0 $X", "new"]
    assert (again["arguments_index"], again["retries"]) == (3, 2)
    api.wait(again["name"])
    assert log(api, again["name"]) == b"new y\n"
    api.wait(api.submit("true", name="bare")["name"])
    refused = api.ask("POST", "/api/jobs/bare/rerun", {"arguments": ["--lr"]})
    assert (refused.status, refused.json["field"]) == (422, "arguments")


def test_a_name_is_taken_until_its_job_is_deleted(api: Api) -> None:
    api.wait(api.submit("true", name="taken")["name"])
    answer = api.ask("POST", "/api/jobs", {"command": ["true"], "name": "taken"})
    assert (answer.status, answer.json["error"]) == (409, "Conflict")
    api.cleared()
    assert api.ask("DELETE", "/api/jobs/taken").status == 204
    assert api.ask("GET", "/api/jobs/taken").status == 404
    api.wait(api.submit("true", name="taken")["name"])


def test_a_running_job_is_not_deleted(api: Api) -> None:
    api.submit("sleep", "60", name="busy")
    answer = api.ask("DELETE", "/api/jobs/busy")
    assert answer.status == 409
    assert "cancel it first" in answer.json["message"]
    api.ask("POST", "/api/jobs/busy/cancel")


def test_listing_filters_and_pages(api: Api) -> None:
    names = [api.submit("true", experiment="paged")["name"] for _ in range(5)]
    for name in names:
        api.wait(name)
    listed = api.ask("GET", "/api/jobs", experiment="paged").json
    assert [job["name"] for job in listed] == names[::-1]
    page = api.ask("GET", "/api/jobs", experiment="paged", limit=2, before=listed[1]["id"]).json
    assert [job["name"] for job in page] == names[2::-1][:2]
    assert api.ask("GET", "/api/jobs", experiment="paged", state="failed").json == []


def test_blobs_are_checked_and_pruned(api: Api) -> None:
    content = b"nobody refers to this"
    digest = blake3(content).hexdigest()
    wrong = api.ask("PUT", f"/api/blobs/{'0' * 64}", content)
    assert (wrong.status, wrong.json["field"]) == (422, "digest")
    assert api.ask("POST", "/api/blobs", frame(content)[:-3]).status == 422
    assert api.ask("GET", f"/api/blobs/{digest}").status == 404
    assert api.ask("PUT", f"/api/blobs/{digest}", content).status == 200
    kept = send(api, {"a.py": b"print(1)"})
    api.wait(api.submit("python", "a.py", snapshot=kept)["name"])
    api.ask("POST", "/api/server/prune")
    assert api.ask("GET", f"/api/blobs/{digest}").content == content
    assert api.ask("POST", "/api/server/prune", keep_seconds=0).json["blobs"] >= 1
    assert api.ask("GET", f"/api/blobs/{digest}").status == 404
    missing = api.ask("POST", "/api/blobs/missing", {"digests": [kept, digest]}).json
    assert missing == {"missing": [digest]}
    assert not list((api.home / "blobs").glob("*.part"))


def test_a_snapshot_with_a_file_that_was_never_sent_is_refused(api: Api) -> None:
    manifest = Manifest((Entry(path="a", size=1, digest="1" * 64),)).encode()
    api.ask("POST", "/api/blobs", frame(manifest))
    body = {"command": ["true"], "snapshot": blake3(manifest).hexdigest()}
    answer = api.ask("POST", "/api/jobs", body)
    assert answer.json["message"] == "snapshot: 1 of its files were not uploaded"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "outputs", "a//b", ""])
def test_a_manifest_that_would_leave_its_folder_is_refused(api: Api, path: str) -> None:
    rows = [{"path": path, "size": 0, "digest": blake3(b"").hexdigest()}]
    if path == "outputs":
        rows.append({"path": "outputs/x", "size": 0, "digest": blake3(b"").hexdigest()})
    manifest = json.dumps({"version": 1, "entries": rows}).encode()
    api.ask("POST", "/api/blobs", frame(manifest) + frame(b""))
    body = {"command": ["true"], "snapshot": blake3(manifest).hexdigest()}
    answer = api.ask("POST", "/api/jobs", body)
    assert (answer.status, answer.json["field"]) == (422, "snapshot")


def test_the_plan_of_a_job_changes_nothing(api: Api) -> None:
    for job in api.ask("GET", "/api/jobs", limit=1000).json:
        api.wait(job["name"])  # a job that another test canceled still changes its state
    before = api.ask("GET", "/api/jobs", limit=1000).json
    plan = api.ask("POST", "/api/jobs/plan", {"command": ["true"], "cpus": 1}).json
    assert plan["target"] == plan["kind"] == "local"
    assert plan["launch"]["command"] == ["true"]
    assert plan["native"]
    assert api.ask("GET", "/api/jobs", limit=1000).json == before


def test_targets_and_kinds_are_described(api: Api) -> None:
    checked = api.ask("POST", "/api/targets/local/check").json
    assert checked["inventory"]["nodes"][0]["cpus"] >= 1
    (kind,) = [
        kind for kind in api.ask("GET", "/api/targets/kinds").json if kind["kind"] == "local"
    ]
    assert kind["description"]
    assert "root" in kind["config_schema"]["properties"]


def test_many_jobs_are_queued_and_waited_for_at_once(api: Api) -> None:
    specs = [{"command": ["sh", "-c", f"exit {number % 2}"]} for number in range(6)]
    answer = api.ask("POST", "/api/jobs/batch", {"jobs": specs})
    assert answer.status == 201
    jobs = answer.json
    assert [job["command"] for job in jobs] == [spec["command"] for spec in specs]
    ids = [job["id"] for job in jobs]
    assert ids == sorted(ids)
    assert len({job["name"] for job in jobs}) == 6
    waited: dict[str, Any] = {"done": False}
    while not waited["done"]:
        waited = api.ask(
            "POST", "/api/jobs/wait", {"jobs": [*ids, "gone"], "timeout_seconds": 20}
        ).json
    ended = {job["id"]: (job["state"], job["exit_code"]) for job in waited["jobs"]}
    assert ended == {
        job_id: ("failed", 1) if number % 2 else ("succeeded", 0)
        for number, job_id in enumerate(ids)
    }


def test_of_many_jobs_all_are_queued_or_none(api: Api) -> None:
    before = len(api.ask("GET", "/api/jobs", limit=1000).json)
    fine: dict[str, Any] = {"command": ["true"]}
    cases: list[tuple[dict[str, Any], int, str | None, str]] = [
        ({"command": ["true"], "cpus": 10_000}, 422, "jobs.1.cpus", "cpus"),
        ({"command": ["true"], "target": "nowhere"}, 422, "jobs.1.target", "nowhere"),
        ({"command": []}, 422, "jobs.1.command", "command"),
        ({"command": ["true"], "name": "twin"}, 409, None, "'twin'"),
    ]
    for bad, status, field, message in cases:
        first = fine | ({"name": "twin"} if status == 409 else {})
        answer = api.ask("POST", "/api/jobs/batch", {"jobs": [first, bad]})
        assert (answer.status, answer.json["field"]) == (status, field)
        assert message in answer.json["message"]
    assert len(api.ask("GET", "/api/jobs", limit=1000).json) == before


def test_waiting_for_many_jobs_times_out(api: Api) -> None:
    job = api.submit("sleep", "60")
    answer = api.ask("POST", "/api/jobs/wait", {"jobs": [job["id"]], "timeout_seconds": 0.2}).json
    assert (answer["done"], [waited["id"] for waited in answer["jobs"]]) == (False, [job["id"]])
    api.ask("POST", f"/api/jobs/{job['id']}/cancel")
    api.wait(job["name"])


def test_an_attempt_has_the_time_of_each_stage(api: Api) -> None:
    name = api.submit("sh", "-c", "echo a line; sleep 0.3; echo another")["name"]
    job = api.wait(name)
    (attempt,) = job["attempts"]
    stages = ["created", "preparing", "starting", "started", "exited", "ended"]
    times = [job["created_at"], *(attempt[f"{stage}_at"] for stage in stages)]
    assert times == sorted(times)
    assert attempt["started_at"] < attempt["first_output_at"] < attempt["ended_at"]
    assert attempt["created_at"] < attempt["launched_at"] < attempt["ended_at"]


def test_a_listing_is_filtered_sorted_and_paged(api: Api) -> None:
    for number in range(3):
        api.wait(api.submit("sh", "-c", f"exit {number}", name=f"n-{number}", experiment="x")["id"])
    api.submit("true", name="other")
    query: dict[str, Any] = {"filter": "exit_code > 0 and name LIKE 'n-%'", "sort": "-name"}
    listed = api.ask("GET", "/api/jobs", **query, logged=["metrics.acc", "params.lr"]).json
    assert [(job["name"], job["logged"]) for job in listed] == [("n-2", {}), ("n-1", {})]
    page = api.ask("GET", "/api/jobs", sort="name", name="n-?", limit=2, offset=1).json
    assert [job["name"] for job in page] == ["n-1", "n-2"]
    assert api.ask("GET", "/api/jobs", older_than="1h").json == []
    old = api.ask("GET", "/api/jobs", older_than="0.001s", name="n-?").json
    assert [job["name"] for job in old] == ["n-2", "n-1", "n-0"]
    for wrong in ({"filter": "x > 1"}, {"sort": "x"}, {"logged": "x"}, {"older_than": "soon"}):
        answer = api.ask("GET", "/api/jobs", **wrong)
        assert (answer.status, answer.json["field"]) == (422, next(iter(wrong)))
    both = api.ask("GET", "/api/jobs", sort="name", before="x")
    assert (both.status, both.json["field"]) == (422, "before")


def test_runs_of_an_experiment_are_sorted(api: Api) -> None:
    for number in (2, 1, 3):
        command = f"from retarget import track; track.log('acc', {number})"
        api.wait(api.submit("python", "-c", command, name=f"a{number}", experiment="s")["id"])
    shown = api.ask("GET", "/api/experiments/s", sort="-metrics.acc", limit=2).json
    assert [run["job"] for run in shown["newest"]] == ["a3", "a2"]
    wrong = api.ask("GET", "/api/experiments/s", sort="acc")
    assert (wrong.status, wrong.json["field"]) == (422, "sort")
