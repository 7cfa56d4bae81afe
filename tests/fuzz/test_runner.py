"""What runners and the driver beside them read: their folder, the server's answers, nvidia-smi."""

import http.server
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from retarget.runner.errors import Unprepared, Unreachable
from retarget.runner.folder import Folder, Journal
from retarget.runner.machine import grace_of, observe, read_cards
from retarget.runner.outputs import Collector
from retarget.runner.server import Server
from retarget.runner.snapshot import Blobs, lay_out
from tests.fuzz.mutated import noise, noisy_text, read_or_refused

_FRAMES = bytes(32) + (3).to_bytes(8, "big") + b"abc"
_ANSWER = b'{"confirmed":3,"order":null,"size":5,"refused":[]}'


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body at once: a piece at a time waits for TCP
    content = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    do_PUT = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    """Answers every request with what `Answering.content` is then."""
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launch")
    for name in ("streams", "work", "track"):
        (path / name).mkdir()
    return path


@pytest.fixture(scope="module")
def asking(server: http.server.ThreadingHTTPServer, folder: Path) -> Iterator[Server]:
    url = f"http://127.0.0.1:{server.server_port}"
    contact = {"url": url, "token": "t", "path": ""}
    (folder / "launch.json").write_text(json.dumps({"contact": contact}))
    asking = Server(Folder(str(folder)))
    yield asking
    asking.close()


@given(noise(_ANSWER, b'{"size":true}', b"[]", b'{"status":"ok"}'))
def test_answers_of_the_server(asking: Server, content: bytes) -> None:
    Answering.content = content
    read_or_refused(lambda: asking.append("output", 0, b"x") + 0, Unreachable)
    read_or_refused(lambda: asking.report([])["confirmed"] + 0, Unreachable)
    read_or_refused(lambda: asking.track("a", 0, b"x")["size"] + 0, Unreachable)


@given(noise(_FRAMES + _FRAMES))
def test_files_from_the_server(asking: Server, content: bytes) -> None:
    Answering.content = content
    read_or_refused(lambda: list(asking.download_many([])), Unreachable)
    got = b"".join(
        bytes.fromhex(digest) + len(file).to_bytes(8, "big") + file
        for digest, file in whole_files(asking)
    )
    assert content.startswith(got)


def whole_files(asking: Server) -> Iterator[tuple[str, bytes]]:
    try:
        yield from asking.download_many([])
    except Unreachable:
        return


@given(noise(b'{"version":1,"entries":[{"path":"a","link":"b"}]}'))
def test_the_list_of_the_code_on_a_bad_disk(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name, "00", "0" * 64)
        place.parent.mkdir()
        place.write_bytes(content)
        if is_json(content):
            return  # the server has checked what it says
        with pytest.raises(Unprepared, match="is damaged"):
            lay_out(place.name, name, Blobs(name, [], Folder(name)))


def is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        return False


@given(noise(b'{"kind":"x"}\n{"exit_code":0,"reason":"","outcome":"succeeded"}\n'))
def test_what_a_runner_wrote_of_its_end(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "done").write_bytes(content)
        assert observe(name)["phase"] == "exited"


@given(noise(b'{"launch":{"grace":10.0}}'))
def test_a_launch_that_was_written_over_can_be_canceled(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "launch.json").write_bytes(content)
        assert grace_of(name) is not None


@given(noise(b'\n"outputs/a"\n"outputs/\\udcff"\n', b'"outputs/\\ud800"\n["a"]\n{"a":1}\n'))
def test_what_a_killed_runner_wrote_of_what_it_sent(asking: Server, content: bytes) -> None:
    """Whatever it is, all that is sent from then on is known."""
    Answering.content = b'{"kept":1}'
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "sent.jsonl").write_bytes(content)
        made = Path(name) / "work" / "outputs" / "new"
        made.parent.mkdir(parents=True)
        made.touch()
        collector = Collector(Folder(name))
        collector.send(asking, settled=0.0)
        made.unlink()
        assert "outputs/new" in collector.gone()


@given(noise(b'{"outputs/a": [3, 1700000000000000000], "outputs/b": [0, 1]}'))
def test_what_is_written_of_files_that_came_with_the_code(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "given.json").write_bytes(content)
        (Path(name) / "work" / "outputs").mkdir(parents=True)
        (Path(name) / "work" / "outputs" / "new").touch()
        fresh = Collector(Folder(name))._fresh(("outputs",), 0.0)  # pyright: ignore[reportPrivateUsage]
        assert [path for path, _, _ in fresh] == ["outputs/new"]


@example("0, NVIDIA H100, " + "9" * 5000)
@given(noisy_text("0, NVIDIA H100, 81559\n1, NVIDIA H100, [N/A]\n", "No devices were found\n"))
def test_what_nvidia_smi_says(text: str) -> None:
    read_cards(text)


@given(noise(b'{"seq":1,"at":1.5,"kind":"preparing"}\n{"seq":2,"at":2,"kind":"started"}\n'))
def test_a_journal_is_read_up_to_where_it_was_torn(content: bytes) -> None:
    """A damaged line in the middle is an error: what came after it must not be done again."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "events.jsonl").write_bytes(content)
        try:
            journal = Journal(Folder(name))
        except (ValueError, RecursionError):
            return
        os.close(journal._file)  # pyright: ignore[reportPrivateUsage]
        assert len(journal.events) == content.count(b"\n")
