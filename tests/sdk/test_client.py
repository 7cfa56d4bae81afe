"""The Python client with a real server, and its HTTP with sockets that misbehave."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import retarget
from retarget import Environment, Invalid, Job, JobState, NotFound, ServerUnreachable, Workspace
from retarget.core.errors import Conflict, RetargetError, Unauthorized
from retarget.core.home import Home
from retarget.sdk.downloads import download
from retarget.sdk.follow import label_ranks
from retarget.sdk.http import Address, Connection, RemoteServer
from retarget.sdk.local_server import running_server
from retarget.sdk.records import Output
from retarget.sdk.submission import job_options, resolve_code

SLOW = "import time\nfor n in range(30): print('line', n, flush=True); time.sleep(0.1)"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')")
    (folder / "sleep.py").write_text("import time; print('started', flush=True); time.sleep(60)")
    (folder / "slow.py").write_text(SLOW)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def workspace(home: Path, server: None, code: Path) -> Iterator[Workspace]:
    workspace = Workspace()
    yield workspace
    if not home.exists():
        return
    for job in workspace.jobs:
        if not job.state.is_final:
            job.cancel()
            job.wait(timeout=200)


def test_submit_wait_download_and_rerun(
    workspace: Workspace, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    Path("train.py").write_text(
        "import os, sys; print(sys.argv[1:], os.environ['K'])\n"
        "open('outputs/model.txt', 'w').write('weights')"
    )
    job = workspace.submit(
        "train.py",
        code=".",
        target="local",
        args=["--lr", "0.1"],
        environment=Environment(),
        name="first",
        experiment="trial",
        variables={"K": 5},
        cpus=1,
        memory="100m",
        timeout="1m",
    )
    assert isinstance(job, Job)
    assert job.wait(show_output=True) is JobState.SUCCEEDED
    assert capfdbinary.readouterr().out == b"['--lr', '0.1'] 5\n"
    assert (job.name, job.exit_code, job.target) == ("first", 0, "local")
    assert len(job.id) <= 32
    assert job.logs() == "['--lr', '0.1'] 5\n"
    assert [output.path for output in job.outputs()] == ["outputs/model.txt"]
    [path] = job.download("outputs/model.txt", to=tmp_path / "downloads")
    assert path == tmp_path / "downloads/outputs/model.txt"
    assert path.read_text() == "weights"
    assert [transition.state for transition in job.history()][-1] is JobState.SUCCEEDED
    assert job.why().state is JobState.SUCCEEDED
    assert [attempt.number for attempt in job.attempts] == [1]
    assert [job.name for job in workspace.jobs.list(experiment="trial")] == ["first"]
    again = workspace.jobs["first"].rerun(
        name="second", args=["--lr", 0.2], cpus=0.5, variables={"K": 6}
    )
    assert again.wait() is JobState.SUCCEEDED
    assert (again.logs(), again.to_json()["cpus"]) == ("['--lr', '0.2'] 6\n", 0.5)
    again.delete()
    with pytest.raises(NotFound, match=r"'second'; workspace\.jobs\.list\(\) returns the jobs"):
        workspace.jobs["second"]
    with pytest.raises(Invalid, match=r"path: '/tmp/x' .*, use to='/tmp/x'"):
        job.download("/tmp/x")


def test_a_job_is_labelled(workspace: Workspace) -> None:
    job = workspace.submit(
        ["true"],
        display_name="ResNet",
        description="the big one",
        tags={"team": "vision", "year": 2026},
        properties={"commit": "1f"},
    )
    assert (job.display_name, job.description) == ("ResNet", "the big one")
    assert (job.tags(), job.properties) == ({"team": "vision", "year": "2026"}, {"commit": "1f"})
    job.update(display_name="", tags={"year": None, "n": 3}, properties={"run": 2})
    assert (job.display_name, job.tags()) == (job.name, {"team": "vision", "n": "3"})
    assert job.properties == {"commit": "1f", "run": "2"}
    assert job.update(description="small").description == "small"
    with pytest.raises(Invalid, match="a property never changes"):
        job.update(properties={"commit": "2e"})
    assert [job.id for job in workspace.jobs.list(tags={"team": "vision", "n": None})] == [job.id]
    assert workspace.jobs.list(tags={"team": "audio"}) == []
    job.wait()


def test_a_command_is_a_list(workspace: Workspace) -> None:
    job = workspace.submit(["sh", "-c", "echo $0; exit 5"], args=["word"])
    assert job.wait() is JobState.FAILED
    assert (job.exit_code, job.logs()) == (5, "word\n")


def test_wait_returns_at_its_timeout(workspace: Workspace) -> None:
    job = workspace.submit("sleep.py")
    started = time.monotonic()
    assert not job.wait(timeout=1).is_final
    assert not job.wait(show_output=True, timeout=1).is_final
    assert time.monotonic() - started < 50  # the script sleeps for 60 s
    assert job.exit_code is None
    job.cancel()
    assert job.wait() is JobState.CANCELED
    assert job.exit_code == 130
    with pytest.raises(Conflict):
        job.cancel()


def test_a_log_is_followed_through_a_killed_server(workspace: Workspace, home: Path) -> None:
    job = workspace.submit("slow.py")
    output = b""
    killed = False
    for stream, piece in job.follow():
        output += piece if stream == "output" else b""
        if b"line 5\n" in output and not killed:
            killed = True
            server = running_server(Home(home))
            assert server is not None
            os.kill(server.pid, signal.SIGKILL)
    assert output.decode() == "".join(f"line {n}\n" for n in range(30))
    assert job.state is JobState.SUCCEEDED


def test_other_requests_work_while_a_log_is_followed(workspace: Workspace) -> None:
    job = workspace.submit("slow.py")
    lines = ""
    for piece in job.logs("output", follow=True):
        lines += piece
        workspace.jobs[job.name].refresh()
    assert lines == job.logs("output")
    assert lines.count("\n") == 30


def test_ranks_are_followed_concurrently(workspace: Workspace) -> None:
    job = workspace.submit("slow.py", processes_per_node=2, cpus=1)
    by_stream: dict[str, bytes] = {}
    for stream, piece in job.follow():
        by_stream[stream] = by_stream.get(stream, b"") + piece
    expected = "".join(f"line {n}\n" for n in range(30)).encode()
    assert (by_stream["rank-0"], by_stream["rank-1"]) == (expected, expected)


def test_targets_and_environments(workspace: Workspace) -> None:
    assert [target.name for target in workspace.targets] == ["local"]
    assert workspace.targets["local"].kind == "local"
    assert workspace.targets.check("local").reason == ""
    with pytest.raises(NotFound, match="mars"):
        workspace.targets["mars"]
    registered = workspace.environments.register("mine", Environment(packages=["six"]))
    assert registered.pip == ["six"]
    assert workspace.environments["mine"].digest == registered.digest
    assert (registered.label, workspace.environments.update("mine").label) == ("mine:1", "mine:2")
    assert [known.version for known in workspace.environments.versions("mine")] == [2, 1]
    assert workspace.environments["mine:1"].digest == registered.digest
    assert [known.label for known in workspace.environments] == ["mine:2", "mine:1"]
    assert workspace.environments.delete("mine") == []
    with pytest.raises(Invalid):
        workspace.targets[""]


def test_an_environment_is_defined_where_it_is_used(workspace: Workspace) -> None:
    show = ["python", "-c", "import sys; print(sys.prefix != sys.base_prefix)"]
    inline: dict[str, Any] = {"packages": []}
    for environment in (inline, Environment(packages=[])):
        job = workspace.submit(show, environment=environment)
        assert job.wait(timeout=200) is JobState.SUCCEEDED
        assert job.logs("output") == "True\n"
    assert workspace.environments.register("empty", {"packages": []}).pip == []


def test_a_plan_stores_nothing(workspace: Workspace) -> None:
    plan = workspace.plan("hello.py", cpus=1)
    assert plan["launch"]["command"] == ["python", "hello.py"]
    assert workspace.jobs.list() == []


def test_more_jobs_than_a_page_are_listed(workspace: Workspace) -> None:
    for _ in range(4):
        workspace.submit(["true"])
    names = [job.name for job in workspace.jobs._pages({}, size=3)]  # pyright: ignore[reportPrivateUsage]
    assert len(set(names)) == 4
    assert [job.name for job in workspace.jobs.list(limit=2)] == names[:2]
    for job in workspace.jobs:
        job.wait()


def test_a_large_file_and_many_small_ones_arrive(workspace: Workspace, code: Path) -> None:
    (code / "large.bin").write_bytes(os.urandom(3 * 2**20))
    for number in range(50):
        (code / f"small-{number}.txt").write_text(str(number))
    reports: list[tuple[int, int]] = []
    prepared = workspace.prepare(
        ["sh", "-c", "cat large.bin small-*.txt | wc -c"],
        progress=lambda done, total: reports.append((done, total)),
    )
    assert reports[-1][0] == reports[-1][1] > 3 * 2**20
    job = workspace.send(prepared)
    job.wait()
    assert int(job.logs()) == 3 * 2**20 + sum(len(str(number)) for number in range(50))


@pytest.mark.parametrize(
    ("script", "sentence"),
    [("nope.py", "nope.py"), ("nope", "retarget run -- nope"), ("/etc", "folder")],
)
def test_a_missing_script_is_named(code: Path, script: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        resolve_code(script, None, ())


def test_the_code_folder_is_the_current_one_or_that_of_the_script(
    code: Path, tmp_path: Path
) -> None:
    (code / "deep").mkdir()
    (code / "deep/x.py").touch()
    assert resolve_code("deep/x.py", None, ()).folder == code
    assert resolve_code("deep/x.py", None, ()).command == ("python", "deep/x.py")
    (tmp_path / "other").mkdir()
    other = tmp_path / "other/-y.py"
    other.touch()
    code_ = resolve_code(other, None, ["-a"])
    assert (code_.folder, code_.command) == (tmp_path / "other", ("python", "./-y.py", "-a"))
    with pytest.raises(Invalid, match="not in the code folder"):
        resolve_code("hello.py", tmp_path / "other", ())
    assert resolve_code(["a", "b"], None, ["c"]).command == ("a", "b", "c")


def test_options_become_plain_values() -> None:
    assert job_options({"memory": "2g", "timeout": "1m", "name": None, "gpus": 0}) == {
        "memory": 2 * 2**30,
        "timeout": 60.0,
        "gpus": 0,
    }
    with pytest.raises(Invalid, match="memory"):
        job_options({"memory": "much"})


def test_lines_of_ranks_are_never_mixed() -> None:
    pieces = [("prepare", b"p"), ("rank-0", b"a"), ("rank-1", b"x\ny"), ("rank-0", b"b\n")]
    assert list(label_ranks(pieces)) == [
        ("prepare", b"p"),
        ("output", b"[rank 1] x\n"),
        ("output", b"[rank 0] ab\n"),
        ("output", b"[rank 1] y\n"),
    ]


def test_an_output_cannot_leave_the_folder(tmp_path: Path) -> None:
    connection = Connection(RemoteServer(Address("http://127.0.0.1:1")))
    for path in ("../x", "outputs/../../x", "/etc/x", "outputs//x"):
        with pytest.raises(Invalid, match="leave the folder"):
            download(connection, "/api/jobs/1", Output(path, 1, ""), tmp_path)


def test_the_package_has_all_its_public_names() -> None:
    for name in retarget.__all__:
        assert getattr(retarget, name) is not None
    assert "Workspace" in dir(retarget)
    with pytest.raises(AttributeError):
        _ = retarget.nonsense  # type: ignore[attr-defined]


class Peer:
    """A server with fixed answers, one per connection; None closes the connection at once."""

    def __init__(self, *answers: bytes | None) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[bytes] = []
        self._answers = answers
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(timeout=200)
        self._socket.close()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._socket.accept()
            with connection:
                self.requests.append(connection.recv(65536))
                if answer is not None:
                    connection.sendall(answer)


def answer(body: Any, status: str = "200 OK") -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize(
    ("answers", "method", "outcome"),
    [
        ([None, answer({"a": 1})], "get", {"a": 1}),
        ([answer({"a": 1})], "post", {"a": 1}),
        ([None], "post", ServerUnreachable),
        ([b"not http\r\n\r\n"] * 3, "get", ServerUnreachable),
        ([answer("x")[:-2]] * 3, "get", ServerUnreachable),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"], "get", ServerUnreachable),
        ([answer({"error": "NotFound", "message": "no"}, "404 No")], "get", NotFound),
        ([answer({"error": "Unauthorized", "message": "no"}, "401 No")], "get", Unauthorized),
        ([answer("oops", "500 Broken")], "get", RetargetError),
        ([answer({"error": "Newer", "message": "no"}, "499 New")], "get", RetargetError),
    ],
)
def test_answers_and_failures(answers: list[bytes | None], method: str, outcome: Any) -> None:
    peer = Peer(*answers)
    connection = Connection(RemoteServer(Address(peer.url, "secret")))
    call = getattr(connection, method)
    if isinstance(outcome, dict):
        assert call("/x") == outcome
    else:
        with pytest.raises(outcome) as raised:
            call("/x")
        assert raised.type in (outcome, *outcome.__subclasses__())
    peer.close()
    connection.close()
    assert len(peer.requests) == len(answers)
    assert b"Authorization: Bearer secret\r\n" in peer.requests[0]


def test_a_kept_connection_that_was_closed_is_opened_anew_even_for_a_post() -> None:
    peer = Peer(answer(1), answer(2))
    connection = Connection(RemoteServer(Address(peer.url)))
    assert connection.post("/x") == 1
    time.sleep(0.2)
    assert connection.post("/x") == 2
    connection.close()
    peer.close()


def test_a_silent_server_is_an_error() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(ServerUnreachable, match=r"did not answer for 200 ms"):
        Connection(RemoteServer(address), timeout=0.2).get("/x")
    listener.close()


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://", "http://[x"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="http://host:port"):
        Connection(RemoteServer(Address(url))).get("/x")


def test_many_jobs_are_sent_and_waited_for_together(workspace: Workspace) -> None:
    prepared = [workspace.prepare("hello.py", name=f"hello-{number}") for number in range(5)]
    jobs = workspace.send_all([*prepared, workspace.prepare("sleep.py")])
    assert [job.name for job in jobs[:5]] == [f"hello-{number}" for number in range(5)]
    states = workspace.wait_all(jobs, timeout=3)
    assert (len(states), states[5].is_final) == (6, False)
    assert workspace.wait_all(jobs[:5]) == [JobState.SUCCEEDED] * 5
    assert [job.exit_code for job in jobs[:5]] == [0] * 5
    with pytest.raises(Conflict, match="hello-3"):
        workspace.send_all([workspace.prepare("hello.py"), prepared[3]])
    assert len(list(workspace.jobs)) == 6
    assert (workspace.send_all([]), workspace.wait_all([])) == ([], [])
