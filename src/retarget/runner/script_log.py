"""What the log of a script says about its end."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from retarget.runner.command import Ranks
    from retarget.runner.folder import Folder
    from retarget.runner.secrets import Secrets


class ScriptLog:
    """The output of every rank on this node."""

    def __init__(self, folder: Folder, ranks: Ranks, secrets: Secrets) -> None:
        self._folder = folder
        self._ranks = ranks
        self._secrets = secrets

    def describe_failure(self, rank: int, title: str, code: int) -> str:
        """Return the reason of a rank that ended with this exit code."""
        # only if it failed
        from retarget.runner.failure import describe_failure, find_cause, find_last_line

        tail, roots = self._tail(rank), self._roots()
        return describe_failure(title, code, find_cause(tail, roots), find_last_line(tail, roots))

    def last_exception(self) -> str:
        """Return the exception that the log of a rank ends with; empty if there is none."""
        from retarget.runner.failure import find_last_exception

        for rank in range(self._ranks.local_size):
            exception = find_last_exception(self._tail(rank), self._roots())
            if exception:
                return exception
        return ""

    def _tail(self, rank: int) -> bytes:
        """Return the last bytes that a rank wrote, masked: a reason quotes nothing else.

        If it wrote to stderr apart, these come last: that is where errors are.
        """
        streams = self._ranks.streams(rank)
        return self._secrets.mask_output(b"".join(self._stream_tail(name) for name in streams))

    def _stream_tail(self, stream: str) -> bytes:
        from retarget.runner.failure import TAIL_BYTES
        from retarget.runner.files import open_plain

        try:
            with open_plain(os.path.join(self._folder.streams, stream)) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return file.read(TAIL_BYTES)
        except OSError:
            return b""

    def _roots(self) -> list[str]:
        """Return the paths under which the script knows the code folder."""
        work = self._folder.work
        return sorted({work, os.path.realpath(work)}, key=len, reverse=True)
