"""The server reads damaged frames, tracking lines, events and files of its own."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from retarget.blobs.folder import Blobs
from retarget.blobs.uploads import Uploads
from retarget.control.decide import on_report
from retarget.control.track import parse_lines
from retarget.core.config import parse_config
from retarget.core.errors import NotFound
from retarget.core.home import ServerFolder
from retarget.core.states import LIVE
from retarget.server import __main__ as serving
from retarget.server.frames import FrameReader, take_blobs, take_outputs
from retarget.server.routes.attempts import Events
from tests.control.jobs import job
from tests.fuzz.mutated import noise, read_or_refused


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Blobs:
    return Blobs(tmp_path_factory.mktemp("blobs"))


def frame(content: bytes) -> bytes:
    return blake3(content).digest() + len(content).to_bytes(8, "big") + content


def output(content: bytes, **header: Any) -> bytes:
    head = json.dumps({"path": "outputs/é", "size": len(content)} | header).encode()
    return len(head).to_bytes(4, "big") + head + content


def nested(depth: int) -> bytes:
    head = b"[" * depth
    return len(head).to_bytes(4, "big") + head


async def arriving(content: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


@given(noise(frame(b"abc") + frame(b""), frame(b"x" * 3000)), st.integers(1, 50))
def test_frames_of_blobs(blobs: Blobs, content: bytes, size: int) -> None:
    read_or_refused(lambda: asyncio.run(take_blobs(blobs, FrameReader(arriving(content, size)))))
    assert not list(blobs.root.glob("*.part"))


@given(
    noise(
        output(b"abc") + output(b""),
        output(b"", size=float("inf")),
        nested(60_000),
        output(b"", size="1"),
    ),
    st.integers(1, 50),
)
def test_frames_of_outputs(blobs: Blobs, content: bytes, size: int) -> None:
    batch = blobs.batch()

    async def take() -> None:
        async for file in take_outputs(blobs, batch, FrameReader(arriving(content, size)), str):
            batch.commit()
            assert (blobs.path(file["digest"]).stat().st_size, type(file["path"])) == (
                file["size"],
                str,
            )

    read_or_refused(lambda: asyncio.run(take()))
    assert not list(blobs.root.glob("*.part"))


@given(
    noise(
        b'{"m":{"loss":0.5,"a":1e999},"s":3,"t":1700000000000}\n{"p":{"lr":"0.1"}}\n',
        b'{"g":{"tag":"x"}}\n{"a":{"type":"table","path":"t.json"}}\n{"later":1}\n',
    )
)
def test_lines_that_scripts_log(content: bytes) -> None:
    logged, refused = parse_lines(content)
    assert all(isinstance(metric.value, float) for metric in logged.metrics)
    assert all(refused)


@given(
    noise(
        json.dumps(
            {
                "events": [
                    {"seq": 1, "at": 1.5, "kind": "preparing", "node": "n"},
                    {"seq": 2, "at": 2, "kind": "exited", "reason": "", "exit_code": 0},
                    {
                        "seq": 3,
                        "at": 2,
                        "kind": "finished",
                        "outcome": "failed",
                        "removed_outputs": ["a"],
                    },
                ]
            }
        ).encode()
    ),
    st.sampled_from(sorted(LIVE)),
)
def test_events_of_runners(content: bytes, state: Any) -> None:
    try:
        events = Events.model_validate(json.loads(content)).events
    except (ValueError, RecursionError, ValidationError):
        return
    for event in events:
        read_or_refused(lambda event=event: on_report(job("a", state=state), event.model_dump()))


@given(noise(b'{"id": "%s", "path": "a/b", "parts": 3, "done": false}' % (b"0" * 32)))
def test_the_record_of_an_upload(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uploads = Uploads(Path(folder))
        created = uploads.create("a/b", 3)
        (Path(folder) / created.id / "upload.json").write_bytes(
            content.replace(b"0" * 32, created.id.encode())
        )
        try:
            upload = uploads.find(created.id)
        except NotFound:
            return
        kinds = [type(value) for value in (upload.path, upload.parts, upload.done)]
        assert (upload.id, kinds) == (created.id, [str, int, bool])


@given(noise(b'{"pid": %d, "url": "http://127.0.0.1:5"}' % os.getpid(), b'{"pid":' * 3000))
def test_a_damaged_server_file_is_detected(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = ServerFolder(Path(folder))
        server.info.write_bytes(content)
        announced = serving._is_announced(server)  # pyright: ignore[reportPrivateUsage]
        assert not announced or str(os.getpid()).encode() in content


@given(noise(b"0", b"9" * 5000, "٣".encode()))
def test_the_port_of_the_last_server(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = ServerFolder(Path(folder))
        server.port.write_bytes(content)
        serving._bind(server, "127.0.0.1", None).close()  # pyright: ignore[reportPrivateUsage]


@given(
    noise(b'port = 5000\nhost = "::1"\npoll_seconds = 2', b"port = " + b"9" * 5000, b"a = [" * 3000)
)
def test_the_settings_of_the_home(content: bytes) -> None:
    read_or_refused(lambda: parse_config(content, "config.toml"))


@given(noise(b"kD0-_aZ", b"a\nb"))
def test_the_secret_of_the_home(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "token"
        path.write_bytes(content)
        read_or_refused(lambda: serving._read_or_create_secret(path))  # pyright: ignore[reportPrivateUsage]
