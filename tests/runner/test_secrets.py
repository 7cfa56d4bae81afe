"""Secrets on the node: fetched before the start, masked in everything that is sent."""

import json
import os
import time
from pathlib import Path

import pytest

from retarget.core.environments import Environment
from retarget.testing import Receiver
from tests.runner.engines import ContainerEngine
from tests.runner.harness import PATIENCE, HarnessLaunch, RunnerHarness
from tests.testbeds.engines import IMAGE

VALUE = "s3cret-välue'\"$HOME"
MASKED = b"*" * len(VALUE.encode())
PRINT = "import os; print('it is', os.environ['TOKEN'], flush=True)"


@pytest.fixture(autouse=True)
def token(receiver: Receiver) -> None:
    receiver.secrets = {"TOKEN": VALUE}


def files_with(value: str, folder: Path) -> list[str]:
    """Return the files below a folder that contain a value."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if value.encode() in path.read_bytes()]


def launch(harness: RunnerHarness, *command: str) -> HarnessLaunch:
    return harness.launch(*command, secrets=("TOKEN",))


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():  # pyright: ignore[reportCallIssue]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_script_gets_a_secret_and_its_log_is_masked(harness: RunnerHarness) -> None:
    started = launch(harness, "python", "-c", PRINT)
    reports = started.finish()
    assert reports.finished["outcome"] == "succeeded", reports.stream()
    assert reports.stream() == b"it is " + MASKED + b"\n"
    assert files_with(VALUE, harness.root) == []


def test_a_secret_is_masked_across_sends(harness: RunnerHarness) -> None:
    code = """if True:
        import os, sys, time
        for part in (b"a ", *(bytes([code]) for code in os.environb[b"TOKEN"]), b" z", b"s3c"):
            os.write(1, part)
            time.sleep(0.07)
    """
    reports = launch(harness, "python", "-c", code).finish()
    assert reports.stream() == b"a " + MASKED + b" zs3c"


def test_ordinary_output_is_not_held_back(harness: RunnerHarness, receiver: Receiver) -> None:
    code = "import time; print('ready', end='', flush=True); time.sleep(60)"
    started = launch(harness, "python", "-c", code).start()
    receiver.wait(started.key, lambda reports: reports.stream() == b"ready", timeout=PATIENCE)
    started.cancel()
    started.finish()


def test_logs_tracking_and_the_reason_are_masked_and_outputs_are_not(
    harness: RunnerHarness,
) -> None:
    code = """if True:
        import os, sys
        from retarget import track
        value = os.environ["TOKEN"]
        track.tag("where", f"at {value}")
        track.param(name=value)
        open("logs/a.log", "w").write(value)
        open("outputs/a.txt", "w").write(value)
        sys.exit(value)
    """
    started = launch(harness, "python", "-c", code)
    reports = started.finish()
    assert reports.finished["exit_code"] == 1
    assert reports.stream() == MASKED + b"\n"
    assert reports.stream("logs/a.log") == reports.outputs["logs/a.log"] == MASKED
    assert reports.outputs["outputs/a.txt"] == VALUE.encode()
    mask = MASKED.decode()
    assert reports.track_records == [{"g": {"where": f"at {mask}"}}, {"p": {"name": mask}}]


def test_an_executed_notebook_is_masked_like_the_log(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    receiver.secrets = {"TOKEN": "s3cret-value"}
    program = b"""import json, os
text = json.dumps({"cells": [{"outputs": [{"text": ["it is " + os.environ["TOKEN"]]}]}]})
for name in ("study", "study-rank-0", "other"):
    open(f"outputs/{name}.ipynb", "w").write(text)
"""
    snapshot = receiver.add_snapshot({"retarget_notebook.py": program})
    command = ("python", "-m", "retarget_notebook", "analysis/study.ipynb")
    kept = harness.launch(*command, snapshot=snapshot, secrets=("TOKEN",)).finish().outputs
    assert b"s3cret-value" in kept["outputs/other.ipynb"]
    for name in ("study", "study-rank-0"):
        masked = json.loads(kept[f"outputs/{name}.ipynb"])
        assert masked["cells"][0]["outputs"][0]["text"] == ["it is " + "*" * len("s3cret-value")]


def test_names_of_files_and_metrics_are_masked_and_stay_valid(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    receiver.secrets = {"TOKEN": "s3cret-value"}
    code = """if True:
        import os
        from retarget import track
        value = os.environ["TOKEN"]
        for path in (f"outputs/{value}/a", f"logs/{value}.log", f"{value}.txt"):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            open(path, "w").close()
        open(f"logs/{value}.log", "w").write("line")
        track.log({f"loss/{value}": 0.5}, step=1)
        track.table(value, {"a": [1]})
    """
    started = harness.launch("python", "-c", code, secrets=("TOKEN",), keep=("all",))
    reports = started.finish()
    masked = "_" * len("s3cret-value")
    assert reports.outputs.keys() == {
        f"outputs/{masked}/a", f"logs/{masked}.log", f"workdir/{masked}.txt",
        f"artifacts/{masked}.json",
    }  # fmt: skip
    assert reports.stream(f"logs/{masked}.log") == b"line"
    metrics, table = reports.track_records
    assert metrics["m"] == {f"loss/{masked}": 0.5}
    assert table["a"]["path"] == f"{masked}.json"
    assert "s3cret" not in f"{reports.events}"
    assert files_with("s3cret-value", started.folder) == []


def test_a_secret_that_is_the_name_of_a_folder_hides_no_outputs(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    receiver.secrets = {"TOKEN": "outputs"}
    reports = launch(harness, "sh", "-c", "echo x > outputs/x").finish()
    assert reports.outputs == {"outputs/x": b"x\n"}


def test_a_deleted_secret_fails_the_job_before_it_starts(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    receiver.secrets = None
    reports = launch(harness, "python", "-c", PRINT).finish()
    assert reports.finished["outcome"] == "failed"
    assert "starting" not in reports.kinds


def test_a_runner_that_takes_over_masks_what_the_first_one_left(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    receiver.refused = {"streams"}
    started = launch(harness, "python", "-c", f"{PRINT}; import time; time.sleep(60)").start()
    output = started.folder / "streams/output"
    wait_for(lambda: output.exists() and output.read_bytes().endswith(b"\n"))
    assert output.stat().st_mode & 0o777 == 0o600
    started.kill()
    receiver.refused = set()
    reports = started.start().finish()
    assert reports.finished["outcome"] == "lost"
    assert reports.stream() == b"it is " + MASKED + b"\n"
    assert files_with(VALUE, harness.root) == []


def test_nothing_unmasked_waits_for_a_server_that_is_away(
    harness: RunnerHarness, receiver: Receiver
) -> None:
    harness.node["linger"] = 1
    code = f"{PRINT}; from retarget import track; track.tag('a', os.environ['TOKEN'])"
    gate = harness.root / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    started = launch(harness, "python", "-c", wait + code).start()
    receiver.wait(started.key, lambda reports: "started" in reports.kinds, timeout=PATIENCE)
    receiver.stop()
    gate.touch()
    assert started.runner is not None
    started.runner.wait(PATIENCE)  # it has given up
    assert (started.folder / "streams/output").read_bytes() == b"it is " + MASKED + b"\n"
    assert files_with(VALUE, started.folder) == []
    receiver.start()
    reports = started.start().finish()
    assert reports.stream() == b"it is " + MASKED + b"\n"
    assert [record["g"] for record in reports.track_records] == [{"a": MASKED.decode()}]


def test_the_folder_keeps_nothing_of_the_script(harness: RunnerHarness) -> None:
    started = launch(harness, "python", "-c", PRINT)
    started.finish()
    assert not {"streams", "track", "work"} & set(os.listdir(started.folder))


def test_a_container_gets_a_secret_that_its_engine_does_not_show(
    engine: ContainerEngine, harness: RunnerHarness, receiver: Receiver
) -> None:
    receiver.secrets = {"TOKEN": VALUE, "GOOGLE_API_KEY": "first line\nsecond line"}
    code = f"{PRINT}; print(os.environ['GOOGLE_API_KEY'].count('line'), flush=True)"
    nap = "; import time; time.sleep(60)"
    started = harness.launch(
        "python",
        "-c",
        code + nap,
        secrets=tuple(receiver.secrets),
        environment=Environment(kind="image", image=IMAGE),
    ).start()
    expected = b"it is " + MASKED + b"\n2\n"
    receiver.wait(started.key, lambda reports: reports.stream() == expected, timeout=PATIENCE)
    name = f"retarget-{started.key}-0"
    shown = engine.ask("inspect", name)
    assert json.loads(shown)[0]["Name"].strip("/") == name
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    for value in ("s3cret", "second line"):
        assert value not in shown
        assert not [line for line in commands if value.encode() in line and b"pytest" not in line]
    folder = Path(f"/dev/shm/{name}")
    assert [path.read_bytes() for path in folder.iterdir()] == [b""]
    started.cancel()
    started.finish()
    assert not folder.exists()
