"""A full disk at every stage: a clear message, a live server, and work that continues later."""

import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from retarget.runner.folder import Folder, Journal
from tests.conftest import COMMAND, Cli
from tests.server.conftest import Api, serving
from tests.trouble.root import fill, small_disk

_HOLD = "import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server whose home is a disk of 32 MB."""
    mount_point = tmp_path_factory.mktemp("disk")
    with small_disk(mount_point, "32m") as home, serving(home, RETARGET_POLL_SECONDS="0.2") as api:
        yield api
        (home / "ballast").unlink(missing_ok=True)
        for job in api.ask("GET", "/api/jobs", limit=1000).json:
            if job["ended_at"] is None:  # of a test that failed
                api.ask("POST", f"/api/jobs/{job['name']}/cancel")
                api.wait(job["name"])
        api.cleared()


@pytest.fixture(autouse=True)
def _alive(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the server works after each of these tests."""
    yield
    if "api" in request.fixturenames:
        api: Api = request.getfixturevalue("api")
        (api.home / "ballast").unlink(missing_ok=True)
        assert api.wait(api.submit("true")["name"])["state"] == "succeeded"


def test_a_server_without_disk_space_says_so_and_starts_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "home", "4m") as home:
        ballast = fill(home)
        environ = {"RETARGET_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

        def run(*words: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                [COMMAND, *words], env=environ, capture_output=True, text=True, timeout=200
            )

        refused = run("server", "start")
        assert refused.returncode == 1
        assert "No space left on device" in refused.stderr
        assert "Traceback" not in refused.stderr
        ballast.unlink()
        try:
            started = run("server", "start")
            assert started.returncode == 0, started.stderr
        finally:
            run("server", "stop")


def test_code_that_does_not_fit_is_refused_in_a_sentence_and_fits_later(
    api: Api, tmp_path: Path, retarget: Cli
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text("print('it fits')")
    (code / "large.bin").write_bytes(bytes(range(256)) * 2**14)
    own = {"RETARGET_URL": api.url, "RETARGET_TOKEN": api.token}
    ballast = fill(api.home, leave=1 << 20)
    refused = retarget("run", "job.py", cwd=code, env=own)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "error: the server's disk is full; free some space and try again\n" in refused.stderr
    assert list((api.home / "blobs").glob("*.part")) == []
    ballast.unlink()
    done = retarget("run", "job.py", cwd=code, env=own)
    assert (done.returncode, done.stdout) == (0, "it fits\n")


def test_a_submit_that_cannot_be_stored_is_refused_in_a_sentence(api: Api) -> None:
    ballast = fill(api.home)
    answers = [api.ask("POST", "/api/jobs", {"command": ["true"]}) for _ in range(40)]
    ballast.unlink()
    refused = [answer for answer in answers if answer.status != 201]
    assert refused, "the disk was not full"
    for answer in refused:
        assert answer.status == 507, answer.content
        assert "the disk of the database" in answer.json["message"]
    for answer in answers:
        if answer.status == 201:
            assert api.wait(answer.json["name"])["state"] == "succeeded"


def test_an_environment_that_does_not_fit_fails_its_job_in_a_sentence(
    api: Api, tmp_path: Path
) -> None:
    _wheel(tmp_path / "large-1.0-py3-none-any.whl", size=8 << 20)
    environment = {"kind": "system", "pip": ["--no-index", f"--find-links {tmp_path}", "large"]}
    ballast = fill(api.home, leave=4 << 20)
    job = api.wait(api.submit("true", environment=environment)["name"])
    assert job["state"] == "failed"
    assert "No space left on device" in job["reason"]
    ballast.unlink()
    job = api.wait(api.submit("true", environment=environment)["name"])
    assert job["state"] == "succeeded"


def test_code_that_cannot_be_copied_fails_its_job_in_a_sentence(
    api: Api, tmp_path: Path, retarget: Cli
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/large.bin").write_bytes(b"x" * (5 << 20))
    own = {"RETARGET_URL": api.url, "RETARGET_TOKEN": api.token}
    done = retarget("run", "--name", "first", "--", "true", cwd=tmp_path / "code", env=own)
    assert done.returncode == 0, done.stderr
    api.cleared()  # so that its folder frees no space later
    ballast = fill(api.home, leave=3 << 20)
    again = api.ask("POST", "/api/jobs/first/rerun", {}).json["name"]
    job = api.wait(again)
    assert job["state"] == "failed"
    assert "No space left on device" in job["reason"]
    ballast.unlink()


def test_a_script_that_fills_the_disk_fails_alone_and_the_server_continues(
    api: Api, tmp_path: Path
) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    fills = (
        "import os\n"
        "with open('filler', 'wb', buffering=0) as file:\n"
        "    try:\n"
        "        while True: file.write(bytes(1 << 16))\n"
        f"    except OSError: open({str(tmp_path / 'full')!r}, 'w').close()\n"
    )
    holds = [_HOLD.format(gate=str(gate)) for gate in (first, last)]
    code = f"{holds[0]}{fills}{holds[1]}os.unlink('filler')\nos._exit(7)\n"
    name = api.submit("python", "-c", code)["name"]
    api.wait(name, "running")
    first.touch()
    _until(tmp_path / "full")
    assert api.job(name)["state"] == "running"  # the server answers
    assert api.ask("POST", "/api/jobs", {"command": ["true"]}).status in (201, 507)
    last.touch()
    job = api.wait(name)
    assert (job["state"], job["exit_code"]) == ("failed", 7)


def test_the_outputs_of_a_job_on_a_full_disk_arrive_once_there_is_space(
    api: Api, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = f"print('before'){chr(10)}" + _HOLD.format(gate=str(gate))
    code += "open('outputs/model.bin', 'wb').write(bytes(3 << 20))\nprint('after')\n"
    name = api.submit("python", "-c", code)["name"]
    api.wait(name, "running")
    ballast = fill(api.home, leave=(3 << 20) + (1 << 19))  # space to write it, but not to store it
    gate.touch()
    _until_logged(api, "the server's disk is full")
    assert api.job(name)["state"] in ("running", "finalizing")
    ballast.unlink()
    assert api.wait(name)["state"] == "succeeded"
    assert api.ask("GET", f"/api/jobs/{name}/logs").content == b"before\nafter\n"
    (output,) = api.ask("GET", f"/api/jobs/{name}/outputs").json
    assert output["size"] == 3 << 20


def test_a_job_whose_end_cannot_be_stored_ends_once_there_is_space(
    api: Api, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = _HOLD.format(gate=str(gate)) + "raise SystemExit(3)"
    name = api.submit("python", "-c", code)["name"]
    api.wait(name, "running")
    ballast = fill(api.home)
    gate.touch()
    time.sleep(1.5)  # several rounds of the server and of the runner
    ballast.unlink()
    job = api.wait(name)
    assert (job["state"], job["exit_code"]) == ("failed", 3), job["reason"]


def test_a_journal_waits_for_space_and_has_no_torn_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "launch", "1m") as disk:
        journal = Journal(Folder(str(disk)))
        ballast = fill(disk, leave=4096)
        writer = Thread(target=lambda: [journal.add("said", text="x" * 3000) for _ in range(9)])
        writer.start()
        writer.join(0.5)
        assert writer.is_alive()
        ballast.unlink()
        writer.join(200)
        assert [event["seq"] for event in Journal(Folder(str(disk))).events] == list(range(1, 10))


def _until(path: Path, patience: float = 200) -> None:
    deadline = time.monotonic() + patience
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was not created"
        time.sleep(0.02)


def _until_logged(api: Api, words: str, patience: float = 200) -> None:
    deadline = time.monotonic() + patience
    logs = api.home / "targets/local/launches"
    while not any(words in log.read_text() for log in logs.glob("*/runner.log")):
        assert time.monotonic() < deadline, f"no runner logged {words!r}"
        time.sleep(0.02)


def _wheel(path: Path, *, size: int) -> None:
    info = "large-1.0.dist-info/"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("large.bin", bytes(size))
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.2\nName: large\nVersion: 1.0\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")
