"""Scripts that make trouble: with their log, their processes, their folder and their outputs."""

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
_PATIENCE = 900.0 if _FULL else 60.0

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
# Twenty that fork and leave, and so do their children: never more at once, and never an end.
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
    """Return what still runs for a job, wherever it has gone."""
    mark = api.job(name)["id"]
    return [str(each) for each in processes() if each.environ.get("RETARGET_JOB_ID") == mark]


@pytest.mark.parametrize("code", [_DAEMON, _OWN_GROUP], ids=["daemon", "own group"])
def test_what_a_script_leaves_running_ends_with_it(api: Api, code: str) -> None:
    name = api.submit("python", "-c", code, grace=1)["name"]
    job = api.wait(name)
    assert (job["state"], job["exit_code"]) == ("succeeded", 0)
    assert _processes_of(api, name) == []


def test_a_script_that_forks_without_end_is_ended_to_the_last(api: Api) -> None:
    name = api.submit("python", "-c", _BOMB, grace=1)["name"]
    _until_said(api, name, b"burning\n")
    api.ask("POST", f"/api/jobs/{name}/cancel")
    assert api.wait(name, patience=60)["state"] == "canceled"
    assert _processes_of(api, name) == []


def test_a_script_that_spoils_the_order_to_stop_is_stopped(api: Api, tmp_path: Path) -> None:
    """And what comes after it is run: one that cannot be told must not hold up the others."""
    code = "import os, time; os.symlink('/nowhere/at/all', '../cancel')\n"
    code += "print('linked', flush=True); time.sleep(600)"
    name = api.submit("python", "-c", code, grace=1)["name"]
    _until_said(api, name, b"linked\n")
    api.ask("POST", f"/api/jobs/{name}/cancel")
    other = api.submit("python", "-c", "print(1)")["name"]
    assert api.wait(other)["state"] == "succeeded"
    assert api.wait(name)["state"] == "canceled"
    assert not os.path.lexists("/nowhere")


def test_a_script_that_closes_its_output_is_seen_to_its_end(api: Api, tmp_path: Path) -> None:
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
def test_a_work_folder_that_is_spoiled_ends_nothing_but_itself(api: Api, code: str) -> None:
    name = api.submit("python", "-c", f"print('here', flush=True)\n{code}")["name"]
    job = api.wait(name)
    assert (job["state"], job["exit_code"]) == ("succeeded", 0), job["reason"]
    assert api.ask("GET", f"/api/jobs/{name}/logs").content == b"here\n"
    for output in api.ask("GET", f"/api/jobs/{name}/outputs").json:
        assert output["path"] == "outputs/x"  # where root may read what is closed


def test_outputs_that_come_and_go_are_those_of_the_end(api: Api) -> None:
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
    (left,) = api.ask("GET", f"/api/jobs/{name}/outputs").json
    assert (left["path"], left["size"]) == ("outputs/last", 5)


def test_links_pipes_sockets_and_devices_are_left_out_and_named(api: Api, tmp_path: Path) -> None:
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
    said = api.ask("GET", f"/api/jobs/{name}/logs", stream="prepare").content.decode()
    for word in ("escape", "zero", "pipe", "socket"):
        assert f"outputs/{word} is not kept" in said


class _Swapping:
    """A server that puts a link in a file's place between its listing and its reading."""

    def __init__(self, file: Path, secret: Path) -> None:
        self.file, self.secret, self.got = file, secret, b""

    def collect(self, body: Iterable[bytes], length: int) -> list[str]:
        self.file.rename(self.file.with_name("aside"))
        self.file.symlink_to(self.secret)
        for piece in body:
            self.got += piece
        return []


@pytest.mark.parametrize("which", ["deep/model", "deep"], ids=["file", "folder"])
def test_what_is_swapped_for_a_link_while_it_is_collected_is_not_followed(
    tmp_path: Path, which: str
) -> None:
    outputs, secret = tmp_path / "launch/work/outputs", tmp_path / "secret"
    for place, content in ((outputs, "mine, so."), (secret, "not yours")):
        (place / "deep").mkdir(parents=True)
        (place / "deep/model").write_text(content)
    (tmp_path / "launch/streams").mkdir()
    server = _Swapping(outputs / which, secret / which)
    with pytest.raises(OSError, match=r"elsewhere|Not a directory"):
        Collector(Folder(str(tmp_path / "launch"))).send(cast(Any, server), settled=0.0)
    assert b"outputs/deep/model" in server.got
    assert b"not yours" not in server.got


def test_a_large_log_comes_whole_and_costs_no_memory(api: Api) -> None:
    code = "import os\nline = b'x' * 99 + b'\\n'\nblock = line * 10_000\n"
    code += f"for _ in range({_LOG // 1_000_000}): os.write(1, block)"
    before = _memory(api)
    name = api.submit("python", "-c", code)["name"]
    assert api.wait(name, patience=_PATIENCE)["state"] == "succeeded"
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
        asked = time.monotonic()
        assert api.ask("GET", "/health").status == 200
        slowest = max(slowest, time.monotonic() - asked)
        assert time.monotonic() - began < _PATIENCE
        time.sleep(0.02)
    print(f"{_OUTPUTS} outputs: {time.monotonic() - began:.1f} s, slowest answer {slowest:.2f} s")
    outputs = api.ask("GET", f"/api/jobs/{name}/outputs").json
    assert {each["path"]: each["size"] for each in outputs} == {
        f"outputs/{n}": len(str(n)) for n in range(_OUTPUTS)
    }
    api.cleared(_PATIENCE)


def _memory(api: Api) -> float:
    status = Path(f"/proc/{api.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _until_said(api: Api, name: str, words: bytes, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while words not in api.ask("GET", f"/api/jobs/{name}/logs").content:
        assert time.monotonic() < deadline, f"it did not say {words!r}"
        time.sleep(0.05)
