"""The user's process in a container, on real engines."""

import json
import os
import signal
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retarget.core.environments import Environment
from retarget.core.snapshots import Entry, Manifest, digest_bytes
from retarget.runner.containers import run_command
from retarget.runner.engine import Engine, mount
from retarget.testing import Reports
from tests.runner.engines import ContainerEngine
from tests.runner.harness import PATIENCE, HarnessLaunch, RunnerHarness, wheel
from tests.testbeds.engines import IMAGE

IN_IMAGE = Environment(kind="image", image=IMAGE)


@pytest.fixture
def nap() -> str:
    """A unique duration for `sleep`, by which the processes of this test are found."""
    return f"1234.{uuid4().int % 10**12:012}"


def run(harness: RunnerHarness, *command: str, **more: Any) -> Reports:
    return harness.run(*command, **{"environment": IN_IMAGE} | more)


def ending(reports: Reports) -> tuple[str, str, int | None]:
    last = reports.finished
    return last["outcome"], last["reason"], last["exit_code"]


def test_a_script_runs_with_the_python_of_the_image(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    reports = run(harness, "python", "-c", "import sys; print(sys.version_info[:2], sys.prefix)")
    assert ending(reports) == ("succeeded", "", 0)
    assert reports.stream() == b"(3, 11) /usr\n"


def test_a_script_has_the_same_surroundings_as_without_a_container(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    code = """if True:
        import json, os, sys
        from retarget import track
        track.log({"loss": 0.5})
        open("outputs/model.txt", "w").write("weights")
        open(os.path.expanduser("~/cache"), "w").close()
        print(json.dumps([dict(os.environ), os.getcwd(), os.getuid()]))
    """
    variables = {"LINES": "a\nb", "HOME_PAGE": "x", "SECRET": "s3cret", "PATH_LIKE": "/a:/b"}
    launch = harness.launch("python", "-c", code, environment=IN_IMAGE, variables=variables)
    reports = launch.finish()
    assert ending(reports) == ("succeeded", "", 0), reports.stream()
    environ, folder, user = json.loads(reports.stream())
    assert {name: environ[name] for name in variables} == variables
    assert (folder, user) == (str(launch.folder / "work"), os.getuid())
    assert "/usr/bin" in environ["PATH"].split(":")
    assert os.path.dirname(sys.executable) not in environ["PATH"]
    names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR RETARGET_JOB AZUREML_RUN_ID MLFLOW_RUN_ID"
    assert set(names.split()) <= set(environ)
    assert reports.outputs == {"outputs/model.txt": b"weights"}
    assert [line["m"] for line in reports.track_records] == [{"loss": 0.5}]


def test_a_notebook_in_an_image_without_papermill_says_what_to_install(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    required = {"required_packages": ["papermill", "ipykernel"]}
    reports = run(harness, "python", "-m", "retarget_notebook", "nb.ipynb", **required)
    outcome, reason, code = ending(reports)
    assert (outcome, code) == ("failed", 1)
    assert "nb.ipynb: error: ipykernel is not installed where this notebook runs" in reason
    assert "--pip papermill --pip ipykernel" in reason


def test_a_job_may_set_what_the_engine_itself_reads(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    variables = {"DOCKER_HOST": "tcp://nowhere:1", "CONTAINERS_CONF": "/none", "HOME": "/tmp"}
    code = "import os; print([os.environ[n] for n in ('DOCKER_HOST', 'CONTAINERS_CONF', 'HOME')])"
    reports = run(harness, "python", "-c", code, variables=variables)
    assert reports.stream().decode() == f"{list(variables.values())}\n"


def test_exit_codes_and_signals_come_back(engine: ContainerEngine, harness: RunnerHarness) -> None:
    assert ending(run(harness, "sh", "-c", "exit 3")) == (
        "failed", "the script ended with exit code 3", 3,
    )  # fmt: skip
    assert ending(run(harness, "sh", "-c", "echo nope: not found >&2; exit 127")) == (
        "failed", "exit code 127: nope: not found", 127,
    )  # fmt: skip
    assert ending(run(harness, "sh", "-c", "kill -9 $$")) == (
        "failed", "the script was killed by SIGKILL", 137,
    )  # fmt: skip


def test_a_missing_command_is_named(engine: ContainerEngine, harness: RunnerHarness) -> None:
    assert ending(run(harness, "nope")) == (
        "failed", f"command 'nope' not found in image '{IMAGE}'", 127,
    )  # fmt: skip
    assert ending(run(harness, "./nope")) == (
        "failed", "command './nope' not found in the code", 127,
    )  # fmt: skip


def test_a_container_that_cannot_start_is_not_blamed_on_a_missing_python(
    engine: ContainerEngine, harness: RunnerHarness, tmp_path: Path
) -> None:
    (tmp_path / "rootfs/usr/bin").mkdir(parents=True)
    (tmp_path / "rootfs/usr/bin/python3").write_text("no program")
    (tmp_path / "rootfs/usr/bin/python3").chmod(0o755)
    packed = tmp_path / "rootfs.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(tmp_path / "rootfs", arcname=".")
    engine.ask("import", str(packed), "localhost/broken:test")
    broken = Environment(kind="image", image="localhost/broken:test")
    outcome, reason, code = ending(run(harness, "python", "-c", "pass", environment=broken))
    assert (outcome, code) == ("failed", 125)
    assert reason.startswith("the container could not be started: ")
    assert "format error" in reason, reason
    engine.ask("rmi", "localhost/broken:test")


def test_an_image_without_python_is_reported(
    engine: ContainerEngine, harness: RunnerHarness, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "empty.tar", "w") as archive:
        archive.add(tmp_path, arcname=".", recursive=False)
    engine.ask("import", str(tmp_path / "empty.tar"), "localhost/empty:test")
    empty = Environment(kind="image", image="localhost/empty:test")
    result = ending(run(harness, "python", "-c", "pass", environment=empty))
    assert result == ("failed", "no Python was found in image 'localhost/empty:test'", 127)
    engine.ask("rmi", "localhost/empty:test")


def test_too_much_memory_is_reported_with_the_limit(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    code = "held = []\nwhile True: held.append(bytearray(b'x' * 5_000_000))"
    reports = run(harness, "python", "-c", code, memory=64 * 2**20)
    assert ending(reports) == ("failed", "out of memory: limit 64 MiB", 137)


def test_cpus_are_limited(engine: ContainerEngine, harness: RunnerHarness) -> None:
    code = (
        "import time, os\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n"
        "print(time.process_time())"
    )
    reports = run(harness, "python", "-c", code, cpus=0.25)
    assert float(reports.stream()) < 1.2


def test_the_log_is_complete_after_a_burst(engine: ContainerEngine, harness: RunnerHarness) -> None:
    code = "import sys\nfor n in range(50): sys.stdout.write(('%02d' % n) * 524_288)\nprint('end')"
    reports = run(harness, "python", "-c", code)
    assert ending(reports) == ("succeeded", "", 0)
    assert len(reports.stream()) == 50 * 2**20 + 4
    assert reports.stream().endswith(b"49end\n")


def test_a_cancel_signals_every_process_once_and_their_last_output_is_kept(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    script = (
        "trap 'echo parent TERM; wait; exit 0' TERM\n"
        "sh -c 'trap \"echo child TERM; exit 0\" TERM; echo ready; while :; do sleep 0.1; done' &\n"
        "while :; do sleep 0.1; done"
    )
    launch = start(harness, "sh", "-c", script, grace_seconds=100.0)
    launch.wait_for_output("output", b"ready")
    canceled_at = time.monotonic()
    launch.cancel()
    reports = launch.finish()
    assert ending(reports)[0] == "canceled"
    lines = [line for line in reports.stream().splitlines() if line != b"Terminated"]  # a `sleep`
    assert sorted(lines) == [b"child TERM", b"parent TERM", b"ready"]
    assert time.monotonic() - canceled_at < 90


def test_processes_that_ignore_a_cancel_are_killed(
    engine: ContainerEngine, harness: RunnerHarness, nap: str
) -> None:
    script = f"trap '' TERM; (setsid sleep {nap} &); echo ready; while :; do sleep 0.1; done"
    launch = start(harness, "sh", "-c", script, grace_seconds=0.5)
    launch.wait_for_output("output", b"ready")
    launch.cancel()
    assert ending(launch.finish())[0] == "canceled"
    assert not find(nap)


def test_a_timeout_ends_the_script(
    engine: ContainerEngine, harness: RunnerHarness, nap: str
) -> None:
    reports = run(harness, "sleep", nap, timeout=0.5)
    assert ending(reports) == ("failed", "timed out after 500 ms", 124)
    assert not find(nap)


def test_daemons_of_the_script_are_ended(
    engine: ContainerEngine, harness: RunnerHarness, nap: str
) -> None:
    reports = run(harness, "sh", "-c", f"(env -i setsid sleep {nap} &); echo ended")
    assert ending(reports) == ("succeeded", "", 0)
    assert not find(nap)


def test_a_runner_that_takes_over_ends_leftover_processes(
    engine: ContainerEngine, harness: RunnerHarness, nap: str
) -> None:
    script = f"echo ready; (env -i setsid sleep {nap} &) ; sleep {nap}"
    launch = start(harness, "sh", "-c", script)
    launch.wait_for_output("output", b"ready")
    launch.kill()
    reports = launch.start().finish()
    assert ending(reports)[:2] == ("lost", "its runner was killed while the script ran")
    assert not find(nap)


def test_every_rank_has_a_container_and_they_find_each_other(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    code = """if True:
        import os, socket, time
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if os.environ["RANK"] == "0":
            with socket.create_server(address) as server:
                print("received", server.accept()[0].recv(10).decode())
        else:
            for _ in range(100):
                try:
                    socket.create_connection(address).sendall(b"rank 1"); break
                except OSError:
                    time.sleep(0.1)
    """
    reports = run(harness, "python", "-c", code, processes_per_node=2)
    assert ending(reports) == ("succeeded", "", 0), reports.streams
    assert reports.stream("rank-0") == b"received rank 1\n"


def test_an_image_that_cannot_be_pulled_is_named(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    image = "registry.invalid/no/such:1"
    reports = run(harness, "true", environment=Environment(kind="image", image=image))
    outcome, reason, _ = ending(reports)
    assert outcome == "failed"
    assert reason.startswith(f"environment: image '{image}' cannot be pulled: ")
    assert b"pulling" in reports.stream("prepare")


def test_a_dockerfile_is_built_once_per_host(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    environment = built_from(harness, f"FROM {IMAGE}\nCOPY note.txt /note.txt\nRUN echo made\n")
    first = run(harness, "cat", "/note.txt", environment=environment)
    assert ending(first) == ("succeeded", "", 0), first.stream("prepare")
    assert first.stream() == b"a note"
    assert b"made" in first.stream("prepare")
    second = run(harness, "cat", "/note.txt", environment=environment)
    assert (ending(second)[0], second.stream("prepare")) == ("succeeded", b"")
    assert engine.ask("image", "inspect", f"retarget-{environment.digest}")


def test_an_image_that_somebody_removed_is_built_again(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    environment = built_from(harness, f"FROM {IMAGE}\nCOPY note.txt /again.txt\n")
    assert ending(run(harness, "true", environment=environment))[0] == "succeeded"
    engine.ask("rmi", "-f", f"retarget-{environment.digest}")
    assert ending(run(harness, "cat", "/again.txt", environment=environment))[0] == "succeeded"


def test_a_dockerfile_that_fails_is_reported_with_the_step(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    environment = built_from(harness, f"FROM {IMAGE}\nRUN echo so far && exit 7\n")
    reports = run(harness, "true", environment=environment)
    outcome, reason, _ = ending(reports)
    assert outcome == "failed"
    assert reason.startswith("environment: Dockerfile cannot be built: ")
    assert "7" in reason
    assert b"so far" in reports.stream("prepare")


def test_a_build_can_be_canceled(engine: ContainerEngine, harness: RunnerHarness, nap: str) -> None:
    environment = built_from(harness, f"FROM {IMAGE}\nRUN echo begun && sleep {nap}\n")
    launch = start(harness, "true", environment=environment)
    launch.wait_for_output("prepare", b"begun")
    launch.cancel()
    assert ending(launch.finish())[0] == "canceled"
    wait_until_gone(engine, nap)
    assert harness.environments() == []


def test_the_next_build_removes_the_containers_of_a_killed_one(
    engine: ContainerEngine, harness: RunnerHarness, nap: str
) -> None:
    environment = built_from(harness, f"FROM {IMAGE}\nRUN echo begun && sleep {nap}\n")
    first = start(harness, "true", environment=environment)
    first.wait_for_output("prepare", b"begun")
    first.kill()
    for pid in find(nap) + find(f"retarget-{environment.digest}"):
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    second = start(harness, "true", environment=environment)
    second.wait_for_output("prepare", b"begun")
    second.cancel()
    assert ending(second.finish())[0] == "canceled"
    wait_until_gone(engine, nap)


def test_packages_are_installed_on_top_of_an_image(
    engine: ContainerEngine, harness: RunnerHarness, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels")
    lines = ("--no-index", f"--find-links {tmp_path}/wheels", "tinypkg==1.0")
    environment = Environment(kind="image", image=IMAGE, pip=lines)
    code = "import tinypkg, sys; print(tinypkg.VERSION, sys.prefix)"
    first = run(harness, "python", "-c", code, environment=environment)
    assert ending(first) == ("succeeded", "", 0), first.stream("prepare")
    assert first.stream() == b"1.0 /usr\n"
    assert run(harness, "python", "-c", code, environment=environment).stream("prepare") == b""


def test_packages_that_do_not_exist_are_named(
    engine: ContainerEngine, harness: RunnerHarness, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels")
    lines = ("--no-index", f"--find-links {tmp_path}/wheels", "nosuchpkg")
    environment = Environment(kind="image", image=IMAGE, pip=lines)
    outcome, reason, _ = ending(run(harness, "true", environment=environment))
    assert (outcome, "nosuchpkg" in reason) == ("failed", True), reason


def test_another_python_than_the_image_has_is_refused(
    engine: ContainerEngine, harness: RunnerHarness
) -> None:
    environment = Environment(kind="image", image=IMAGE, pip=("tinypkg",), python="3.7")
    _, reason, _ = ending(run(harness, "true", environment=environment))
    assert reason.startswith("environment: Python 3.7 is required, but the image has 3.11.")


def test_without_an_engine_the_reason_says_what_to_do(harness: RunnerHarness) -> None:
    harness.node["engine"] = "no-such-engine"
    outcome, reason, _ = ending(run(harness, "true"))
    assert outcome == "failed"
    assert "needs a container engine" in reason
    assert "install Docker or Podman" in reason


_BY_CDI = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=3"]


@pytest.mark.parametrize(
    ("engine", "gpus"),
    [
        (Engine("docker", "docker", "27.0", False, True, hooks=True), ["--gpus", '"device=0,3"']),
        (Engine("docker", "docker", "28.2", False, True), _BY_CDI),
        (Engine("podman", "podman", "5.0", False, True), _BY_CDI),
    ],
)
def test_gpus_are_requested_in_the_syntax_of_the_engine(engine: Engine, gpus: list[str]) -> None:
    command = run_command(engine, "n", "k", {"cpus": 2.0, "memory": None}, ["0", "3"])
    assert command[-len(gpus) :] == gpus


def test_a_rootless_podman_runs_as_this_user_without_limits_it_cannot_enforce() -> None:
    engine = Engine("podman", "podman", "4.3.1", rootless=True, limits=False)
    command = run_command(engine, "n", "k", {"cpus": 2.0, "memory": 2**30}, [])
    assert "keep-id" in command or command[command.index("--user") + 1] == "0:0"
    assert not {"--cpus", "--memory"} & set(command)


def test_a_path_with_a_comma_can_be_mounted() -> None:
    assert mount("/a,b") == ["--mount", 'type=bind,"source=/a,b","target=/a,b",readonly']


def start(harness: RunnerHarness, *command: str, **more: Any) -> HarnessLaunch:
    return harness.launch(*command, **{"environment": IN_IMAGE} | more).start()


def built_from(harness: RunnerHarness, dockerfile: str) -> Environment:
    """Return an environment whose build context is already in the cache of this host."""
    files = {"Dockerfile": dockerfile.encode(), "note.txt": b"a note"}
    entries = [Entry(path, len(text), digest_bytes(text)) for path, text in files.items()]
    manifest = Manifest(tuple(entries)).encode()
    for content in (manifest, *files.values()):
        digest = digest_bytes(content)
        blob = harness.root / "blobs" / digest[:2] / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
    context = digest_bytes(manifest)
    return Environment(kind="image", dockerfile="Dockerfile", context=context)


def wait_until_gone(engine: ContainerEngine, text: str) -> None:
    """Wait until no process has this text in its command, and no container exists."""
    deadline = time.monotonic() + PATIENCE
    while find(text) or engine.containers():
        assert time.monotonic() < deadline, (find(text), engine.containers())
        time.sleep(0.1)


def find(text: str) -> list[str]:
    """Return the pids of the processes that have this text in their command."""
    pids: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                pids.append(entry.name)
        except OSError:
            continue
    return pids
