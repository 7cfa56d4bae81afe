"""Makes the runner into one file that any Python >= 3.8 can run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import py_compile
import tempfile
import zipfile
from pathlib import Path

_HERE = Path(__file__).parent
_kept: dict[Path, Path] = {}  # by the folder that they are in


def build_zipapp(folder: Path) -> Path:
    """Write the zipapp into `folder`, named by its content, and return it. May be repeated."""
    sources = {f"retarget/runner/{file.name}": file.read_bytes() for file in _modules()}
    # not for the runner itself, which unpacks it for the scripts of jobs
    tracking = _HERE.with_name("track").glob("*.py")
    sources.update({f"retarget/track/{file.name}": file.read_bytes() for file in tracking})
    digest = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:16]
    made = folder / f"runner-{digest}-{_tag()}.pyz"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _make(made, sources)
    return made


def keep_zipapp(folder: Path) -> Path:
    """Return the zipapp in `folder`: made when it is first asked for, and whenever it is gone."""
    if folder not in _kept or not _kept[folder].exists():
        _kept[folder] = build_zipapp(folder)
    return _kept[folder]


def _make(made: Path, sources: dict[str, bytes]) -> None:
    # One name for all who make it, and one after the other: whoever is killed leaves nothing that
    # the next one does not take over.
    part = made.with_suffix(".part")
    with part.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():
            part.unlink(missing_ok=True)
            return
        _write(str(part), sources)
        part.rename(made)


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
        # Compiled beside the source: the same Python skips the compiler, another one the file.
        for file in _modules():
            archive.writestr(f"retarget/runner/{file.stem}.pyc", _compiled(file))


def _compiled(file: Path) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        made = py_compile.compile(
            str(file),
            cfile=os.path.join(scratch, "module.pyc"),
            dfile=f"retarget/runner/{file.name}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        assert made is not None
        return Path(made).read_bytes()
