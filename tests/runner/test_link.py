"""Both ends of a link may send requests and open channels, and neither can confuse the other."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from retarget.runner.link import AGENT, DRIVER, Broken, Channel, Failed, Link, Refused

_HEAD = struct.Struct(">BII")
_REQUEST, _ANSWER, _OPEN, _ACCEPT, _DATA, _CLOSE, _MORE = range(1, 8)
_LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB, several windows

Ends = tuple[Link, Link]
Opened = Callable[[Channel], Awaitable[None]]


def _run(work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        await asyncio.wait_for(work, 60)
        await asyncio.sleep(0.01)  # closed sockets are released

    asyncio.run(run())


async def _echo(channel: Channel) -> None:
    """Send back what comes through the channel. The destination says how it is answered."""
    if channel.destination["to"] != "echo":
        raise Refused(f"unknown destination {channel.destination['to']!r}")
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)
    back_reader, back_writer = await asyncio.open_connection(sock=there)

    async def send_back() -> None:
        while content := await back_reader.read(1 << 16):
            back_writer.write(content)
            await back_writer.drain()
        back_writer.close()

    sending = asyncio.ensure_future(send_back())
    await channel.accept()
    try:
        await channel.join(reader, writer)
    finally:
        writer.transport.abort()
        sending.cancel()
        back_writer.transport.abort()


async def _answer(request: dict[str, Any], attached: bytes) -> Any:
    if "fail" in request:
        raise OSError(28, "No space left on device")
    return {"seen": request, "size": len(attached)}


async def _connect(
    work: Callable[[Link, Link], Awaitable[None]], *, opened: Opened = _echo
) -> None:
    """Run `work` with both ends of a link."""
    first, second = socket.socketpair()
    links: list[Link] = []
    writers: list[asyncio.StreamWriter] = []
    for role, end in ((DRIVER, first), (AGENT, second)):
        reader, writer = await asyncio.open_connection(sock=end)
        writers.append(writer)
        links.append(Link(reader, writer, _answer, opened, role))
    running = [asyncio.ensure_future(link.run()) for link in links]
    try:
        await work(links[0], links[1])
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()


async def _joined(channel: Channel) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]:
    """Return the streams of somebody who uses a channel."""
    here, there = socket.socketpair()
    joining = asyncio.ensure_future(channel.join(*await asyncio.open_connection(sock=here)))
    return *(await asyncio.open_connection(sock=there)), joining


async def _exchange(link: Link, content: bytes) -> bytes:
    """Open a channel to the echo at the other end, and return what comes back through it."""
    channel = await link.open({"to": "echo"})
    await channel.accepted()
    reader, writer, joining = await _joined(channel)

    async def send() -> None:
        writer.write(content)
        await writer.drain()

    sending = asyncio.ensure_future(send())
    answer = await reader.readexactly(len(content))
    await sending
    writer.close()
    await joining
    return answer


def test_channels_that_both_ends_open_at_once_carry_their_own_bytes() -> None:
    async def check(driver: Link, agent: Link) -> None:
        contents = [
            f"{name} {number}".encode() for name in ("driver", "agent") for number in "1234"
        ]
        ends = [driver] * 4 + [agent] * 4
        answers = await asyncio.gather(*map(_exchange, ends, contents))
        assert answers == contents

    _run(_connect(check))


def test_a_stalled_channel_blocks_neither_the_others_nor_requests() -> None:
    async def check(driver: Link, agent: Link) -> None:
        stalled = await driver.open({"to": "echo"})
        reader, writer, joining = await _joined(stalled)  # nobody reads what comes back

        async def fill() -> None:
            while True:
                writer.write(_LARGE)
                await writer.drain()

        filling = asyncio.ensure_future(fill())
        assert await _exchange(agent, _LARGE) == _LARGE
        assert await _exchange(driver, _LARGE) == _LARGE
        assert (await driver.ask({"a": 1}, b"xyz")) == {"seen": {"a": 1}, "size": 3}
        assert not filling.done()
        filling.cancel()
        writer.transport.abort()
        await reader.read()
        await joining

    _run(_connect(check))


def test_an_answer_that_is_none_ends_the_link() -> None:
    async def check() -> None:
        here, there = socket.socketpair()
        link = Link(*await asyncio.open_connection(sock=here), _answer, _echo, DRIVER)
        running = asyncio.ensure_future(link.run())
        request = asyncio.ensure_future(link.ask({"a": 1}))
        _, their_writer = await asyncio.open_connection(sock=there)
        their_writer.write(_frame(_ANSWER, 1, b'{"value": 7}'))
        with pytest.raises(Broken, match="neither a result nor an error"):
            await running
        with pytest.raises(Broken, match="the connection was lost"):
            await request
        their_writer.close()

    _run(check())


def test_requests_of_both_ends_get_their_own_answers() -> None:
    async def check(driver: Link, agent: Link) -> None:
        numbers = range(50)
        request = [link.ask({"n": number}) for number in numbers for link in (driver, agent)]
        answers = await asyncio.gather(*request)
        assert [answer["seen"]["n"] for answer in answers] == [n for n in numbers for _ in "ab"]
        with pytest.raises(Failed, match="No space left on device"):
            await agent.ask({"fail": True})

    _run(_connect(check))


def test_a_destination_that_is_refused_gets_the_reason() -> None:
    async def check(driver: Link, agent: Link) -> None:
        for link in (driver, agent):
            channel = await link.open({"to": "moon"})
            with pytest.raises(Refused, match="unknown destination 'moon'"):
                await channel.accepted()
        assert await _exchange(driver, b"still works") == b"still works"

    _run(_connect(check))


def test_an_end_that_fails_to_serve_a_channel_says_why() -> None:
    async def fail(_: Channel) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    async def check(driver: Link, _: Link) -> None:
        channel = await driver.open({"to": "echo"})
        with pytest.raises(Refused, match="Connection refused"):
            await channel.accepted()

    _run(_connect(check, opened=fail))


def test_the_end_of_a_link_ends_its_channels_and_requests() -> None:
    async def check(driver: Link, agent: Link) -> None:
        channel = await driver.open({"to": "echo"})
        await channel.accepted()
        reader, writer, joining = await _joined(channel)
        pending = await driver.open({"to": "echo"})
        request = asyncio.ensure_future(driver.ask({"a": 1}))
        await asyncio.sleep(0)
        agent.abort()
        assert await reader.read() == b""
        await joining
        writer.close()
        with pytest.raises(Broken, match="the connection was lost"):
            await request
        with pytest.raises(Refused, match="the connection was lost"):
            await pending.accepted()

    _run(_connect(check))


def _open(number: int, destination: Any = None) -> bytes:
    return _frame(_OPEN, number, json.dumps(destination or {"to": "echo"}).encode())


def _frame(kind: int, number: int, content: bytes = b"", size: int | None = None) -> bytes:
    return _HEAD.pack(kind, number, len(content) if size is None else size) + content


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (_frame(_DATA, 1, size=1 << 31), "a frame of 2147483648 bytes"),
        (_frame(_DATA, 1, bytes((1 << 16) + 1)), "a frame of 65537 bytes"),
        (_open(2), "number 2 belongs to this end"),
        (_open(1) + _open(1), "number 1 is in use"),
        (_open(1, [1]), "not a JSON object"),
        (_open(1, {"port": 1}), "no destination"),
        (_frame(_OPEN, 1, b"["), "not a JSON object"),
        (_frame(_OPEN, 1, b"[" * 40_000), "not a JSON object"),
        (_frame(_REQUEST, 2, b"\0\0\0\2{}"), "number 2 belongs to this end"),
        (_frame(_REQUEST, 1, b"\0"), "a request of 1 byte"),
        (_open(1) + _frame(_MORE, 1, b"\0"), "a window of 1 byte"),
        (_open(1) + _frame(_MORE, 1, b"\xff" * 4), "was never sent"),
        (_frame(99, 1), "kind 99"),
        (_open(1) + _frame(_DATA, 1, bytes(1 << 16)) * 18, "more than its window"),
    ],
)
def test_what_is_not_the_protocol_ends_the_link(content: bytes, problem: str) -> None:
    """The agent reads what a hostile driver sends; the driver reads it with the same code."""

    async def ignore(_: Channel) -> None:
        await asyncio.sleep(60)

    async def check() -> None:
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        link = Link(reader, writer, _answer, ignore, AGENT)
        running = asyncio.ensure_future(link.run())
        their_reader, their_writer = await asyncio.open_connection(sock=there)
        their_writer.write(content)
        with pytest.raises(Broken, match=problem):
            await running
        await their_reader.read()  # closed
        their_writer.close()

    _run(check())


@pytest.mark.parametrize(
    "content",
    [
        _frame(_ANSWER, 7, b'{"result": 1}'),
        _frame(_DATA, 7, b"late"),
        _frame(_MORE, 7, b"\0\0\0\1"),
        _frame(_CLOSE, 7, b"\xff\xfe"),
        _frame(_ACCEPT, 7),
    ],
)
def test_what_comes_late_is_ignored(content: bytes) -> None:
    async def check() -> None:
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        running = asyncio.ensure_future(Link(reader, writer, _answer, _echo, AGENT).run())
        their_reader, their_writer = await asyncio.open_connection(sock=there)
        their_writer.write(content + _frame(_REQUEST, 1, b"\0\0\0\2{}"))
        kind, number, size = _HEAD.unpack(await their_reader.readexactly(_HEAD.size))
        assert (kind, number) == (_ANSWER, 1)
        assert json.loads(await their_reader.readexactly(size))["result"]["size"] == 0
        their_writer.close()
        await running

    _run(check())
