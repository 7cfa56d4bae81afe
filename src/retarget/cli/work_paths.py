"""Shows the paths of a job's work folder as paths of the user's own files."""

import os
import re
from pathlib import Path

_MAX_PATH_BYTES = 4096
_WORK = rb"/launches/[0-9a-f]{32}/work"
# in quotes a path may have spaces, as in a traceback; elsewhere it ends at one
_QUOTED = re.compile(rb'"/[^"\n]{0,4096}?' + _WORK + rb'(?:/([^"\n]*))?"')
_PLAIN = re.compile(
    rb"(?<![\w./-])/[^\s\"']{0,4096}?" + _WORK + rb"(?:/([^\s\"':,;)\]]*)|(?![\w./-]))"
)
_INCOMPLETE = re.compile(rb"(?:\"/[^\"\n]*|(?<![\w./-])/[^\s\"']*)\Z")


class WorkPaths:
    """Rewrites a stream of bytes for a terminal.

    A path of the work folder is shown as that of the same file in `code`, the folder that was
    sent, if it has that file; otherwise as the path within the code folder.
    """

    def __init__(self, code: Path | None = None) -> None:
        self._code = code
        self._held = b""

    @property
    def is_holding(self) -> bool:
        """Whether the last bytes wait for the rest of a path."""
        return bool(self._held)

    def feed(self, content: bytes) -> bytes:
        """Return what can be shown after these bytes."""
        content, self._held = self._held + content, b""
        end = content[-_MAX_PATH_BYTES:]
        incomplete = _INCOMPLETE.search(end)
        if incomplete:
            self._held = end[incomplete.start() :]
            content = content[: len(content) - len(self._held)]
        return self.shorten(content)

    def flush(self) -> bytes:
        """Return the bytes that were held back."""
        content, self._held = self._held, b""
        return self.shorten(content)

    def shorten(self, content: bytes) -> bytes:
        """Return these bytes with the user's own paths."""
        if b"/work" not in content:
            return content
        content = _QUOTED.sub(lambda match: b'"' + self._own(match[1]) + b'"', content)
        return _PLAIN.sub(lambda match: self._own(match[1]), content)

    def _own(self, inner: bytes | None) -> bytes:
        path = os.fsdecode(inner or b"")
        if self._code is None:
            return os.fsencode(path or ".")
        local = self._code / path
        if not os.path.exists(local) or "\0" in path:
            return os.fsencode(path or ".")
        relative = os.path.relpath(local)
        return os.fsencode(local if relative.startswith("..") else relative)


def shorten(text: str) -> str:
    """Return text with the paths of work folders relative to the code folder."""
    return os.fsdecode(WorkPaths().shorten(os.fsencode(text)))
