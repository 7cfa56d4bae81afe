"""Nothing but the right server can end, refuse or confirm anything."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.runner.proof import DIGEST_HEADER, TRAILER, digest_of
from tests.runner.harness import HarnessLaunch, RunnerHarness
from tests.runner.impostor import ANSWERS, Alter, AlteringProxy, impostor

_SCRIPT = """
import os, time
from retarget import track
number = 0
while not os.path.exists("go"):
    print("secret-looking line", number, flush=True)
    track.log(loss=number, step=number)
    number += 1
    time.sleep(0.02)
open("outputs/count", "w").write(str(number))
"""


def begin(harness: RunnerHarness, **fields: Any) -> HarnessLaunch:
    """Start a script that prints and logs until it is told to end."""
    launch = harness.launch("python", "-c", _SCRIPT, **fields).start()
    launch.wait_for_output("output", b"line 3\n")
    return launch


def check_complete(launch: HarnessLaunch) -> None:
    """Let the script end, and check that everything it printed and logged has arrived."""
    (launch.folder / "work/go").touch()
    reports = launch.finish()
    assert reports.finished["outcome"] == "succeeded", reports.finished
    count = int(reports.outputs["outputs/count"])
    lines = [f"secret-looking line {number}" for number in range(count)]
    assert reports.stream().decode().splitlines() == lines
    assert [record["m"]["loss"] for record in reports.track_records] == [*range(count)]


@pytest.mark.parametrize("kind", ANSWERS)
def test_another_program_on_the_servers_port_changes_nothing(
    harness: RunnerHarness, tmp_path: Path, kind: str
) -> None:
    launch, receiver = begin(harness), harness.receiver
    receiver.stop()
    with impostor(receiver.port, kind, tmp_path / "received") as other:
        other.wait_for_requests(1 if kind == "hangs" else 5)
        assert launch.runner is not None
        assert launch.runner.poll() is None
    check_only_handshakes(other.received, launch)
    receiver.start()
    check_complete(launch)


def check_only_handshakes(received: bytes, launch: HarnessLaunch) -> None:
    """Check that nothing of the job was sent: no credential, no log, no metric, no event."""
    contact = json.loads((launch.folder / "launch.json").read_text())["contact"]
    for name in ("runner_key", "script_token"):
        assert contact[name].encode() not in received
    heads = [line for line in received.split(b"\r\n") if b" HTTP/1.1" in line]
    assert {line.split(b" ")[0] + line[-15:] for line in heads} == {b"GET/proof HTTP/1.1"}
    for text in (b"secret-looking", b"loss", b"events", b"Authorization"):
        assert text not in received


def test_the_user_who_takes_a_free_relay_port_gets_nothing(
    harness: RunnerHarness, tmp_path: Path
) -> None:
    """As on an SSH host whose agent is away: the port is free, and the runner still knows it."""
    launch, receiver = begin(harness), harness.receiver
    relay_port = launch.folder / "relay_port"
    relay_port.write_text(json.dumps({"port": receiver.port}))
    content = json.loads((launch.folder / "launch.json").read_text())
    content["contact"]["relay_port"] = str(relay_port)
    (launch.folder / "launch.json").write_text(json.dumps(content))
    receiver.stop()
    with impostor(receiver.port, "json410", tmp_path / "received") as other:
        other.wait_for_requests(5)
        receiver.port = 0
        receiver.start()  # as the next agent does, which must take another port
        relay_port.write_text(json.dumps({"port": receiver.port}))
        check_complete(launch)
    check_only_handshakes(other.received, launch)


def test_a_job_that_begins_with_an_impostor_waits_for_its_server(
    harness: RunnerHarness, tmp_path: Path
) -> None:
    receiver = harness.receiver
    receiver.secrets = {"TOKEN": "of-the-user"}
    snapshot = receiver.add_snapshot({"a.py": b"import os; print(len(os.environ['TOKEN']))"})
    receiver.stop()
    with impostor(receiver.port, "json404", tmp_path / "received") as other:
        launch = harness.launch("python", "a.py", snapshot=snapshot, secrets=["TOKEN"]).start()
        other.wait_for_requests(3)
    check_only_handshakes(other.received, launch)
    receiver.start()
    assert launch.finish().stream() == b"11\n"


@pytest.fixture
def proxy(harness: RunnerHarness) -> Iterator[AlteringProxy]:
    proxy = AlteringProxy(harness.receiver.url)
    yield proxy
    proxy.shutdown()
    proxy.server_close()


def with_status(status: int) -> Alter:
    return lambda _, fields, content: (status, fields, content)


def with_larger_numbers(
    status: int, fields: dict[str, str], content: bytes
) -> tuple[int, dict[str, str], bytes]:
    body: dict[str, Any] = json.loads(content or b"{}")
    larger = {name: value + 999 if type(value) is int else value for name, value in body.items()}
    content = json.dumps(larger).encode()
    return status, {**fields, DIGEST_HEADER: digest_of(content)}, content


def without_digest(
    status: int, fields: dict[str, str], content: bytes
) -> tuple[int, dict[str, str], bytes]:
    return status, {**fields, DIGEST_HEADER: TRAILER}, content + bytes(32)


class Replay:
    """Answers every request as the first one was answered."""

    first: tuple[int, dict[str, str], bytes] | None = None

    def __call__(
        self, status: int, fields: dict[str, str], content: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        before, self.first = self.first, self.first or (status, fields, content)
        return before or self.first


@pytest.mark.parametrize(
    "alter",
    [
        *(pytest.param(with_status(status), id=str(status)) for status in (204, 404, 410, 422)),
        pytest.param(with_larger_numbers, id="numbers"),
        pytest.param(without_digest, id="trailer"),
        pytest.param(Replay(), id="replay"),
    ],
)
def test_a_proxy_that_alters_answers_changes_nothing(
    harness: RunnerHarness, proxy: AlteringProxy, alter: Alter
) -> None:
    launch = begin(harness, url=proxy.url)
    proxy.alter_answer = alter
    proxy.wait_for_altered(10)
    proxy.alter_answer = None
    check_complete(launch)


def test_a_proxy_that_alters_requests_changes_nothing(
    harness: RunnerHarness, proxy: AlteringProxy
) -> None:
    launch = begin(harness, url=proxy.url)
    proxy.alter_body = lambda body: body.replace(b"line", b"LINE").replace(b"loss", b"LOSS")
    proxy.wait_for_altered(10)
    proxy.alter_body = None
    check_complete(launch)


def test_code_that_a_proxy_has_altered_is_never_run(
    harness: RunnerHarness, proxy: AlteringProxy
) -> None:
    files = {"a.py": b"print('right')", "big": b"x" * (3 << 20)}
    snapshot = harness.receiver.add_snapshot(files)
    proxy.alter_answer = lambda status, fields, content: (
        status,
        fields,
        content.replace(b"right", b"wrong").replace(b"xxxx", b"yyyy"),
    )
    launch = harness.launch("python", "a.py", snapshot=snapshot, url=proxy.url).start()
    proxy.wait_for_altered(4)
    proxy.alter_answer = lambda status, fields, content: (status, fields, content[:-1])
    proxy.wait_for_altered(8)
    proxy.alter_answer = None
    assert launch.finish().stream() == b"right\n"
    assert (launch.folder / "work/big").read_bytes() == files["big"]


def test_a_refused_stream_is_tried_again_on_the_next_connection(harness: RunnerHarness) -> None:
    script = "echo first > logs/a; while [ ! -e go ]; do sleep 0.05; done; echo second >> logs/a"
    receiver = harness.receiver
    receiver.refused_streams = {"logs/a"}
    launch = harness.launch("sh", "-c", script).start()
    launch.wait_for_output("prepare", b"logs/a is not streamed")
    refusals = receiver.requests.count("PUT streams/logs/a")
    receiver.wait(launch.key, lambda _: receiver.requests[-3:].count("POST events"), timeout=200)
    assert receiver.requests.count("PUT streams/logs/a") <= refusals + 1, "not on each round"
    receiver.stop()
    receiver.refused_streams = set()
    receiver.start()
    (launch.folder / "work/go").touch()
    reports = launch.finish()
    assert reports.stream("logs/a") == b"first\nsecond\n"
    assert reports.stream("prepare").count(b"not streamed") == 1
