"""Brings what is on disk to the server, by offset, until the last byte is confirmed."""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import chain, repeat
from typing import Any, Iterator

from retarget.runner.errors import Over, Refused, Unreachable
from retarget.runner.files import open_plain
from retarget.runner.folder import Folder, Journal, is_full
from retarget.runner.lines import Lines
from retarget.runner.orders import Orders
from retarget.runner.outputs import Collector, shown
from retarget.runner.server import Server

_CHUNK = 1 << 20
_HEARTBEAT = 5.0
_LITTLE = 1 << 19  # bytes that are sent so fast that nobody need be told of it before
_EACH = 1 << 12  # bytes that sending a file is worth, whatever its size
_LOOK = 0.05  # how often the streams are looked at while the script runs
_TRACK = 0.25  # how often what the script tracks is looked at
_SCAN = 1.0  # how often logs/ is looked at for new files, and for new artifacts
_COLLECT = 5.0  # how often outputs/ is looked at for finished files


class Reporter:
    """Works in a thread of its own while the script runs, and in the caller's at the end."""

    def __init__(
        self,
        folder: Folder,
        journal: Journal,
        orders: Orders,
        node: int = 0,
        fence: float | None = None,
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._orders = orders
        self._server = Server(folder, node)
        self._node = node
        self._fence = fence
        self._reached = now()
        self._collector = Collector(folder)
        self._lines = Lines(folder)
        self._confirmed = 0
        self._offsets: dict[str, int] = {}
        self._files: dict[str, str] = {}
        self._refused: set[str] = set()
        self._spoke = 0.0
        self._trouble = ""
        self._tracked = 0.0
        self._scanned = 0.0
        self._collected = 0.0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self) -> None:
        """Report in the background. May be called again."""
        if self._thread is None and self._server.exists:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def finish(self, ending: dict[str, Any], linger: float) -> bool:
        """Send all that is left, then `ending` as the last event. False: no server, for too long.

        The last event is written down only when everything before it has arrived, so that a job
        never ends before its log does.
        """
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if not self._server.exists:
            self._journal.add("finished", **ending)
            return True
        try:
            return self._insist(self._send_everything, linger) and self._insist(
                lambda: self._send_ending(ending), linger
            )
        except Over:
            return True
        finally:
            self._server.keep()

    def _send_everything(self) -> None:
        self._scan_logs()
        if self._trouble or not self._is_little():
            self._send_news()  # it takes a while: tell what has happened until now
        self._send_streams()
        self._lines.send(self._server, last=True)
        self._collector.send_artifacts(self._server)
        self._collector.send(self._server, settled=0.0)

    def _send_ending(self, ending: dict[str, Any]) -> None:
        if self._journal.find("finished") is None:
            self._journal.add("finished", gone=self._collector.gone(), **ending)
        self._send_streams()
        self._send_events(len(self._journal.events))
        if self._confirmed < len(self._journal.events):
            raise Unreachable("the server has not taken in how it ended")

    def _is_little(self) -> bool:
        """Tell whether all there is to send, sent already or not, is gone in no time."""
        streams = self._folder.streams
        logs = [os.path.join(streams, name) for name in os.listdir(streams)]
        left = _LITTLE
        for path in chain(logs, self._files.values(), self._collector.paths()):
            left -= _EACH + _size(os.path.join(self._folder.work, path))
            if left < 0:
                return False
        return True

    def _insist(self, step: Any, linger: float) -> bool:
        pauses, deadline = _pauses(), time.monotonic() + linger
        while True:
            try:
                step()
                return True
            except (Unreachable, OSError) as error:
                if isinstance(error, OSError) and not is_full(error):
                    raise
                self._note(error)
                if self._orders.terminated or time.monotonic() > deadline:
                    return False
                time.sleep(next(pauses))

    def _note(self, error: Exception) -> None:
        """Say in the runner's own log why nothing gets through, once for each reason."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            try:
                sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}\n")
                sys.stderr.flush()
            except OSError:
                pass  # that disk is full: it is the trouble

    def _work(self) -> None:
        pauses = _pauses()
        while not self._ending.is_set():
            try:
                self._round()
                pauses = _pauses()
            except (Unreachable, OSError) as error:
                if not self._folder.has("launch.json"):
                    self._orders.stop("canceled", "the folder of this launch was removed")
                    return
                self._note(error)
                if self._fence is not None and now() - self._reached > self._fence:
                    self._orders.stop("lost", f"no server was reached for {self._fence:g} s")
                    return
                self._ending.wait(next(pauses))
            except Over as over:
                self._orders.stop("canceled", f"the server has given this attempt up: {over}")
                return
            self._ending.wait(_LOOK)

    def _round(self) -> None:
        moment = time.monotonic()
        if len(self._journal.events) > self._confirmed or moment - self._spoke > _HEARTBEAT:
            self._send_news()
        if moment - self._scanned > _SCAN:
            self._scanned = moment
            self._scan_logs()
            self._collector.send_artifacts(self._server)
        self._send_streams()
        if moment - self._tracked > _TRACK:
            self._tracked = moment
            self._lines.send(self._server)
        if moment - self._collected > _COLLECT and not self._node:  # of others at the end, once
            self._collected = moment
            self._collector.send(self._server, settled=2.0)

    def _send_news(self) -> None:
        """Report what has happened, after the words that came before it.

        So whoever hears that the script has started has all that was said until then.
        """
        happened = len(self._journal.events)
        self._send_stream_unless_refused("prepare", os.path.join(self._folder.streams, "prepare"))
        self._send_events(happened)

    def _send_events(self, until: int) -> None:
        answer = self._server.report(self._journal.events[self._confirmed : until])
        self._confirmed = int(answer["confirmed"])
        self._spoke, self._reached = time.monotonic(), now()
        if answer.get("order") == "cancel":
            self._orders.stop("canceled", "canceled")

    def _scan_logs(self) -> None:
        """Take the files under logs/ as streams of their own."""
        for path in self._collector.files("logs"):
            self._files.setdefault(shown(path), path)

    def _send_streams(self) -> None:
        for name in os.listdir(self._folder.streams):
            self._files.setdefault(name, os.path.join(self._folder.streams, name))
        for stream, path in list(self._files.items()):
            self._send_stream_unless_refused(stream, path)

    def _send_stream_unless_refused(self, stream: str, path: str) -> None:
        if stream in self._refused:
            return
        try:
            self._send_stream(stream, path)
        except Refused as error:
            self._refused.add(stream)
            self._folder.say(f"retarget: {stream} is not streamed: {error}")

    def _send_stream(self, stream: str, path: str) -> None:
        sent = self._offsets.get(stream, 0)
        try:
            size = os.stat(os.path.join(self._folder.work, path)).st_size
            if size <= sent:
                return
            # those of the script lie below its work folder, where it can put anything
            file = open_plain(path) if os.path.isabs(path) else self._collector.open(path)
        except OSError:
            return  # a log the script has removed, or made something else
        with file:
            # Up to where it was: one that grows without end would keep all others waiting.
            while sent < size:
                file.seek(sent)
                content = file.read(_CHUNK)
                if not content:
                    return
                sent = self._offsets[stream] = self._server.append(
                    self._shown(stream), sent, content
                )

    def _shown(self, stream: str) -> str:
        """Return the name by which the server has a stream: those of all nodes are together."""
        return (
            stream
            if not self._node or stream.startswith("rank-")
            else f"node-{self._node}/{stream}"
        )


def _pauses() -> Iterator[float]:
    """Tell how long to wait before each new try: hardly at first, as a door may open any time."""
    yield from repeat(0.01, 60)
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 2, 2.0)


def now() -> float:
    """Return a time that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # removed meanwhile
