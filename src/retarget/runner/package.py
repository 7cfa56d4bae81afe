"""Packs the runner into one file that any Python >= 3.8 can run."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import marshal
import os
import zipfile
from pathlib import Path

from retarget.runner.folder import sync_folder

_HERE = Path(__file__).parent
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # the flags of a .pyc file
_built: dict[Path, Path] = {}  # by folder


def build_zipapp(folder: Path) -> Path:
    """Write the zipapp into `folder`, named by its content, and return it. Idempotent."""
    sources = {f"retarget/runner/{file.name}": file.read_bytes() for file in _modules()}
    # the runner does not import it, but unpacks it for the scripts of jobs
    tracking = _HERE.with_name("track").glob("*.py")
    sources.update({f"retarget/track/{file.name}": file.read_bytes() for file in tracking})
    digest = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:16]
    path = folder / f"runner-{digest}-{_tag()}.pyz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _build(path, sources)
    return path


def keep_zipapp(folder: Path) -> Path:
    """Return the zipapp in `folder`, which is built when it is missing."""
    if folder not in _built or not _built[folder].exists():
        _built[folder] = build_zipapp(folder)
    return _built[folder]


def _build(path: Path, sources: dict[str, bytes]) -> None:
    # All builders use the same name, one after the other: the next one cleans up after a builder
    # that was killed.
    part = path.with_suffix(".part")
    with part.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            part.unlink(missing_ok=True)
            return
        _write(str(part), sources)
        _sync(part)  # a damaged one would be used for ever
        part.rename(path)
        sync_folder(str(path.parent))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _modules() -> list[Path]:
    return sorted(_HERE.glob("*.py"))


def _tag() -> str:
    import sys

    return sys.implementation.cache_tag or "python"


def _write(path: str, sources: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", sources["retarget/runner/__main__.py"])
        archive.writestr("retarget/__init__.py", b"")
        for name, content in sources.items():
            archive.writestr(name, content)
        # Compiled as well: the same Python need not compile, and others ignore these files.
        for file in _modules():
            archive.writestr(f"retarget/runner/{file.stem}.pyc", _compiled(file))


def _compiled(file: Path) -> bytes:
    """Return the content of a .pyc file that is used without a look at its source (PEP 552)."""
    source = file.read_bytes()
    code = compile(source, f"retarget/runner/{file.name}", "exec", dont_inherit=True)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
    return header + marshal.dumps(code)
