"""Uploads blobs: many small ones per request, large ones streamed from their file."""

from collections.abc import Callable
from pathlib import Path

from retarget.core.errors import Invalid
from retarget.sdk.http import Connection, Content
from retarget.sdk.records import view


class Uploads:
    """The blob store of the server, as a client uses it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def is_complete(self, snapshot: str, /) -> bool:
        """Whether the server has a snapshot with all its files."""
        body = {"snapshot": snapshot}
        answer = self._connection.post("/api/blobs/complete", body, repeatable=True)
        return view(answer, {"complete": bool})["complete"]

    def missing(self, sizes: dict[str, int], /) -> list[str]:
        """Return the digests that the server does not have, or only damaged. `sizes`: by digest."""
        body = {"digests": list(sizes), "sizes": list(sizes.values())}
        answer = self._connection.post("/api/blobs/missing", body, repeatable=True)
        return view(answer, {"missing": list[str]})["missing"]

    def put_many(self, items: list[tuple[str, bytes]], /) -> None:
        frames = (
            frame
            for digest, content in items
            for frame in (bytes.fromhex(digest), len(content).to_bytes(8, "big"), content)
        )
        self._connection.send("POST", "/api/blobs", b"".join(frames))

    def put_file(
        self, digest: str, path: Path, size: int, progress: Callable[[int], None], /
    ) -> None:
        content = Content(lambda: _SizedFile(path, size, progress), size)
        self._connection.send("PUT", f"/api/blobs/{digest}", content)


class _SizedFile:
    """The first `size` bytes of a file; reading fails if the file became shorter."""

    def __init__(self, path: Path, size: int, progress: Callable[[int], None]) -> None:
        try:
            self._file = path.open("rb")
        except OSError as error:  # else it would be taken for a fault of the connection
            raise Invalid(f"{path} can no longer be read: {error.strerror}") from error
        self._path = path
        self._remaining = size
        self._progress = progress

    def __enter__(self) -> "_SizedFile":
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def read(self, size: int = -1, /) -> bytes:
        piece = self._file.read(self._remaining if size < 0 else min(size, self._remaining))
        if self._remaining and not piece:
            raise Invalid(f"{self._path} became shorter while it was sent")
        self._remaining -= len(piece)
        self._progress(len(piece))
        return piece
