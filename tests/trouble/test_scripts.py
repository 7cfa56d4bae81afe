"""Scripts that misbehave: with their log, their processes, their folder and their outputs."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from retarget.runner.folder import Folder
from retarget.runner.outputs import Collector
from tests.chaos.processes import processes
from tests.server.conftest import Api

_FULL = bool(os.environ.get("RETARGET_TEST_FULL"))  # some minutes, and 10 GB of disk
_LOG = 10_000_000_000 if _FULL else 30_000_000
_OUTPUTS = 100_000 if _FULL else 2_000
_PATIENCE = 900.0 if _FULL else 300.0

pytestmark = pytest.mark.timeout(_PATIENCE + 120)

_DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        for descriptor in range(3): os.close(descriptor)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
_OWN_GROUP = """
import os, signal, subprocess, time
subprocess.Popen(["sleep", "600"], process_group=0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
# Twenty processes that fork and exit, as do their children: never more at once, and without end.
_BOMB = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        while True:
            if os.fork(): os._exit(0)
            time.sleep(0.01)
print("burning", flush=True)
time.sleep(600)
"""


def _processes_of(api: Api, name: str) -> list[str]:
    """Return the processes that still run for a job, in whatever session."""
    mark = api.job(name)["id"]
    return [
        str(process) for process in processes() if process.environ.get("RETARGET_JOB_ID") == mark
    ]


@pytest.mark.parametrize("code", [_DAEMON, _OWN_GROUP], ids=["daemon", "own group"])
def test_processes_that_a_script_leaves_behind_are_ended(api: Api, code: str) -> None:
    name = api.submit("python", "-c", code, grace_seconds=1)["name"]
    job = api.wait(name)
    assert (job["state"], job["exit_code"]) == ("succeeded", 0)
    assert _processes_of(api, name) == []


def test_all_processes_of_a_script_that_forks_without_end_are_ended(api: Api) -> None:
    name = api.submit("python", "-c", _BOMB, grace_seconds=1)["name"]
    _until_logged(api, name, b"burning\n")
    api.ask("POST", f"/api/jobs/{name}/cancel")
    assert api.wait(name)["state"] == "canceled"
    assert _processes_of(api, name) == []


def test_a_script_that_damages_its_stop_file_is_stopped(api: Api, tmp_path: Path) -> None:
    """And the next job runs: one that cannot be stopped must not delay the others."""
    code = "import os, time; os.symlink('/nowhere/at/all', '../cancel')\n"
    code += "print('linked', flush=True); time.sleep(600)"
    name = api.submit("python", "-c", code, grace_seconds=1)["name"]
    _until_logged(api, name, b"linked\n")
    api.ask("POST", f"/api/jobs/{name}/cancel")
    other = api.submit("python", "-c", "print(1)")["name"]
    assert api.wait(other)["state"] == "succeeded"
    assert api.wait(name)["state"] == "canceled"
    assert not os.path.lexists("/nowhere")


def test_a_script_that_closes_its_output_is_watched_until_its_end(api: Api, tmp_path: Path) -> None:
    code = "import os, sys, time; print('said', flush=True); os.close(1); os.close(2)\n"
    code += "time.sleep(0.3); os._exit(5)"
    name = api.submit("python", "-c", code)["name"]
    job = api.wait(name)
    assert (job["state"], job["exit_code"]) == ("failed", 5)
    assert api.ask("GET", f"/api/jobs/{name}/logs").content == b"said\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os, shutil; shutil.rmtree(os.getcwd())",
        "import os; os.rename(os.getcwd(), '../elsewhere'); os.symlink('/etc', '../work')",
        "import os; os.mknod('outputs/x'); os.chmod('outputs/x', 0); os.chmod('outputs', 0)",
        "import os; os.chdir('outputs')\nfor _ in range(2500): os.mkdir('d'); os.chdir('d')",
    ],
    ids=["removed", "replaced", "closed", "deep"],
)
def test_a_damaged_work_folder_harms_only_its_own_job(api: Api, code: str) -> None:
    name = api.submit("python", "-c", f"print('here', flush=True)\n{code}")["name"]
    job = api.wait(name)
    assert (job["state"], job["exit_code"]) == ("succeeded", 0), job["reason"]
    assert api.ask("GET", f"/api/jobs/{name}/logs").content == b"here\n"
    for output in api.ask("GET", f"/api/jobs/{name}/outputs").json:
        assert output["path"] == "outputs/x"  # root may read unreadable files


@pytest.mark.parametrize("make", ["mkdir", "mkfifo"])
def test_a_spoiled_lock_ends_nothing_but_its_own_job(api: Api, make: str) -> None:
    code = f"import os, time; os.unlink('../runner.log'); os.{make}('../runner.log')"
    api.submit("python", "-c", f"{code}; time.sleep(3)", name=f"spoiled-{make}", cpus=0.1)
    api.wait(f"spoiled-{make}", "running", "succeeded", "failed")
    api.submit("sh", "-c", "sleep 2", name=f"other-{make}", cpus=0.1)
    assert api.wait(f"other-{make}")["state"] == "succeeded"
    assert api.wait(f"spoiled-{make}")["state"] in ("succeeded", "failed")


def test_only_the_outputs_that_exist_at_the_end_are_kept(api: Api) -> None:
    code = (
        "import os, time\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end:\n"
        "    for n in range(50):\n"
        "        open(f'outputs/{n}', 'w').write('x' * n); os.utime(f'outputs/{n}', (1, n))\n"
        "    for n in range(50): os.rename(f'outputs/{n}', f'outputs/{n}.old')\n"
        "    for n in range(50): os.remove(f'outputs/{n}.old')\n"
        "open('outputs/last', 'w').write('whole')\n"
    )
    name = api.submit("python", "-c", code)["name"]
    assert api.wait(name)["state"] == "succeeded"
    (output,) = api.ask("GET", f"/api/jobs/{name}/outputs").json
    assert (output["path"], output["size"]) == ("outputs/last", 5)


def test_links_pipes_sockets_and_devices_are_excluded_and_named(api: Api, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not yours")
    code = (
        "import os, socket\n"
        f"os.symlink({str(tmp_path / 'secret')!r}, 'outputs/escape')\n"
        "os.symlink('loop', 'outputs/loop')\n"
        "os.symlink('/dev/zero', 'outputs/zero')\n"
        "os.mkfifo('outputs/pipe')\n"
        "os.chdir('outputs'); socket.socket(socket.AF_UNIX).bind('socket')\n"
        "open('plain', 'w').write('mine')\n"
    )
    name = api.submit("python", "-c", code)["name"]
    assert api.wait(name)["state"] == "succeeded"
    paths = [output["path"] for output in api.ask("GET", f"/api/jobs/{name}/outputs").json]
    assert paths == ["outputs/plain"]
    log = api.ask("GET", f"/api/jobs/{name}/logs", stream="prepare").content.decode()
    for word in ("escape", "zero", "pipe", "socket"):
        assert f"outputs/{word} is not kept" in log


class _Swapping:
    """A server that replaces a file by a link after it was listed and before it is read."""

    def __init__(self, file: Path, secret: Path) -> None:
        self.file, self.secret, self.content = file, secret, b""

    def send_files(self, body: Iterable[bytes], length: int) -> list[str]:
        self.file.rename(self.file.with_name("aside"))
        self.file.symlink_to(self.secret)
        for piece in body:
            self.content += piece
        return []


@pytest.mark.parametrize("which", ["deep/model", "deep"], ids=["file", "folder"])
def test_a_link_that_replaces_an_output_while_it_is_collected_is_not_followed(
    tmp_path: Path, which: str
) -> None:
    outputs, secret = tmp_path / "launch/work/outputs", tmp_path / "secret"
    for folder, content in ((outputs, "mine, so."), (secret, "not yours")):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep/model").write_text(content)
    (tmp_path / "launch/streams").mkdir()
    server = _Swapping(outputs / which, secret / which)
    with pytest.raises(OSError, match=r"elsewhere|Not a directory"):
        Collector(Folder(str(tmp_path / "launch"))).send(cast(Any, server), min_age_seconds=0.0)
    assert b"outputs/deep/model" in server.content
    assert b"not yours" not in server.content


def test_a_large_log_arrives_complete_and_needs_no_memory(api: Api) -> None:
    code = "import os\nline = b'x' * 99 + b'\\n'\nblock = line * 10_000\n"
    code += f"for _ in range({_LOG // 1_000_000}): os.write(1, block)"
    before = _memory(api)
    name = api.submit("python", "-c", code)["name"]
    assert api.wait(name, timeout=_PATIENCE)["state"] == "succeeded"
    streams = api.ask("GET", f"/api/jobs/{name}/streams").json
    assert {"stream": "output", "size": _LOG} in streams
    assert _memory(api) - before < 50
    assert api.ask("DELETE", f"/api/jobs/{name}").status == 204


def test_very_many_outputs_are_all_kept_and_the_server_answers_meanwhile(api: Api) -> None:
    code = "import os\n"
    code += f"for n in range({_OUTPUTS}): open(f'outputs/{{n}}', 'w').write(str(n))"
    name = api.submit("python", "-c", code)["name"]
    slowest, began = 0.0, time.monotonic()
    while api.job(name)["state"] not in ("succeeded", "failed"):
        sent_at = time.monotonic()
        assert api.ask("GET", "/health").status == 200
        slowest = max(slowest, time.monotonic() - sent_at)
        assert time.monotonic() - began < _PATIENCE
        time.sleep(0.02)
    print(f"{_OUTPUTS} outputs: {time.monotonic() - began:.1f} s, slowest answer {slowest:.2f} s")
    outputs = api.ask("GET", f"/api/jobs/{name}/outputs").json
    assert {output["path"]: output["size"] for output in outputs} == {
        f"outputs/{n}": len(str(n)) for n in range(_OUTPUTS)
    }
    api.cleared(_PATIENCE)


def _memory(api: Api) -> float:
    status = Path(f"/proc/{api.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _until_logged(api: Api, name: str, words: bytes, patience: float = 200) -> None:
    deadline = time.monotonic() + patience
    while words not in api.ask("GET", f"/api/jobs/{name}/logs").content:
        assert time.monotonic() < deadline, f"it did not print {words!r}"
        time.sleep(0.05)
