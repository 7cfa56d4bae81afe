"""Fuzzes what runners and the local driver read: folders, answers of the server, nvidia-smi."""

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
from retarget.runner.host import observe, parse_gpus, read_grace_seconds
from retarget.runner.keep import parse_choice
from retarget.runner.outputs import Collector
from retarget.runner.proof import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    TRAILER,
    Trailer,
    digest_of,
    prove_answer,
)
from retarget.runner.script_start import read_start
from retarget.runner.server import Server
from retarget.runner.snapshot import read_manifest
from tests.fuzz.mutated import noise, noisy_text, read_or_refused

_FRAMES = bytes(32) + (3).to_bytes(8, "big") + b"abc"
_ANSWER = b'{"events_acked":3,"cancel":false,"size":5,"refused":[]}'


_KEY = "key"


class AnswerHandler(http.server.BaseHTTPRequestHandler):
    """Proves its answers, whatever they are."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two would wait for TCP
    content = b""

    def do_GET(self) -> None:
        self._answer(204, b"", digest_of(b""))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/blobs":
            self._answer(200, self.content, digest_of(self.content))
            return
        trailer = Trailer(_KEY, "answer", self.headers[NONCE_HEADER])
        self._answer(200, trailer.add(self.content) + trailer.value(), TRAILER)

    do_PUT = do_POST

    def _answer(self, status: int, content: bytes, digest: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header(DIGEST_HEADER, digest)
        proof = prove_answer(_KEY, self.headers[NONCE_HEADER], status, digest)
        self.send_header(PROOF_HEADER, proof)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    """A server that answers every request with `AnswerHandler.content`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), AnswerHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launch")
    for name in ("streams", "work", "track"):
        (path / name).mkdir()
    return path


@pytest.fixture(scope="module")
def client(server: http.server.ThreadingHTTPServer, folder: Path) -> Iterator[Server]:
    url = f"http://127.0.0.1:{server.server_port}"
    contact = {"url": url, "runner_key": _KEY, "script_token": "t", "path": ""}
    (folder / "launch.json").write_text(json.dumps({"contact": contact}))
    client = Server(Folder(str(folder)))
    yield client
    client.close()


@given(noise(_ANSWER, b'{"size":true}', b"[]", b'{"status":"ok"}'))
def test_answers_of_the_server(client: Server, content: bytes) -> None:
    AnswerHandler.content = content
    read_or_refused(lambda: client.append("output", 0, b"x") + 0, Unreachable)
    read_or_refused(lambda: client.report([])["events_acked"] + 0, Unreachable)
    read_or_refused(lambda: client.track("a", 0, b"x")["size"] + 0, Unreachable)


@given(noise(_FRAMES + _FRAMES))
def test_files_from_the_server(client: Server, content: bytes) -> None:
    AnswerHandler.content = content
    read_or_refused(lambda: list(client.download_many([])), Unreachable)
    complete = b"".join(
        bytes.fromhex(digest) + len(file).to_bytes(8, "big") + file
        for digest, file in whole_files(client)
    )
    assert content.startswith(complete)


def whole_files(client: Server) -> Iterator[tuple[str, bytes]]:
    try:
        yield from client.download_many([])
    except Unreachable:
        return


@given(noise(b'{"version":1,"entries":[{"path":"a","link":"b"}]}'))
def test_a_manifest_on_a_bad_disk(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        blob = Path(name, "00", "0" * 64)
        blob.parent.mkdir()
        blob.write_bytes(content)
        if is_json(content):
            return  # the server has checked its content
        with pytest.raises(Unprepared, match="is damaged"):
            read_manifest(str(blob))


def is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        return False


@given(noise(b'{"kind":"x"}\n{"exit_code":0,"reason":"","outcome":"succeeded"}\n'))
def test_the_runners_record_of_the_exit(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "done").write_bytes(content)
        assert observe(name)["phase"] == "exited"


@given(noise(b'{"launch":{"grace_seconds":10.0}}'))
def test_a_launch_whose_file_was_overwritten_can_be_canceled(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "launch.json").write_bytes(content)
        assert read_grace_seconds(name) is not None


@given(noise(b'\n"outputs/a"\n"outputs/\\udcff"\n', b'"outputs/\\ud800"\n["a"]\n{"a":1}\n'))
def test_a_killed_runners_record_of_sent_files(client: Server, content: bytes) -> None:
    """Whatever it contains, files that are sent from then on are known."""
    AnswerHandler.content = b'{"kept":1}'
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "sent.jsonl").write_bytes(content)
        output = Path(name) / "work" / "outputs" / "new"
        output.parent.mkdir(parents=True)
        output.touch()
        collector = Collector(Folder(name))
        collector.send(client, min_age_seconds=0.0)
        output.unlink()
        assert "outputs/new" in collector.find_removed(client)


@given(noise(b'{"outputs/a": [3, 1700000000000000000], "outputs/b": [0, 1]}'))
def test_the_record_of_files_that_came_with_the_code(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "initial_files.json").write_bytes(content)
        (Path(name) / "work" / "outputs").mkdir(parents=True)
        (Path(name) / "work" / "outputs" / "new").touch()
        files = Collector(Folder(name))._changed_files(("outputs",), 0.0)  # pyright: ignore[reportPrivateUsage]
        assert [path for path, _, _ in files] == ["outputs/new"]


@given(noise(b'{"files": [["a", 1]], "missed": [["b", 1, 2, "c"]], "unmatched": ["*.d"]}'))
def test_the_list_of_files_to_keep(content: bytes) -> None:
    try:
        choice = parse_choice(json.loads(content))
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    assert all(isinstance(file.path, str) and file.size >= 0 for file in choice.files)


@given(noise(b"1700000000000000000"))
def test_the_record_of_when_the_script_started(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "script_start").write_bytes(content)
        assert all(isinstance(moment, int) for moment in read_start(Folder(name)))


@example("0, NVIDIA H100, " + "9" * 5000)
@given(noisy_text("0, NVIDIA H100, 81559\n1, NVIDIA H100, [N/A]\n", "No devices were found\n"))
def test_the_output_of_nvidia_smi(text: str) -> None:
    parse_gpus(text)


@given(noise(b'{"seq":1,"at":1.5,"kind":"preparing"}\n{"seq":2,"at":2,"kind":"started"}\n'))
def test_a_journal_is_read_up_to_an_incomplete_line(content: bytes) -> None:
    """A damaged line ends the journal and is noted in it: later steps must not be repeated."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "events.jsonl").write_bytes(content)
        journal = Journal(Folder(name))
        os.close(journal._file)  # pyright: ignore[reportPrivateUsage]
        numbers = [event["seq"] for event in journal.events]
        assert numbers == sorted(set(numbers))
        if journal.find("damaged") is None:
            assert len(journal.events) == content.count(b"\n")
        else:
            assert journal.events[-1]["kind"] == "damaged"
            assert len(journal.events) <= content.count(b"\n")
