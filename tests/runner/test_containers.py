"""The user's process in a container, on real engines: what it finds, how it ends, what is left."""

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
from tests.runner.engines import Bed
from tests.runner.workshop import PATIENCE, Work, Workshop, wheel
from tests.testbeds.engines import IMAGE

IN_IMAGE = Environment(kind="image", image=IMAGE)


@pytest.fixture
def nap() -> str:
    """How long this test's processes sleep, by which they are found: others run beside it."""
    return f"1234.{uuid4().int % 10**12:012}"


def run(workshop: Workshop, *command: str, **more: Any) -> Reports:
    return workshop.run(*command, **{"environment": IN_IMAGE} | more)


def ending(heard: Reports) -> tuple[str, str, int | None]:
    last = heard.finished
    return last["outcome"], last["reason"], last["exit_code"]


def test_a_script_runs_with_the_python_of_the_image(bed: Bed, workshop: Workshop) -> None:
    heard = run(workshop, "python", "-c", "import sys; print(sys.version_info[:2], sys.prefix)")
    assert ending(heard) == ("succeeded", "", 0)
    assert heard.stream() == b"(3, 11) /usr\n"


def test_it_finds_what_it_would_without_a_container(bed: Bed, workshop: Workshop) -> None:
    code = """if True:
        import json, os, sys
        from retarget import track
        track.log({"loss": 0.5})
        open("outputs/model.txt", "w").write("weights")
        open(os.path.expanduser("~/cache"), "w").close()
        print(json.dumps([dict(os.environ), os.getcwd(), os.getuid()]))
    """
    env = {"LINES": "a\nb", "HOME_PAGE": "x", "SECRET": "s3cret", "PATH_LIKE": "/a:/b"}
    work = workshop.launch("python", "-c", code, environment=IN_IMAGE, env=env)
    heard = work.finish()
    assert ending(heard) == ("succeeded", "", 0), heard.stream()
    found, folder, user = json.loads(heard.stream())
    assert {name: found[name] for name in env} == env
    assert (folder, user) == (str(work.folder / "work"), os.getuid())
    assert "/usr/bin" in found["PATH"].split(":")
    assert os.path.dirname(sys.executable) not in found["PATH"]
    names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR RETARGET_JOB AZUREML_RUN_ID MLFLOW_RUN_ID"
    assert set(names.split()) <= set(found)
    assert heard.outputs == {"outputs/model.txt": b"weights"}
    assert [line["m"] for line in heard.tracked] == [{"loss": 0.5}]


def test_a_job_may_set_what_the_engine_itself_reads(bed: Bed, workshop: Workshop) -> None:
    env = {"DOCKER_HOST": "tcp://nowhere:1", "CONTAINERS_CONF": "/none", "HOME": "/tmp"}
    code = "import os; print([os.environ[n] for n in ('DOCKER_HOST', 'CONTAINERS_CONF', 'HOME')])"
    heard = run(workshop, "python", "-c", code, env=env)
    assert heard.stream().decode() == f"{list(env.values())}\n"


def test_exit_codes_and_signals_come_back(bed: Bed, workshop: Workshop) -> None:
    assert ending(run(workshop, "sh", "-c", "exit 3")) == (
        "failed", "the script ended with exit code 3", 3,
    )  # fmt: skip
    assert ending(run(workshop, "sh", "-c", "nope")) == (
        "failed", "the script ended with exit code 127", 127,
    )  # fmt: skip
    assert ending(run(workshop, "sh", "-c", "kill -9 $$")) == (
        "failed", "the script was killed by SIGKILL", 137,
    )  # fmt: skip


def test_a_command_that_is_not_there_is_named(bed: Bed, workshop: Workshop) -> None:
    assert ending(run(workshop, "nope")) == (
        "failed", f"there is no command 'nope' in image '{IMAGE}'", 127,
    )  # fmt: skip
    assert ending(run(workshop, "./nope")) == (
        "failed", "there is no command './nope' in the code", 127,
    )  # fmt: skip


def test_what_keeps_a_container_from_starting_is_not_said_of_its_python(
    bed: Bed, workshop: Workshop, tmp_path: Path
) -> None:
    (tmp_path / "rootfs/usr/bin").mkdir(parents=True)
    (tmp_path / "rootfs/usr/bin/python3").write_text("no program")
    (tmp_path / "rootfs/usr/bin/python3").chmod(0o755)
    packed = tmp_path / "rootfs.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(tmp_path / "rootfs", arcname=".")
    bed.ask("import", str(packed), "localhost/broken:test")
    broken = Environment(kind="image", image="localhost/broken:test")
    outcome, reason, code = ending(run(workshop, "python", "-c", "pass", environment=broken))
    assert (outcome, code) == ("failed", 125)
    assert reason.startswith("its container could not be started: ")
    assert "format error" in reason, reason
    bed.ask("rmi", "localhost/broken:test")


def test_an_image_without_python_is_told(bed: Bed, workshop: Workshop, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar", "w") as archive:
        archive.add(tmp_path, arcname=".", recursive=False)
    bed.ask("import", str(tmp_path / "empty.tar"), "localhost/empty:test")
    empty = Environment(kind="image", image="localhost/empty:test")
    told = ending(run(workshop, "python", "-c", "pass", environment=empty))
    assert told == ("failed", "there is no python in image 'localhost/empty:test'", 127)
    bed.ask("rmi", "localhost/empty:test")


def test_too_much_memory_is_told_with_the_limit(bed: Bed, workshop: Workshop) -> None:
    code = "held = []\nwhile True: held.append(bytearray(b'x' * 5_000_000))"
    heard = run(workshop, "python", "-c", code, memory=64 * 2**20)
    assert ending(heard) == ("failed", "out of memory: limit 64 MiB", 137)


def test_cpus_are_held_to(bed: Bed, workshop: Workshop) -> None:
    code = (
        "import time, os\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n"
        "print(time.process_time())"
    )
    heard = run(workshop, "python", "-c", code, cpus=0.25)
    assert float(heard.stream()) < 1.2


def test_the_log_is_complete_after_a_burst(bed: Bed, workshop: Workshop) -> None:
    code = "import sys\nfor n in range(50): sys.stdout.write(('%02d' % n) * 524_288)\nprint('end')"
    heard = run(workshop, "python", "-c", code)
    assert ending(heard) == ("succeeded", "", 0)
    assert len(heard.stream()) == 50 * 2**20 + 4
    assert heard.stream().endswith(b"49end\n")


def test_a_cancel_is_heard_by_every_process_once_and_their_words_are_kept(
    bed: Bed, workshop: Workshop
) -> None:
    script = (
        "trap 'echo parent told; wait; exit 0' TERM\n"
        "sh -c 'trap \"echo child told; exit 0\" TERM; echo ready; while :; do sleep 0.1; done' &\n"
        "while :; do sleep 0.1; done"
    )
    work = start(workshop, "sh", "-c", script, grace=20.0)
    work.hear("output", b"ready")
    began = time.monotonic()
    work.cancel()
    heard = work.finish()
    assert ending(heard)[0] == "canceled"
    words = [line for line in heard.stream().splitlines() if line != b"Terminated"]  # a `sleep`
    assert sorted(words) == [b"child told", b"parent told", b"ready"]
    assert time.monotonic() - began < 10


def test_what_does_not_heed_a_cancel_is_killed(bed: Bed, workshop: Workshop, nap: str) -> None:
    script = f"trap '' TERM; (setsid sleep {nap} &); echo ready; while :; do sleep 0.1; done"
    work = start(workshop, "sh", "-c", script, grace=0.5)
    work.hear("output", b"ready")
    work.cancel()
    assert ending(work.finish())[0] == "canceled"
    assert not find(nap)


def test_it_runs_out_of_time(bed: Bed, workshop: Workshop, nap: str) -> None:
    heard = run(workshop, "sleep", nap, timeout=0.5)
    assert ending(heard) == ("failed", "timed out: it ran longer than 0.5 s", 124)
    assert not find(nap)


def test_nothing_is_left_when_the_script_leaves_daemons(
    bed: Bed, workshop: Workshop, nap: str
) -> None:
    heard = run(workshop, "sh", "-c", f"(env -i setsid sleep {nap} &); echo ended")
    assert ending(heard) == ("succeeded", "", 0)
    assert not find(nap)


def test_a_runner_that_takes_over_ends_what_is_left(bed: Bed, workshop: Workshop, nap: str) -> None:
    script = f"echo ready; (env -i setsid sleep {nap} &) ; sleep {nap}"
    work = start(workshop, "sh", "-c", script)
    work.hear("output", b"ready")
    work.kill()
    heard = work.start().finish()
    assert ending(heard)[:2] == ("lost", "its runner was killed while the script ran")
    assert not find(nap)


def test_ranks_have_a_container_each_and_find_each_other(bed: Bed, workshop: Workshop) -> None:
    code = """if True:
        import os, socket, time
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if os.environ["RANK"] == "0":
            with socket.create_server(place) as door:
                print("heard", door.accept()[0].recv(10).decode())
        else:
            for _ in range(100):
                try:
                    socket.create_connection(place).sendall(b"rank 1"); break
                except OSError:
                    time.sleep(0.1)
    """
    heard = run(workshop, "python", "-c", code, processes_per_node=2)
    assert ending(heard) == ("succeeded", "", 0), heard.streams
    assert heard.stream("rank-0") == b"heard rank 1\n"


def test_an_image_that_cannot_be_had_is_named(bed: Bed, workshop: Workshop) -> None:
    image = "registry.invalid/no/such:1"
    heard = run(workshop, "true", environment=Environment(kind="image", image=image))
    outcome, reason, _ = ending(heard)
    assert outcome == "failed"
    assert reason.startswith(f"environment: image '{image}' cannot be had: ")
    assert b"pulling" in heard.stream("prepare")


def test_a_dockerfile_is_built_once_a_machine(bed: Bed, workshop: Workshop) -> None:
    environment = built_from(workshop, f"FROM {IMAGE}\nCOPY note.txt /note.txt\nRUN echo made\n")
    first = run(workshop, "cat", "/note.txt", environment=environment)
    assert ending(first) == ("succeeded", "", 0), first.stream("prepare")
    assert first.stream() == b"a note"
    assert b"made" in first.stream("prepare")
    second = run(workshop, "cat", "/note.txt", environment=environment)
    assert (ending(second)[0], second.stream("prepare")) == ("succeeded", b"")
    assert bed.ask("image", "inspect", f"retarget-{environment.digest}")


def test_an_image_that_somebody_removed_is_built_again(bed: Bed, workshop: Workshop) -> None:
    environment = built_from(workshop, f"FROM {IMAGE}\nCOPY note.txt /again.txt\n")
    assert ending(run(workshop, "true", environment=environment))[0] == "succeeded"
    bed.ask("rmi", "-f", f"retarget-{environment.digest}")
    assert ending(run(workshop, "cat", "/again.txt", environment=environment))[0] == "succeeded"


def test_a_dockerfile_that_fails_says_where(bed: Bed, workshop: Workshop) -> None:
    environment = built_from(workshop, f"FROM {IMAGE}\nRUN echo so far && exit 7\n")
    heard = run(workshop, "true", environment=environment)
    outcome, reason, _ = ending(heard)
    assert outcome == "failed"
    assert reason.startswith("environment: Dockerfile cannot be built: ")
    assert "7" in reason
    assert b"so far" in heard.stream("prepare")


def test_a_build_can_be_canceled(bed: Bed, workshop: Workshop, nap: str) -> None:
    environment = built_from(workshop, f"FROM {IMAGE}\nRUN echo begun && sleep {nap}\n")
    work = start(workshop, "true", environment=environment)
    work.hear("prepare", b"begun")
    work.cancel()
    assert ending(work.finish())[0] == "canceled"
    gone(bed, nap)
    assert workshop.environments() == []


def test_what_a_killed_build_left_goes_with_the_next(
    bed: Bed, workshop: Workshop, nap: str
) -> None:
    environment = built_from(workshop, f"FROM {IMAGE}\nRUN echo begun && sleep {nap}\n")
    first = start(workshop, "true", environment=environment)
    first.hear("prepare", b"begun")
    first.kill()
    for pid in find(nap) + find(f"retarget-{environment.digest}"):
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    second = start(workshop, "true", environment=environment)
    second.hear("prepare", b"begun")
    second.cancel()
    assert ending(second.finish())[0] == "canceled"
    gone(bed, nap)


def test_packages_are_put_on_top_of_an_image(bed: Bed, workshop: Workshop, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    lines = ("--no-index", f"--find-links {tmp_path}/wheels", "tinypkg==1.0")
    environment = Environment(kind="image", image=IMAGE, pip=lines)
    code = "import tinypkg, sys; print(tinypkg.VERSION, sys.prefix)"
    first = run(workshop, "python", "-c", code, environment=environment)
    assert ending(first) == ("succeeded", "", 0), first.stream("prepare")
    assert first.stream() == b"1.0 /usr\n"
    assert run(workshop, "python", "-c", code, environment=environment).stream("prepare") == b""


def test_packages_that_do_not_exist_are_named(bed: Bed, workshop: Workshop, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    lines = ("--no-index", f"--find-links {tmp_path}/wheels", "nosuchpkg")
    environment = Environment(kind="image", image=IMAGE, pip=lines)
    outcome, reason, _ = ending(run(workshop, "true", environment=environment))
    assert (outcome, "nosuchpkg" in reason) == ("failed", True), reason


def test_another_python_than_the_image_has_is_refused(bed: Bed, workshop: Workshop) -> None:
    environment = Environment(kind="image", image=IMAGE, pip=("tinypkg",), python="3.7")
    _, reason, _ = ending(run(workshop, "true", environment=environment))
    assert reason.startswith("environment: it asks for Python 3.7, and its image has 3.11.")


def test_without_an_engine_it_says_what_to_do(workshop: Workshop) -> None:
    workshop.node["engine"] = "no-such-engine"
    outcome, reason, _ = ending(run(workshop, "true"))
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
def test_gpus_are_asked_for_as_each_engine_wants_it(engine: Engine, gpus: list[str]) -> None:
    command = run_command(engine, "n", "k", {"cpus": 2.0, "memory": None}, ["0", "3"])
    assert command[-len(gpus) :] == gpus


def test_a_rootless_podman_stays_this_user_and_gets_no_limits_it_cannot_hold() -> None:
    engine = Engine("podman", "podman", "4.3.1", rootless=True, limits=False)
    command = run_command(engine, "n", "k", {"cpus": 2.0, "memory": 2**30}, [])
    assert "keep-id" in command or command[command.index("--user") + 1] == "0:0"
    assert not {"--cpus", "--memory"} & set(command)


def test_a_path_with_a_comma_can_be_mounted() -> None:
    assert mount("/a,b") == ["--mount", 'type=bind,"source=/a,b","target=/a,b",readonly']


def start(workshop: Workshop, *command: str, **more: Any) -> Work:
    return workshop.launch(*command, **{"environment": IN_IMAGE} | more).start()


def built_from(workshop: Workshop, dockerfile: str) -> Environment:
    """Return an environment whose context this machine has, as if it had been sent before."""
    files = {"Dockerfile": dockerfile.encode(), "note.txt": b"a note"}
    entries = [Entry(path, len(text), digest_bytes(text)) for path, text in files.items()]
    manifest = Manifest(tuple(entries)).encode()
    for content in (manifest, *files.values()):
        digest = digest_bytes(content)
        place = workshop.root / "blobs" / digest[:2] / digest
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    context = digest_bytes(manifest)
    return Environment(kind="image", dockerfile="Dockerfile", context=context)


def gone(bed: Bed, words: str) -> None:
    """Wait until no process has such words, and no container is there."""
    deadline = time.monotonic() + PATIENCE
    while find(words) or bed.containers():
        assert time.monotonic() < deadline, (find(words), bed.containers())
        time.sleep(0.1)


def find(words: str) -> list[str]:
    """Name the processes of this machine that have such words in their command."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and words.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found
