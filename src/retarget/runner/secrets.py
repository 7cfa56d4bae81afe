"""The secrets of a launch: fetched from the server, kept in memory, masked in what is sent."""

from __future__ import annotations

import os

from retarget.runner.errors import Refused

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable

    from retarget.runner.folder import Folder
    from retarget.runner.masking import Masker
    from retarget.runner.server import Server

_CHUNK_BYTES = 1 << 20
_NOTEBOOK_AT = 3  # in the command `python -m retarget_notebook NOTEBOOK`: see notebook.py


class Secrets:
    def __init__(self, folder: Folder, launch: dict[str, Any]) -> None:
        self._folder = folder
        self.names: list[str] = list(launch.get("secrets") or ())
        self._key, self._processes = str(launch["key"]), int(launch["processes_per_node"])
        self.notebook = _executed_notebook(launch.get("command", []))  # its stem, if it is one
        self.values: dict[str, str] = {}
        self._masker: Masker | None = None
        self._are_files_masked = False

    def fetch(self, server: Server) -> None:
        """Get the values, unless they are known. Refused: a secret was deleted."""
        if self.names and self._masker is None:
            from retarget.runner.masking import Masker

            self.values = server.secrets()
            self._masker = Masker(self.values.values())

    def masker(self, server: Server) -> Masker | None:
        """Return what masks the values; None if there are none. It fetches them if necessary."""
        if self.names and self._masker is None:
            try:
                self.fetch(server)
            except Refused:
                from retarget.runner.masking import MaskEverything

                self._masker = MaskEverything()  # an earlier runner may have had the values
        return self._masker

    def mask(self, text: str) -> str:
        """Mask a string of this runner, which may quote the output of the script."""
        return text if self._masker is None else self._masker.text(text)

    def mask_path(self, path: str, server: Server) -> str:
        """Mask the path of a file, relative to the folder of its kind."""
        masker = self.masker(server)
        return path if masker is None else masker.path(path)

    def mask_output(self, content: bytes) -> bytes:
        """Mask what the script wrote; without the values, nothing of it may be quoted."""
        if self._masker is None:
            return b"" if self.names else content
        return self._masker.mask(content)

    def mask_files(self, server: Server) -> None:
        """Mask what the script has printed and logged on disk too. The script has ended.

        So nothing unmasked stays on this node while the server is unreachable.
        """
        masker = self.masker(server)
        if masker is None or self._are_files_masked:
            return
        for name in os.listdir(self._folder.streams):
            self._replace(os.path.join(self._folder.streams, name), _mask_stream(masker))
        for name in _names(self._folder.track):
            if name.endswith(".jsonl"):
                self._replace(os.path.join(self._folder.track, name), _mask_lines(masker))
        self._are_files_masked = True

    def remove_files(self) -> None:
        """Remove everything that may contain a secret. The server has it, masked."""
        if self.names:
            import shutil

            from retarget.runner.container_secrets import remove_secrets

            remove_secrets(self._key, self._processes)
            for path in (self._folder.streams, self._folder.track, self._folder.work):
                shutil.rmtree(path, ignore_errors=True)
            for name in ("sent.jsonl", "keep.json"):  # the names of files
                try:
                    os.unlink(self._folder.file(name))
                except OSError:
                    pass  # there is none

    def _replace(self, path: str, copy: Callable[[BinaryIO, BinaryIO], None]) -> None:
        """Replace a file by a masked copy at once: a half-masked value could not be found again."""
        from retarget.runner.files import open_plain

        part = self._folder.file("masked.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open_plain(path) as source, open(os.open(part, flags, 0o600), "wb") as new:
                copy(source, new)
            os.rename(part, path)
        except OSError:  # the disk is full: the file stays unmasked until its folder is removed
            if os.path.lexists(part):
                os.unlink(part)


def read_masked(
    file: BinaryIO, offset: int, length: int, masker: Masker | None, *, final: bool
) -> bytes:
    """Read up to `length` bytes of a file, masked. See `Masker.part`."""

    def read(at: int, count: int) -> bytes:
        file.seek(at)
        return file.read(count)

    if masker is None:
        return read(offset, length)
    return masker.part(read, offset, length, final=final)


def _mask_stream(masker: Masker) -> Callable[[BinaryIO, BinaryIO], None]:
    def copy(source: BinaryIO, new: BinaryIO) -> None:
        offset = 0
        while True:
            content = read_masked(source, offset, _CHUNK_BYTES, masker, final=True)
            if not content:
                return
            new.write(content)
            offset += len(content)

    return copy


def _mask_lines(masker: Masker) -> Callable[[BinaryIO, BinaryIO], None]:
    def copy(source: BinaryIO, new: BinaryIO) -> None:
        new.writelines(masker.lines(line) for line in source)

    return copy


def _executed_notebook(command: list[str]) -> str:
    if len(command) > _NOTEBOOK_AT and command[_NOTEBOOK_AT - 1] == "retarget_notebook":
        return os.path.splitext(os.path.basename(command[_NOTEBOOK_AT]))[0]
    return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []  # the script has logged nothing
