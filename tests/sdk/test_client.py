"""The Python client on a real server, and its HTTP on sockets that misbehave."""

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
from retarget.sdk.background import running
from retarget.sdk.downloads import download
from retarget.sdk.follow import labelled
from retarget.sdk.http import Address, Connection, Elsewhere
from retarget.sdk.records import Output
from retarget.sdk.submission import requested, work_of

SLOW = "import time\nfor n in range(30): print('line', n, flush=True); time.sleep(0.1)"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text("print('hello')")
    (folder / "sleep.py").write_text("import time; print('begun', flush=True); time.sleep(60)")
    (folder / "slow.py").write_text(SLOW)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def workspace(home: Path, code: Path) -> Iterator[Workspace]:
    workspace = Workspace()
    yield workspace
    if not home.exists():
        return
    for job in workspace.jobs:
        if not job.state.is_final:
            job.cancel()
            job.wait(timeout=20)


def test_everything_of_the_issue_in_one_go(
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
        env={"K": 5},
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
    assert [each.path for each in job.outputs()] == ["outputs/model.txt"]
    [path] = job.download("outputs/model.txt", to=tmp_path / "got")
    assert path == tmp_path / "got/outputs/model.txt"
    assert path.read_text() == "weights"
    assert [move.state for move in job.history()][-1] is JobState.SUCCEEDED
    assert job.why().state is JobState.SUCCEEDED
    assert [attempt.number for attempt in job.attempts] == [1]
    assert [each.name for each in workspace.jobs.list(experiment="trial")] == ["first"]
    again = workspace.jobs["first"].rerun(name="second")
    assert again.wait() is JobState.SUCCEEDED
    again.delete()
    with pytest.raises(NotFound, match="second"):
        workspace.jobs["second"]


def test_a_command_is_a_list(workspace: Workspace) -> None:
    job = workspace.submit(["sh", "-c", "echo $0; exit 5"], args=["word"])
    assert job.wait() is JobState.FAILED
    assert (job.exit_code, job.logs()) == (5, "word\n")


def test_waiting_ends_with_its_time(workspace: Workspace) -> None:
    job = workspace.submit("sleep.py")
    begun = time.monotonic()
    assert not job.wait(timeout=1).is_final
    assert not job.wait(show_output=True, timeout=1).is_final
    assert time.monotonic() - begun < 10
    assert job.exit_code is None
    job.cancel()
    assert job.wait() is JobState.CANCELED
    assert job.exit_code == 130
    with pytest.raises(Conflict):
        job.cancel()


def test_a_log_is_followed_through_a_killed_server(workspace: Workspace, home: Path) -> None:
    job = workspace.submit("slow.py")
    got = b""
    killed = False
    for stream, piece in job.follow():
        got += piece if stream == "output" else b""
        if b"line 5\n" in got and not killed:
            killed = True
            found = running(Home(home))
            assert found is not None
            os.kill(found.pid, signal.SIGKILL)
    assert got.decode() == "".join(f"line {n}\n" for n in range(30))
    assert job.state is JobState.SUCCEEDED


def test_other_requests_may_be_made_while_a_log_is_followed(workspace: Workspace) -> None:
    job = workspace.submit("slow.py")
    lines = ""
    for piece in job.logs("output", follow=True):
        lines += piece
        workspace.jobs[job.name].refresh()
    assert lines == job.logs("output")
    assert lines.count("\n") == 30


def test_ranks_are_followed_side_by_side(workspace: Workspace) -> None:
    job = workspace.submit("slow.py", processes_per_node=2, cpus=1)
    by_stream: dict[str, bytes] = {}
    for stream, piece in job.follow():
        by_stream[stream] = by_stream.get(stream, b"") + piece
    whole = "".join(f"line {n}\n" for n in range(30)).encode()
    assert (by_stream["rank-0"], by_stream["rank-1"]) == (whole, whole)


def test_targets_and_environments(workspace: Workspace) -> None:
    assert [target.name for target in workspace.targets] == ["local"]
    assert workspace.targets["local"].kind == "local"
    assert workspace.targets.check("local").reason == ""
    with pytest.raises(NotFound, match="mars"):
        workspace.targets["mars"]
    known = workspace.environments.register("mine", Environment(packages=["six"]))
    assert known.pip == ["six"]
    assert workspace.environments["mine"].digest == known.digest
    assert [each.name for each in workspace.environments] == ["mine"]
    assert workspace.environments.delete("mine") == []
    with pytest.raises(Invalid):
        workspace.targets[""]


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
    told: list[tuple[int, int]] = []
    prepared = workspace.prepare(
        ["sh", "-c", "cat large.bin small-*.txt | wc -c"],
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1][0] == told[-1][1] > 3 * 2**20
    job = workspace.send(prepared)
    job.wait()
    assert int(job.logs()) == 3 * 2**20 + sum(len(str(number)) for number in range(50))


@pytest.mark.parametrize(
    ("script", "sentence"),
    [("nope.py", "nope.py"), ("nope", "retarget run -- nope"), ("/etc", "folder")],
)
def test_a_missing_script_is_named(code: Path, script: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        work_of(script, None, ())


def test_the_folder_is_this_one_or_the_scripts_own(code: Path, tmp_path: Path) -> None:
    (code / "deep").mkdir()
    (code / "deep/x.py").touch()
    assert work_of("deep/x.py", None, ()).folder == code
    assert work_of("deep/x.py", None, ()).command == ("python", "deep/x.py")
    (tmp_path / "other").mkdir()
    other = tmp_path / "other/-y.py"
    other.touch()
    work = work_of(other, None, ["-a"])
    assert (work.folder, work.command) == (tmp_path / "other", ("python", "./-y.py", "-a"))
    with pytest.raises(Invalid, match="not in the code folder"):
        work_of("hello.py", tmp_path / "other", ())
    assert work_of(["a", "b"], None, ["c"]).command == ("a", "b", "c")


def test_amounts_are_read_at_the_edge() -> None:
    assert requested({"memory": "2g", "timeout": "1m", "name": None, "gpus": 0}) == {
        "memory": 2 * 2**30,
        "timeout": 60.0,
        "gpus": 0,
    }
    with pytest.raises(Invalid, match="memory"):
        requested({"memory": "much"})


def test_lines_of_ranks_are_never_mixed() -> None:
    pieces = [("prepare", b"p"), ("rank-0", b"a"), ("rank-1", b"x\ny"), ("rank-0", b"b\n")]
    assert list(labelled(pieces)) == [
        ("prepare", b"p"),
        ("output", b"[rank 1] x\n"),
        ("output", b"[rank 0] ab\n"),
        ("output", b"[rank 1] y\n"),
    ]


def test_an_output_cannot_leave_the_folder(tmp_path: Path) -> None:
    connection = Connection(Elsewhere(Address("http://127.0.0.1:1")))
    for path in ("../x", "outputs/../../x", "/etc/x", "outputs//x"):
        with pytest.raises(Invalid, match="leave the folder"):
            download(connection, "/api/jobs/1", Output(path, 1, ""), tmp_path)


def test_the_package_names_what_it_promises() -> None:
    for name in retarget.__all__:
        assert getattr(retarget, name) is not None
    assert "Workspace" in dir(retarget)
    with pytest.raises(AttributeError):
        _ = retarget.nonsense  # type: ignore[attr-defined]


class Peer:
    """A server made of canned answers, one a connection; None hangs up without a word."""

    def __init__(self, *answers: bytes | None) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[bytes] = []
        self._answers = answers
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(timeout=5)
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
    connection = Connection(Elsewhere(Address(peer.url, "secret")))
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
    connection = Connection(Elsewhere(Address(peer.url)))
    assert connection.post("/x") == 1
    time.sleep(0.2)
    assert connection.post("/x") == 2
    connection.close()
    peer.close()


def test_a_server_that_is_silent_is_told_so() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(ServerUnreachable, match=r"did not answer for 0\.2 s"):
        Connection(Elsewhere(address), timeout=0.2).get("/x")
    listener.close()


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://", "http://[x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="http://host:port"):
        Connection(Elsewhere(Address(url))).get("/x")


def test_many_jobs_are_sent_and_waited_for_together(workspace: Workspace) -> None:
    again = [workspace.prepare("hello.py", name=f"hello-{number}") for number in range(5)]
    jobs = workspace.send_all([*again, workspace.prepare("sleep.py")])
    assert [job.name for job in jobs[:5]] == [f"hello-{number}" for number in range(5)]
    states = workspace.wait_all(jobs, timeout=3)
    assert (len(states), states[5].is_final) == (6, False)
    assert workspace.wait_all(jobs[:5]) == [JobState.SUCCEEDED] * 5
    assert [job.exit_code for job in jobs[:5]] == [0] * 5
    with pytest.raises(Conflict, match="hello-3"):
        workspace.send_all([workspace.prepare("hello.py"), again[3]])
    assert len(list(workspace.jobs)) == 6
    assert (workspace.send_all([]), workspace.wait_all([])) == ([], [])
