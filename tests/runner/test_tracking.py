"""What a script finds for its tracking, and how what it logs gets to the server."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from retarget.core.environments import Environment
from retarget.testing import Receiver
from tests.runner.workshop import PATIENCE, Work, Workshop, find_python, packages, wheel

_LOG = "from retarget import track; track.log(loss=0.5, step=3); track.param(lr=0.1)"
_SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture(params=["3.8", "3.13"])
def bare(request: pytest.FixtureRequest) -> Environment:
    """An interpreter that has no Retarget."""
    return Environment(kind="user", python=find_python(request.param))


def test_a_script_logs_without_retarget_in_its_environment(
    workshop: Workshop, bare: Environment
) -> None:
    heard = workshop.run("python", "-c", _LOG, environment=bare)
    assert heard.finished["outcome"] == "succeeded", heard.stream()
    first, second = heard.tracked
    assert (first["m"], first["s"], second) == ({"loss": 0.5}, 3, {"p": {"lr": "0.1"}})


def test_the_rest_of_retarget_is_said_to_be_missing(workshop: Workshop, bare: Environment) -> None:
    for code in ("from retarget import Workspace", "import retarget; retarget.Workspace"):
        heard = workshop.run("python", "-c", code, environment=bare)
        assert heard.finished["outcome"] == "failed"
        assert b"Retarget is not installed in this job's environment" in heard.stream()


def test_a_retarget_that_is_installed_is_the_one_a_script_gets(
    workshop: Workshop, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels", "retarget", "9.9")
    code = "import retarget; print(retarget.VERSION, retarget.__file__)"
    environment = packages(tmp_path / "wheels", "retarget")
    said = workshop.run("python", "-c", code, environment=environment).stream().decode()
    assert said.startswith("9.9 ")
    assert "site-packages/retarget.py" in said


def test_the_whole_of_this_retarget_can_be_used_where_it_is_installed(workshop: Workshop) -> None:
    code = (
        "import retarget, importlib.util; from retarget import track, Workspace\n"
        "import retarget.sdk.jobs\n"
        "print(retarget.__version__, retarget.__spec__.origin == retarget.__file__)\n"
        "track.log(a=1)"
    )
    heard = workshop.run("python", "-c", code)
    assert heard.stream().split()[1] == b"True"
    assert [line["m"] for line in heard.tracked] == [{"a": 1.0}]


def test_a_folder_named_retarget_in_the_way_changes_nothing(
    workshop: Workshop, receiver: Receiver, bare: Environment
) -> None:
    files = {"retarget/notes.txt": b"", "lib/retarget/x.txt": b"", "a.py": _LOG.encode()}
    heard = workshop.run(
        "python",
        "a.py",
        snapshot=receiver.snapshot(files),
        env={"PYTHONPATH": "lib"},
        environment=bare,
    )
    assert heard.finished["outcome"] == "succeeded", heard.stream()
    assert len(heard.tracked) == 2


def test_stand_ins_of_two_versions_do_not_take_each_other_for_the_real_one(
    workshop: Workshop, bare: Environment
) -> None:
    workshop.run("true")
    (present,) = (workshop.root / "track").iterdir()
    older = present.with_name("runner-older")
    subprocess.run(["cp", "-r", present, older], check=True)
    heard = workshop.run("python", "-c", _LOG, env={"PYTHONPATH": str(older)}, environment=bare)
    assert heard.finished["outcome"] == "succeeded", heard.stream()


def test_it_is_unpacked_once_and_what_a_killed_runner_left_is_taken_over(
    workshop: Workshop, bare: Environment
) -> None:
    name = workshop.zipapp.name.partition(".")[0]
    (workshop.root / "track" / f"{name}.part" / "retarget").mkdir(parents=True)
    works = [workshop.launch("python", "-c", _LOG, environment=bare).start() for _ in range(4)]
    assert [len(work.finish().tracked) for work in works] == [2, 2, 2, 2]
    assert os.listdir(workshop.root / "track") == [name]


def test_a_cache_that_cannot_be_written_to_is_no_reason_to_fail(workshop: Workshop) -> None:
    (workshop.root / "track").write_text("a file where the folder should be")
    heard = workshop.run("python", "-c", "print('ran')")
    assert heard.stream() == b"ran\n"
    assert b"`from retarget import track` may not work" in heard.stream("prepare")


def test_clients_of_mlflow_find_the_server_and_the_run_of_the_job(workshop: Workshop) -> None:
    heard = workshop.run("python", "-c", _SHOW, job="job7", experiment_id="5")
    env = json.loads(heard.stream())
    receiver = workshop.receiver
    assert {name: value for name, value in env.items() if name.startswith("MLFLOW_")} == {
        "MLFLOW_TRACKING_URI": receiver.url,
        "MLFLOW_TRACKING_TOKEN": receiver.token,
        "MLFLOW_RUN_ID": "job7",
        "MLFLOW_EXPERIMENT_ID": "5",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }


def test_a_server_of_the_users_own_gets_neither_token_nor_run(workshop: Workshop) -> None:
    mine = {"MLFLOW_TRACKING_URI": "https://mlflow.example"}
    env = json.loads(workshop.run("python", "-c", _SHOW, env=mine, experiment_id="5").stream())
    assert {name: value for name, value in env.items() if name.startswith("MLFLOW_")} == mine


def test_what_the_user_sets_stays(workshop: Workshop) -> None:
    mine = {"MLFLOW_RUN_ID": "mine", "MLFLOW_EXPERIMENT_NAME": "mine", "PYTHONPATH": "a:b"}
    env = json.loads(workshop.run("python", "-c", _SHOW, env=mine, experiment_id="5").stream())
    assert env["MLFLOW_RUN_ID"] == env["MLFLOW_EXPERIMENT_NAME"] == "mine"
    assert "MLFLOW_EXPERIMENT_ID" not in env
    assert env["PYTHONPATH"].startswith("a:b:/")


def test_the_server_is_reached_past_the_proxy_of_the_machine(workshop: Workshop) -> None:
    proxies = {"http_proxy": "http://proxy.example:3128", "NO_PROXY": "intranet"}
    env = json.loads(workshop.run("python", "-c", _SHOW, env=proxies).stream())
    assert env["no_proxy"] == env["NO_PROXY"] == "intranet,127.0.0.1"


def test_every_rank_and_child_is_heard(workshop: Workshop) -> None:
    code = (
        "import os; from retarget import track\n"
        "rank = int(os.environ['RANK'])\n"
        "track.log(rank=rank, step=rank)\n"
        "if os.fork() == 0: track.log(child=rank, step=rank)\n"
        "else: os.wait()"
    )
    heard = workshop.run("python", "-c", code, processes_per_node=3)
    values = [line["m"] for line in heard.tracked]
    assert len(heard.tracks) == 6
    assert sorted(value["rank"] for value in values if "rank" in value) == [0, 1, 2]
    assert sorted(value["child"] for value in values if "child" in value) == [0, 1, 2]


def test_what_is_logged_arrives_while_the_script_runs(workshop: Workshop) -> None:
    work = workshop.launch("python", "-c", f"{_LOG}\nimport time; time.sleep(60)").start()
    _hear(work, 2)
    assert "exited" not in work.heard.kinds
    work.cancel()
    work.finish()


def test_nothing_is_lost_while_no_server_is_there(workshop: Workshop) -> None:
    code = (
        "import os, time; from retarget import track\n"
        "for n in range(20000):\n"
        "    track.log(a=n, step=n)\n"
        "    if n == 100:\n"
        "        print('BEGUN', flush=True)\n"
        "        while not os.path.exists('logs/go'): time.sleep(0.02)"
    )
    work = workshop.launch("python", "-c", code).start()
    work.hear("output", b"BEGUN")
    _hear(work, 100)
    workshop.receiver.stop()
    (work.folder / "work/logs/go").touch()
    _wait_for_event(work, "exited")
    workshop.receiver.start()
    assert [line["s"] for line in work.finish().tracked] == list(range(20000))


def test_a_runner_that_takes_over_sends_the_rest(workshop: Workshop) -> None:
    workshop.receiver.refuses.add("track")
    code = "from retarget import track\nfor n in range(9000): track.log(a=n, step=n)\n"
    work = workshop.launch("python", "-c", code).start()
    _wait_for_event(work, "exited")
    work.kill()
    workshop.receiver.refuses.clear()
    assert [line["s"] for line in work.start().finish().tracked] == list(range(9000))


def test_the_end_comes_after_all_that_was_logged(workshop: Workshop) -> None:
    workshop.receiver.refuses.add("track")
    work = workshop.launch("python", "-c", _LOG).start()
    _wait_for_event(work, "exited")
    assert "finished" not in work.heard.kinds
    workshop.receiver.refuses.clear()
    assert len(work.finish().tracked) == 2
    requests = workshop.receiver.requests
    assert requests[-1] == "POST events"
    assert any(request.startswith("PUT track/") for request in requests)


def test_a_line_that_was_cut_is_left_out_and_that_is_said(workshop: Workshop) -> None:
    code = (
        "import os; from retarget import track\n"
        "track.log(a=1, step=1)\n"
        "folder = os.environ['RETARGET_TRACK']\n"
        "(name,) = os.listdir(folder)\n"
        "open(os.path.join(folder, name), 'a').write('{\"m\": {\"a\": 2')"
    )
    heard = workshop.run("python", "-c", code)
    assert [line["s"] for line in heard.tracked] == [1]
    said = heard.stream("prepare").decode()
    assert said.count("what a process logged last was cut short") == 1


def test_what_is_no_file_of_track_is_left_out_and_that_is_said(workshop: Workshop) -> None:
    code = (
        "import os; from retarget import track; track.log(a=1, step=0)\n"
        "folder = os.environ['RETARGET_TRACK']\n"
        "os.mkdir(folder + '/a-folder.jsonl')\n"
        "os.symlink('/nowhere', folder + '/a-link.jsonl')\n"
        "os.mkfifo(folder + '/a-pipe.jsonl')\n"
        "open(os.fsencode(folder) + b'/a-\\xff.jsonl', 'w').write('{}\\n')"
    )
    heard = workshop.run("python", "-c", code)
    assert heard.kinds[-1] == "finished"
    assert [line["m"] for line in heard.tracked] == [{"a": 1.0}]
    said = heard.stream("prepare").decode()
    for name in ("a-folder", "a-link", "a-pipe", "a-\\udcff"):
        assert f"retarget: track: '{name}.jsonl' is left out" in said


def test_lines_longer_than_a_request_come_whole(workshop: Workshop) -> None:
    code = (
        "from retarget import track\n"
        "track.log({f'{n:06}' + 'x' * 240: n for n in range(3000)}, step=1); track.log(a=1)"
    )
    heard = workshop.run("python", "-c", code)
    assert [len(line["m"]) for line in heard.tracked] == [1000, 1000, 1000, 1]


def test_artifacts_come_while_the_script_runs_and_again_when_kept_again(
    workshop: Workshop,
) -> None:
    code = (
        "import os, time; from retarget import track\n"
        "open('model', 'w').write('first'); track.artifact('model', 'best/model')\n"
        "while not os.path.exists('logs/go'): time.sleep(0.02)\n"
        "open('model', 'w').write('second'); track.artifact('model', 'best/model')"
    )
    work = workshop.launch("python", "-c", code).start()
    workshop.receiver.wait(
        work.launch.key,
        lambda heard: heard.outputs.get("artifacts/best/model") == b"first",
        patience=PATIENCE,
    )
    (work.folder / "work/logs/go").touch()
    heard = work.finish()
    assert heard.outputs["artifacts/best/model"] == b"second"
    assert heard.finished["gone"] == []


def test_a_launch_that_reports_to_nobody_still_logs(workshop: Workshop) -> None:
    work = workshop.launch("python", "-c", f"{_LOG}\n{_SHOW}")
    told = json.loads((work.folder / "launch.json").read_text())
    told["contact"]["url"] = ""
    (work.folder / "launch.json").write_text(json.dumps(told))
    work.finish()
    (file,) = (work.folder / "track").glob("*.jsonl")
    assert file.read_text().count("\n") == 2
    env = json.loads((work.folder / "streams/output").read_text())
    assert not [name for name in env if name.startswith("MLFLOW_")]


def _hear(work: Work, lines: int) -> None:
    work.workshop.receiver.wait(
        work.launch.key, lambda heard: len(heard.tracked) >= lines, patience=PATIENCE
    )


def _wait_for_event(work: Work, kind: str) -> None:
    journal, deadline = work.folder / "events.jsonl", time.monotonic() + PATIENCE
    while not journal.exists() or f'"{kind}"' not in journal.read_text():
        assert time.monotonic() < deadline, f"there is no event {kind!r}"
        time.sleep(0.02)
