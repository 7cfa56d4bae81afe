"""A secret is on no disk, in no command line and in no response, on every kind of target."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.server.conftest import Api
from tests.testbeds.engines import IMAGE, Engine
from tests.testbeds.hosts import SshHost

VALUE, OWN = "s3cret-of-all-jobs", "s3cret-of-this-job"
OPTIONS = {
    "local": (),
    "in-image": ("--image", IMAGE),
    "gpu-box": ("--target", "gpu-box"),
    "box": ("--target", "box"),
}
SCRIPT = """\
import os, time
from pathlib import Path
from retarget import track

shared, own = os.environ["HF_TOKEN"], os.environ["DB_PASSWORD"]
track.tag("where", shared)
Path("logs/a.log").write_text(own)
print("shared", shared, "own", own, flush=True)
time.sleep(600)
"""


@pytest.fixture
def every_target(
    retarget: Cli, ssh_host: SshHost, docker: Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cli]:
    monkeypatch.setenv("DOCKER_HOST", docker.url)
    ssh = ("--kind", "ssh", "--key", ssh_host.key, "--user", "ml", "--address", ssh_host.address)
    box = ("--kind", "container", "--engine", docker.url, "--image", IMAGE)
    for name, options in {"gpu-box": ssh, "box": box}.items():
        attached = retarget("target", "attach", name, *options)
        assert attached.returncode == 0, attached.stderr
    yield retarget
    for name in ("gpu-box", "box"):
        assert retarget("target", "detach", name).returncode == 0


def files_with_values(*folders: Path) -> list[str]:
    """Return the files below these folders that contain one of the values."""
    command = ["grep", "-rlaF", "-D", "skip", "-e", VALUE, "-e", OWN, "--", *folders]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    return listing.stdout.splitlines()


def command_lines_with_values() -> list[bytes]:
    lines: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            lines.append(path.read_bytes())
    return [line for line in lines if VALUE.encode() in line or OWN.encode() in line]


def api_of(home: Path) -> Api:
    server_info = json.loads((home / "servers/main/server.json").read_text())
    return Api(home, server_info, (home / "token").read_text())


def all_answers(api: Api) -> str:
    """Return what the API says about the job and about secrets."""
    paths = ("", "/history", "/why", "/streams", "/logs", "/outputs", "/tracking")
    answers = [api.ask("GET", f"/api/jobs/leak{path}").content for path in paths]
    answers += [api.ask("GET", path).content for path in ("/api/jobs", "/api/secrets")]
    return b"\n".join(answers).decode()


def wait_for_log(api: Api) -> None:
    deadline = time.monotonic() + 120
    while not api.ask("GET", "/api/jobs/leak/logs").content.endswith(b"\n"):
        assert time.monotonic() < deadline, api.job("leak")
        time.sleep(0.1)


@pytest.mark.targets
@pytest.mark.parametrize("name", OPTIONS)
def test_a_secret_is_found_nowhere(
    every_target: Cli, home: Path, ssh_host: SshHost, docker: Engine, tmp_path: Path, name: str
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "leak.py").write_text(SCRIPT)
    stored = every_target("secret", "set", "HF_TOKEN", input=VALUE)
    assert stored.returncode == 0, stored.stderr
    options = ("--name", "leak", "--secret", "HF_TOKEN", "--env", "DB_PASSWORD", *OPTIONS[name])
    ran = every_target("run", "-d", *options, "leak.py", cwd=code, env={"DB_PASSWORD": OWN})
    assert ran.returncode == 0, ran.stderr
    of_host = [ssh_host.home_of("ml"), ssh_host.path("/tmp"), ssh_host.path("/dev/shm")]
    api, folders = api_of(home), (home, *of_host, docker.log.parent, Path("/dev/shm"))
    wait_for_log(api)
    assert command_lines_with_values() == []
    # while it runs, only what the script itself has written contains them
    written = [path for path in files_with_values(*folders) if not path.endswith(".jsonl")]
    assert {Path(path).name for path in written} <= {"output", "a.log"}
    assert every_target("job", "cancel", "leak").returncode == 0
    every_target("job", "wait", "leak")
    mask = "*" * len(VALUE)
    assert every_target("job", "logs", "leak").stdout == f"shared {mask} own {mask}\n"
    assert every_target("job", "logs", "leak", "--file", "a.log").stdout == mask
    assert mask in json.dumps(api.ask("GET", "/api/jobs/leak/tracking").json)
    answers = all_answers(api)
    assert VALUE not in answers
    assert OWN not in answers
    deadline = time.monotonic() + 30
    while files := files_with_values(*folders):  # the runner removes them after its last report
        assert time.monotonic() < deadline, files
        time.sleep(0.2)
