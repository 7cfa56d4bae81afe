"""Sends what is on disk to the server, by offset, until the last byte is acknowledged."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from itertools import chain, repeat
from typing import Any, Iterator

from retarget.runner.command import Ranks
from retarget.runner.durations import show_duration
from retarget.runner.errors import AttemptOver, Refused, Unreachable
from retarget.runner.files import open_plain
from retarget.runner.folder import Folder, Journal, is_full
from retarget.runner.keep import Keeper
from retarget.runner.log_times import LogTimes
from retarget.runner.merge import Merge
from retarget.runner.outputs import Collector
from retarget.runner.secrets import Secrets, read_masked
from retarget.runner.server import Server
from retarget.runner.stop import StopSignal
from retarget.runner.track_upload import Lines

_CHUNK_BYTES = 1 << 20
_HEARTBEAT_SECONDS = 5.0
_QUICK_BYTES = 1 << 19  # less than this is sent so fast that events need not go first
_FILE_COST_BYTES = 1 << 12  # what sending a file costs, whatever its size
_STREAMS_SECONDS = 0.05  # between two looks at the streams while the script runs
_TRACK_SECONDS = 0.25  # between two looks at the lines that the script logs
_SCAN_SECONDS = 1.0  # between two looks for new files in logs/ and for new artifacts
_COLLECT_SECONDS = 5.0  # between two looks for finished files in outputs/


class Reporter:
    """Works in its own thread while the script runs, and in the caller's thread at the end."""

    def __init__(
        self,
        folder: Folder,
        journal: Journal,
        stop_signal: StopSignal,
        ranks: Ranks,
        secrets: Secrets,
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._times = LogTimes()
        self._merge = Merge(folder) if ranks.is_split else None
        self._stop_signal = stop_signal
        self._server = Server(folder, ranks.node)
        self._node = ranks.node
        self._secrets = secrets
        self._lost_after_seconds: float | None = None
        self._server_seen_at = boot_time()
        self._collector = Collector(folder, secrets)
        self._lines = Lines(folder, secrets)
        self._keeper: Keeper | None = None
        self._events_acked = 0
        self._offsets: dict[str, int] = {}
        self._files: dict[str, str] = {}
        self._refused: dict[str, int] = {}  # by stream: the connection that refused it last
        self._reported_at = 0.0
        self._last_error = ""
        self._tracked_at = 0.0
        self._scanned_at = 0.0
        self._collected_at = 0.0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self, lost_after_seconds: float | None) -> None:
        """Report in the background. May be called again.

        After `lost_after_seconds` without the server, stop the script.
        """
        self._lost_after_seconds = lost_after_seconds
        if self._thread is None and self._server.exists:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def finish(self, ending: dict[str, Any], linger_seconds: float) -> bool:
        """Send everything, then `ending` as the last event. False: no server for too long.

        The last event is written only when everything before it has arrived, so that a job never
        ends before its log does.
        """
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if not self._server.exists:
            self._journal.add("finished", **ending)
            return True
        try:
            return self._retry(self._send_everything, linger_seconds) and self._retry(
                lambda: self._send_ending(ending), linger_seconds
            )
        except AttemptOver:
            return True
        finally:
            self._server.keep()

    def _send_everything(self) -> None:
        self._update_merged()  # before the files that it reads are masked
        self._secrets.mask_files(self._server)
        self._scan_logs()
        if self._last_error or not self._is_quick():
            self._report_progress()  # the rest takes a while: report what has happened so far
        self._send_streams()
        self._lines.send(self._server, last=True)
        self._collector.send_artifacts(self._server)
        self._collector.send(self._server, min_age_seconds=0.0)
        self._send_kept()

    def _send_kept(self) -> None:
        """Send what the script wrote outside of outputs/ and logs/."""
        if self._keeper is None:
            self._keeper = Keeper(self._folder, self._journal, self._secrets, self._node)
        if self._keeper.choose() > _QUICK_BYTES:
            self._report_progress()
        self._keeper.send(self._server)

    def _send_ending(self, ending: dict[str, Any]) -> None:
        if self._journal.find("finished") is None:
            self._journal.add(
                "finished", removed_outputs=self._collector.find_removed(self._server), **ending
            )
        self._send_streams()
        self._send_events(self._journal.seq)
        if self._events_acked < self._journal.seq:
            raise Unreachable("the server has not acknowledged the last event")

    def _is_quick(self) -> bool:
        """Return whether sending everything would take almost no time."""
        streams = self._folder.streams
        logs = [os.path.join(streams, name) for name in os.listdir(streams)]
        budget = _QUICK_BYTES
        for path in chain(logs, self._files.values(), self._collector.paths()):
            budget -= _FILE_COST_BYTES + _size(os.path.join(self._folder.work, path))
            if budget < 0:
                return False
        return True

    def _retry(self, step: Any, linger_seconds: float) -> bool:
        pauses, deadline = _pauses(), time.monotonic() + linger_seconds
        while True:
            try:
                step()
                return True
            except (Unreachable, OSError) as error:
                if isinstance(error, OSError) and not is_full(error):
                    raise
                self._log_once(error)
                if self._stop_signal.terminated or time.monotonic() > deadline:
                    return False
                time.sleep(next(pauses))

    def _log_once(self, error: Exception) -> None:
        """Log to runner.log why nothing can be sent, unless the last error was the same."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            try:
                sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}\n")
                sys.stderr.flush()
            except OSError:
                pass  # the disk of the log is full as well

    def _work(self) -> None:
        pauses = _pauses()
        while not self._ending.is_set():
            try:
                self._round()
                pauses = _pauses()
            except (Unreachable, OSError) as error:
                if not self._folder.has("launch.json"):
                    self._stop_signal.stop("canceled", "the folder of this launch was removed")
                    return
                self._log_once(error)
                self._record_sizes()
                if self._is_lost():
                    silence = show_duration(self._lost_after_seconds or 0.0)
                    reason = f"the server was unreachable for {silence}"
                    self._stop_signal.stop("lost", reason)
                    return
                self._ending.wait(next(pauses))
            except AttemptOver as over:
                self._stop_signal.stop("canceled", f"the server gave up this attempt: {over}")
                return
            except Exception:  # noqa: BLE001 - the edge of a thread: the log must go on
                traceback.print_exc()
                self._server.close()
                self._ending.wait(next(pauses))
            self._ending.wait(_STREAMS_SECONDS)

    def _is_lost(self) -> bool:
        silence = boot_time() - self._server_seen_at
        return self._lost_after_seconds is not None and silence > self._lost_after_seconds

    def _round(self) -> None:
        now = time.monotonic()
        unsent = self._journal.seq > self._events_acked
        if unsent or now - self._reported_at > _HEARTBEAT_SECONDS:
            self._report_progress()
        if now - self._scanned_at > _SCAN_SECONDS:
            self._scanned_at = now
            self._scan_logs()
            self._collector.send_artifacts(self._server)
        self._send_streams()
        if now - self._tracked_at > _TRACK_SECONDS:
            self._tracked_at = now
            self._lines.send(self._server)
        # other nodes send their outputs once, at the end
        if now - self._collected_at > _COLLECT_SECONDS and not self._node:
            self._collected_at = now
            self._collector.send(self._server, min_age_seconds=2.0)

    def _report_progress(self) -> None:
        """Report the new events, after the lines that were logged before them.

        So a client that sees that the script has started has the whole log until then.
        """
        last = self._journal.seq
        self._send_stream_unless_refused("prepare", os.path.join(self._folder.streams, "prepare"))
        self._send_events(last)

    def _send_events(self, until: int) -> None:
        answer = self._server.report(self._journal.after(self._events_acked, until))
        events_acked = int(answer["events_acked"])
        if events_acked > self._journal.seq:
            raise Unreachable("the server has acknowledged events that this runner never had")
        self._events_acked = events_acked
        self._reported_at, self._server_seen_at = time.monotonic(), boot_time()
        if answer.get("cancel"):
            self._stop_signal.stop("canceled", "canceled")

    def _scan_logs(self) -> None:
        """Add the files under logs/ as streams."""
        for path in self._collector.files("logs"):
            self._files.setdefault(self._collector.name(path, self._server), path)

    def _update_merged(self) -> None:
        if self._merge is not None:
            self._merge.update(final=self._ending.is_set())

    def _send_streams(self) -> None:
        self._update_merged()
        for name in os.listdir(self._folder.streams):
            self._files.setdefault(name, os.path.join(self._folder.streams, name))
        for stream, path in list(self._files.items()):
            self._send_stream_unless_refused(stream, path)

    def _record_sizes(self) -> None:
        """Record how far the streams are now, for a server that is away."""
        for name in os.listdir(self._folder.streams):
            self._times.record_size(name, _size(os.path.join(self._folder.streams, name)))

    def _send_stream_unless_refused(self, stream: str, path: str) -> None:
        if self._refused.get(stream) == self._server.connections:
            return
        try:
            self._send_stream(stream, path)
        except Refused as error:
            if stream not in self._refused:
                self._folder.log(f"retarget: {stream} is not streamed: {error}")
            self._refused[stream] = self._server.connections

    def _send_stream(self, stream: str, path: str) -> None:
        sent = self._offsets.get(stream, 0)
        try:
            size = os.stat(os.path.join(self._folder.work, path)).st_size
            if size <= sent:
                return
            if not self._ending.is_set():  # at the end, the time of the exit is known
                self._times.record_size(stream, size)
            # relative paths are in the work folder, where the script can put anything
            file = open_plain(path) if os.path.isabs(path) else self._collector.open(path)
        except OSError:
            return  # the script has removed the log, or replaced it
        with file:
            # Up to its size at the beginning: a log that keeps growing would block the others.
            while sent < size:
                masker, final = self._secrets.masker(self._server), self._ending.is_set()
                content = read_masked(file, sent, _CHUNK_BYTES, masker, final=final)
                if not content:
                    return  # the rest may be the beginning of a secret
                marks = self._times.marks(stream, sent + len(content))
                acked = self._server.append(self._server_name(stream), sent, content, marks)
                # at most what is on disk: a script may cut short what an earlier runner sent
                sent = self._offsets[stream] = min(acked, max(size, sent + len(content)))
                self._times.drop(stream, sent)

    def _server_name(self, stream: str) -> str:
        """Return the name of a stream on the server, which has those of all nodes together."""
        return (
            stream
            if not self._node or stream.startswith("rank-")
            else f"node-{self._node}/{stream}"
        )


def _pauses() -> Iterator[float]:
    """Yield the seconds before each retry: few at first, as a relay port may open any time."""
    yield from repeat(0.01, 60)
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 2, 2.0)


def boot_time() -> float:
    """Return the time since boot, including time asleep where the system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # removed in the meantime
