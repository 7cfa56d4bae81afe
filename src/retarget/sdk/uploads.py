"""Sending blobs: small ones many at a time, large ones streamed from their file."""

from collections.abc import Callable
from pathlib import Path

from retarget.core.errors import Invalid
from retarget.sdk.http import Connection, Content
from retarget.sdk.records import view


class Uploads:
    """The server's store of blobs, seen from the client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def is_whole(self, snapshot: str, /) -> bool:
        """Tell whether the server has a snapshot with all its files."""
        asked = {"snapshot": snapshot}
        answer = self._connection.post("/api/blobs/whole", asked, repeatable=True)
        return view(answer, {"whole": bool})["whole"]

    def missing(self, digests: list[str], /) -> list[str]:
        """Return those of `digests` that the server does not have."""
        asked = {"digests": digests}
        answer = self._connection.post("/api/blobs/missing", asked, repeatable=True)
        return view(answer, {"missing": list[str]})["missing"]

    def put_many(self, items: list[tuple[str, bytes]], /) -> None:
        frames = (
            part
            for digest, content in items
            for part in (bytes.fromhex(digest), len(content).to_bytes(8, "big"), content)
        )
        self._connection.send("POST", "/api/blobs", b"".join(frames))

    def put_file(
        self, digest: str, path: Path, size: int, progress: Callable[[int], None], /
    ) -> None:
        content = Content(lambda: _Measured(path, size, progress), size)
        self._connection.send("PUT", f"/api/blobs/{digest}", content)


class _Measured:
    """Exactly `size` bytes of a file; a shorter one is not sent to its end."""

    def __init__(self, path: Path, size: int, progress: Callable[[int], None]) -> None:
        try:
            self._file = path.open("rb")
        except OSError as error:  # no fault of the connection, which other ones would be
            raise Invalid(f"{path} cannot be read any more: {error.strerror}") from error
        self._path = path
        self._left = size
        self._progress = progress

    def __enter__(self) -> "_Measured":
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def read(self, size: int = -1, /) -> bytes:
        piece = self._file.read(self._left if size < 0 else min(size, self._left))
        if self._left and not piece:
            raise Invalid(f"{self._path} became shorter while it was being sent")
        self._left -= len(piece)
        self._progress(len(piece))
        return piece
