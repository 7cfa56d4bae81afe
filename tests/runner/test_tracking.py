"""What a script gets for tracking, and how the data it logs reaches the server."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from retarget.core.environments import Environment
from retarget.testing import Receiver
from tests.runner.harness import (
    PATIENCE,
    HarnessLaunch,
    RunnerHarness,
    find_python,
    packages,
    wheel,
)

_LOG = "from retarget import track; track.log(loss=0.5, step=3); track.param(lr=0.1)"
_SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture(params=["3.8", "3.13"])
def bare(request: pytest.FixtureRequest) -> Environment:
    """An interpreter without Retarget."""
    return Environment(kind="user", python=find_python(request.param))


def test_a_script_logs_without_retarget_in_its_environment(
    harness: RunnerHarness, bare: Environment
) -> None:
    reports = harness.run("python", "-c", _LOG, environment=bare)
    assert reports.finished["outcome"] == "succeeded", reports.stream()
    first, second = reports.track_records
    assert (first["m"], first["s"], second) == ({"loss": 0.5}, 3, {"p": {"lr": "0.1"}})


def test_importing_the_rest_of_retarget_raises_a_clear_error(
    harness: RunnerHarness, bare: Environment
) -> None:
    for code in ("from retarget import Workspace", "import retarget; retarget.Workspace"):
        reports = harness.run("python", "-c", code, environment=bare)
        assert reports.finished["outcome"] == "failed"
        assert b"Retarget is not installed in this job's environment" in reports.stream()


def test_an_installed_retarget_is_the_one_a_script_imports(
    harness: RunnerHarness, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels", "retarget", "9.9")
    code = "import retarget; print(retarget.VERSION, retarget.__file__)"
    environment = packages(tmp_path / "wheels", "retarget")
    log = harness.run("python", "-c", code, environment=environment).stream().decode()
    assert log.startswith("9.9 ")
    assert "site-packages/retarget.py" in log


def test_all_of_retarget_can_be_used_if_it_is_installed(harness: RunnerHarness) -> None:
    code = (
        "import retarget, importlib.util; from retarget import track, Workspace\n"
        "import retarget.sdk.jobs\n"
        "print(retarget.__version__, retarget.__spec__.origin == retarget.__file__)\n"
        "track.log(a=1)"
    )
    reports = harness.run("python", "-c", code)
    assert reports.stream().split()[1] == b"True"
    assert [line["m"] for line in reports.track_records] == [{"a": 1.0}]


def test_a_folder_named_retarget_changes_nothing(
    harness: RunnerHarness, receiver: Receiver, bare: Environment
) -> None:
    files = {"retarget/notes.txt": b"", "lib/retarget/x.txt": b"", "a.py": _LOG.encode()}
    reports = harness.run(
        "python",
        "a.py",
        snapshot=receiver.add_snapshot(files),
        variables={"PYTHONPATH": "lib"},
        environment=bare,
    )
    assert reports.finished["outcome"] == "succeeded", reports.stream()
    assert len(reports.track_records) == 2


def test_a_stand_in_ignores_the_stand_in_of_another_version(
    harness: RunnerHarness, bare: Environment
) -> None:
    harness.run("true")
    (current,) = (harness.root / "track").iterdir()
    older = current.with_name("runner-older")
    subprocess.run(["cp", "-r", current, older], check=True)
    reports = harness.run(
        "python", "-c", _LOG, variables={"PYTHONPATH": str(older)}, environment=bare
    )
    assert reports.finished["outcome"] == "succeeded", reports.stream()


def test_it_is_unpacked_once_even_after_a_runner_was_killed_at_that(
    harness: RunnerHarness, bare: Environment
) -> None:
    name = harness.zipapp.name.partition(".")[0]
    (harness.root / "track" / f"{name}.part" / "retarget").mkdir(parents=True)
    launches = [harness.launch("python", "-c", _LOG, environment=bare).start() for _ in range(4)]
    assert [len(launch.finish().track_records) for launch in launches] == [2, 2, 2, 2]
    assert os.listdir(harness.root / "track") == [name]


def test_a_cache_that_is_not_writable_does_not_fail_the_job(harness: RunnerHarness) -> None:
    (harness.root / "track").write_text("a file where the folder should be")
    reports = harness.run("python", "-c", "print('ran')")
    assert reports.stream() == b"ran\n"
    assert b"`from retarget import track` may not work" in reports.stream("prepare")


def test_mlflow_clients_find_the_server_and_the_run_of_the_job(harness: RunnerHarness) -> None:
    reports = harness.run("python", "-c", _SHOW, job="job7", experiment_id="5")
    environ = json.loads(reports.stream())
    receiver = harness.receiver
    relay = environ.pop("MLFLOW_TRACKING_URI")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", relay)
    assert relay != receiver.url
    assert {name: value for name, value in environ.items() if name.startswith("MLFLOW_")} == {
        "MLFLOW_TRACKING_TOKEN": receiver.script_token,
        "MLFLOW_RUN_ID": "job7",
        "MLFLOW_EXPERIMENT_ID": "5",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }


def test_the_users_own_mlflow_server_gets_neither_token_nor_run(harness: RunnerHarness) -> None:
    variables = {"MLFLOW_TRACKING_URI": "https://mlflow.example"}
    reports = harness.run("python", "-c", _SHOW, variables=variables, experiment_id="5")
    environ = json.loads(reports.stream())
    assert {name: value for name, value in environ.items() if name.startswith("MLFLOW_")} == (
        variables
    )


def test_variables_of_the_user_stay(harness: RunnerHarness) -> None:
    variables = {"MLFLOW_RUN_ID": "mine", "MLFLOW_EXPERIMENT_NAME": "mine", "PYTHONPATH": "a:b"}
    reports = harness.run("python", "-c", _SHOW, variables=variables, experiment_id="5")
    environ = json.loads(reports.stream())
    assert environ["MLFLOW_RUN_ID"] == environ["MLFLOW_EXPERIMENT_NAME"] == "mine"
    assert "MLFLOW_EXPERIMENT_ID" not in environ
    assert environ["PYTHONPATH"].startswith("a:b:/")


def test_the_server_is_reached_without_the_proxy(harness: RunnerHarness) -> None:
    proxies = {"http_proxy": "http://proxy.example:3128", "NO_PROXY": "intranet"}
    environ = json.loads(harness.run("python", "-c", _SHOW, variables=proxies).stream())
    assert environ["no_proxy"] == environ["NO_PROXY"] == "intranet,127.0.0.1"


def test_every_rank_and_child_can_log(harness: RunnerHarness) -> None:
    code = (
        "import os; from retarget import track\n"
        "rank = int(os.environ['RANK'])\n"
        "track.log(rank=rank, step=rank)\n"
        "if os.fork() == 0: track.log(child=rank, step=rank)\n"
        "else: os.wait()"
    )
    reports = harness.run("python", "-c", code, processes_per_node=3)
    values = [line["m"] for line in reports.track_records]
    assert len(reports.tracks) == 6
    assert sorted(value["rank"] for value in values if "rank" in value) == [0, 1, 2]
    assert sorted(value["child"] for value in values if "child" in value) == [0, 1, 2]


def test_logged_data_arrives_while_the_script_runs(harness: RunnerHarness) -> None:
    launch = harness.launch("python", "-c", f"{_LOG}\nimport time; time.sleep(60)").start()
    _wait_for_lines(launch, 2)
    assert "exited" not in launch.reports.kinds
    launch.cancel()
    launch.finish()


def test_nothing_is_lost_without_a_server(harness: RunnerHarness) -> None:
    code = (
        "import os, time; from retarget import track\n"
        "for n in range(20000):\n"
        "    track.log(a=n, step=n)\n"
        "    if n == 100:\n"
        "        print('BEGUN', flush=True)\n"
        "        while not os.path.exists('logs/go'): time.sleep(0.02)"
    )
    launch = harness.launch("python", "-c", code).start()
    launch.wait_for_output("output", b"BEGUN")
    _wait_for_lines(launch, 100)
    harness.receiver.stop()
    (launch.folder / "work/logs/go").touch()
    _wait_for_event(launch, "exited")
    harness.receiver.start()
    assert [line["s"] for line in launch.finish().track_records] == list(range(20000))


def test_a_runner_that_takes_over_sends_the_rest(harness: RunnerHarness) -> None:
    harness.receiver.refused.add("track")
    code = "from retarget import track\nfor n in range(9000): track.log(a=n, step=n)\n"
    launch = harness.launch("python", "-c", code).start()
    _wait_for_event(launch, "exited")
    launch.kill()
    harness.receiver.refused.clear()
    assert [line["s"] for line in launch.start().finish().track_records] == list(range(9000))


def test_the_job_ends_after_all_logged_data_has_arrived(harness: RunnerHarness) -> None:
    harness.receiver.refused.add("track")
    launch = harness.launch("python", "-c", _LOG).start()
    _wait_for_event(launch, "exited")
    assert "finished" not in launch.reports.kinds
    harness.receiver.refused.clear()
    assert len(launch.finish().track_records) == 2
    requests = harness.receiver.requests
    assert requests[-1] == "POST events"
    assert any(request.startswith("PUT track/") for request in requests)


def test_an_incomplete_line_is_skipped_and_that_is_logged(harness: RunnerHarness) -> None:
    code = (
        "import os; from retarget import track\n"
        "track.log(a=1, step=1)\n"
        "folder = os.environ['RETARGET_TRACK']\n"
        "(name,) = os.listdir(folder)\n"
        "open(os.path.join(folder, name), 'a').write('{\"m\": {\"a\": 2')"
    )
    reports = harness.run("python", "-c", code)
    assert [line["s"] for line in reports.track_records] == [1]
    log = reports.stream("prepare").decode()
    assert log.count("its incomplete line is skipped") == 1


def test_other_files_in_the_track_folder_are_skipped_and_that_is_logged(
    harness: RunnerHarness,
) -> None:
    code = (
        "import os; from retarget import track; track.log(a=1, step=0)\n"
        "folder = os.environ['RETARGET_TRACK']\n"
        "os.mkdir(folder + '/a-folder.jsonl')\n"
        "os.symlink('/nowhere', folder + '/a-link.jsonl')\n"
        "os.mkfifo(folder + '/a-pipe.jsonl')\n"
        "open(os.fsencode(folder) + b'/a-\\xff.jsonl', 'w').write('{}\\n')"
    )
    reports = harness.run("python", "-c", code)
    assert reports.kinds[-1] == "finished"
    assert [line["m"] for line in reports.track_records] == [{"a": 1.0}]
    log = reports.stream("prepare").decode()
    for name in ("a-folder", "a-link", "a-pipe", "a-\\udcff"):
        assert f"retarget: track: '{name}.jsonl' is skipped" in log


def test_lines_longer_than_a_request_arrive_complete(harness: RunnerHarness) -> None:
    code = (
        "from retarget import track\n"
        "track.log({f'{n:06}' + 'x' * 240: n for n in range(3000)}, step=1); track.log(a=1)"
    )
    reports = harness.run("python", "-c", code)
    assert [len(line["m"]) for line in reports.track_records] == [1000, 1000, 1000, 1]


def test_artifacts_arrive_while_the_script_runs_and_again_when_replaced(
    harness: RunnerHarness,
) -> None:
    code = (
        "import os, time; from retarget import track\n"
        "open('model', 'w').write('first'); track.artifact('model', 'best/model')\n"
        "while not os.path.exists('logs/go'): time.sleep(0.02)\n"
        "open('model', 'w').write('second'); track.artifact('model', 'best/model')"
    )
    launch = harness.launch("python", "-c", code).start()
    harness.receiver.wait(
        launch.key,
        lambda reports: reports.outputs.get("artifacts/best/model") == b"first",
        timeout=PATIENCE,
    )
    (launch.folder / "work/logs/go").touch()
    reports = launch.finish()
    assert reports.outputs["artifacts/best/model"] == b"second"
    assert reports.finished["removed_outputs"] == []


def test_a_launch_without_a_server_still_logs(harness: RunnerHarness) -> None:
    launch = harness.launch("python", "-c", f"{_LOG}\n{_SHOW}")
    content = json.loads((launch.folder / "launch.json").read_text())
    content["contact"]["url"] = ""
    (launch.folder / "launch.json").write_text(json.dumps(content))
    launch.finish()
    (file,) = (launch.folder / "track").glob("*.jsonl")
    assert file.read_text().count("\n") == 2
    environ = json.loads((launch.folder / "streams/output").read_text())
    assert not [name for name in environ if name.startswith("MLFLOW_")]


def _wait_for_lines(launch: HarnessLaunch, count: int) -> None:
    launch.harness.receiver.wait(
        launch.key, lambda reports: len(reports.track_records) >= count, timeout=PATIENCE
    )


def _wait_for_event(launch: HarnessLaunch, kind: str) -> None:
    journal, deadline = launch.folder / "events.jsonl", time.monotonic() + PATIENCE
    while not journal.exists() or f'"{kind}"' not in journal.read_text():
        assert time.monotonic() < deadline, f"no event {kind!r} was written"
        time.sleep(0.02)
