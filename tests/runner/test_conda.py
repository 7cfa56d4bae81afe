"""Conda environments come from their channel; without one, from PyPI, and that is said."""

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from pathlib import Path

import pytest

from retarget.core.environments import Environment
from tests.runner.workshop import Workshop, wheel

pytest.importorskip("rattler")
_SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[platform.machine()]
_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def _package(channel: Path, name: str, version: str, members: dict[str, bytes | str]) -> None:
    """Put a package into a channel: bytes are a program's, a text is where a link leads."""
    index: dict[str, object] = {
        "name": name,
        "version": version,
        "build": "0",
        "build_number": 0,
        "depends": [],
    }
    index |= {"subdir": _SUBDIR}
    paths = [_path(path, content) for path, content in members.items()]
    info: dict[str, bytes | str] = {
        "info/index.json": json.dumps(index).encode(),
        "info/files": "".join(f"{path}\n" for path in members).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
    }
    folder = channel / _SUBDIR
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{version}-0.tar.bz2", "w:bz2") as archive:
        for path, content in (info | members).items():
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    _index(channel)


def _path(path: str, content: bytes | str) -> dict[str, object]:
    kind = "softlink" if isinstance(content, str) else "hardlink"
    held = b"" if isinstance(content, str) else content
    digest = hashlib.sha256(held).hexdigest()
    return {"_path": path, "path_type": kind, "sha256": digest, "size_in_bytes": len(held)}


def _index(channel: Path) -> None:
    """Write the list of what is in a channel, as `conda index` does."""
    (channel / "noarch").mkdir(exist_ok=True)
    for subdir in (_SUBDIR, "noarch"):
        found: dict[str, object] = {}
        for path in (channel / subdir).glob("*.tar.bz2"):
            with tarfile.open(path) as archive:
                index = archive.extractfile("info/index.json")
                assert index is not None
                about = json.load(index)
            content = path.read_bytes()
            about |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            found[path.name] = about
        listing = {"info": {"subdir": subdir}, "packages": found, "packages.conda": {}}
        (channel / subdir / "repodata.json").write_text(json.dumps(listing))


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """A channel with a Python, which is this one, and a program."""
    real = os.path.realpath(sys.executable)
    members: dict[str, bytes | str] = {
        "bin/python": real,
        "pyvenv.cfg": f"home = {os.path.dirname(real)}\n".encode(),
        "lib/python" + _VERSION + "/site-packages/.keep": b"",
    }
    _package(tmp_path / "channel", "python", f"{_VERSION}.99", members)
    _package(tmp_path / "channel", "greet", "1.2", {"bin/greet": b"#!/bin/sh\necho hello\n"})
    return tmp_path / "channel"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))


def _wanted(channel: Path | str, *conda: str, pip: tuple[str, ...] = ()) -> Environment:
    address = f"file://{channel}" if isinstance(channel, Path) else channel
    return Environment(kind="system", channels=(address,), conda=conda, pip=pip)


def test_packages_come_from_the_channel(workshop: Workshop, channel: Path) -> None:
    script = "greet; which python; python -c 'import sys; print(sys.prefix)'"
    heard = workshop.run("sh", "-c", script, environment=_wanted(channel, "greet=1.2"))
    assert heard.finished["outcome"] == "succeeded", heard.stream("prepare").decode()
    greeting, python, prefix = heard.stream().decode().split()
    assert greeting == "hello"
    assert python == f"{prefix}/bin/python"
    assert prefix.startswith(str(workshop.root / "environments"))
    assert b"greet 1.2 0" in heard.stream("prepare")
    assert _how(heard.events) == "conda"


def test_pip_packages_go_on_top(workshop: Workshop, channel: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}", "tinypkg")
    wanted = _wanted(channel, "greet", pip=pip)
    script = "greet; python -c 'import tinypkg; print(tinypkg.VERSION)'"
    heard = workshop.run("sh", "-c", script, environment=wanted)
    assert heard.stream() == b"hello\n1.0\n", heard.stream("prepare").decode()


def test_what_the_channel_has_not_fails_in_the_solvers_words(
    workshop: Workshop, channel: Path
) -> None:
    heard = workshop.run("true", environment=_wanted(channel, "greet>=7"))
    assert heard.finished["outcome"] == "failed"
    assert heard.finished["reason"].startswith("environment: ")
    assert "greet >=7" in heard.finished["reason"]
    assert workshop.environments() == []


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/channel", "http://no-such-host.invalid/conda"]
)
def test_without_a_channel_they_come_from_pypi_and_that_is_said(
    workshop: Workshop, tmp_path: Path, address: str
) -> None:
    wheel(tmp_path / "wheels")
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}")
    wanted = _wanted(address, "tinypkg=1.0", "libgomp", pip=pip)
    heard = workshop.run("python", "-c", "import tinypkg", environment=wanted)
    said = heard.stream("prepare").decode()
    assert heard.finished["outcome"] == "succeeded", said
    assert f"conda channels not used: {address} cannot be reached" in said
    assert "from PyPI instead: tinypkg==1.0.*" in said
    assert "not on PyPI, left out: libgomp" in said
    assert _how(heard.events) == "pypi for conda"


def test_a_machine_without_rattler_says_so(workshop: Workshop, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    workshop.node["conda"] = None
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}")
    wanted = _wanted("conda-forge", "tinypkg", pip=pip)
    heard = workshop.run("python", "-c", "import tinypkg", environment=wanted)
    assert heard.finished["outcome"] == "succeeded"
    assert b"py-rattler is not installed here" in heard.stream("prepare")


def _how(events: list[dict[str, object]]) -> object:
    return next(event["how"] for event in events if event["kind"] == "environment")
