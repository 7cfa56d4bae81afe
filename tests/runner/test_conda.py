"""Conda environments come from their channel, or from PyPI if it is unreachable."""

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from retarget.core.environments import Environment
from retarget.core.locks import Lock
from retarget.runner.built import remove
from tests.runner.harness import RunnerHarness, wheel

pytest.importorskip("rattler")
_SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[platform.machine()]
_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def _package(channel: Path, name: str, version: str, members: dict[str, bytes | str]) -> None:
    """Add a package to a channel; a member is the bytes of a program or the target of a link."""
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
    data = b"" if isinstance(content, str) else content
    digest = hashlib.sha256(data).hexdigest()
    return {"_path": path, "path_type": kind, "sha256": digest, "size_in_bytes": len(data)}


def _index(channel: Path) -> None:
    """Write the index of a channel, as `conda index` does."""
    (channel / "noarch").mkdir(exist_ok=True)
    for subdir in (_SUBDIR, "noarch"):
        records: dict[str, object] = {}
        for path in (channel / subdir).glob("*.tar.bz2"):
            with tarfile.open(path) as archive:
                index = archive.extractfile("info/index.json")
                assert index is not None
                record = json.load(index)
            content = path.read_bytes()
            record |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            records[path.name] = record
        repodata = {"info": {"subdir": subdir}, "packages": records, "packages.conda": {}}
        (channel / subdir / "repodata.json").write_text(json.dumps(repodata))


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """A channel with this Python and a program."""
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


def _environment(channel: Path | str, *conda: str, pip: tuple[str, ...] = ()) -> Environment:
    address = f"file://{channel}" if isinstance(channel, Path) else channel
    return Environment(kind="system", channels=(address,), conda=conda, pip=pip)


def test_packages_come_from_the_channel(harness: RunnerHarness, channel: Path) -> None:
    script = "greet; which python; python -c 'import sys; print(sys.prefix)'"
    reports = harness.run("sh", "-c", script, environment=_environment(channel, "greet=1.2"))
    assert reports.finished["outcome"] == "succeeded", reports.stream("prepare").decode()
    greeting, python, prefix = reports.stream().decode().split()
    assert greeting == "hello"
    assert python == f"{prefix}/bin/python"
    assert prefix.endswith("/layer")
    assert b"greet 1.2 0" in reports.stream("prepare")
    assert _how(reports.events) == "conda"


def test_pip_packages_go_on_top(harness: RunnerHarness, channel: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}", "tinypkg")
    environment = _environment(channel, "greet", pip=pip)
    script = "greet; python -c 'import tinypkg; print(tinypkg.VERSION)'"
    reports = harness.run("sh", "-c", script, environment=environment)
    assert reports.stream() == b"hello\n1.0\n", reports.stream("prepare").decode()


def test_conda_packages_are_locked_and_installed_exactly(
    harness: RunnerHarness, channel: Path, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels")
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}", "tinypkg")
    environment = _environment(channel, "greet", pip=pip)
    first = harness.run("greet", environment=environment)
    event = next(event for event in first.events if event["kind"] == "environment")
    lock = Lock.model_validate(event["lock"])
    assert (lock.source, lock.python, lock.packages) == (
        "conda",
        f"{_VERSION}.99",
        ("tinypkg==1.0",),
    )
    assert [line.rpartition("::")[2] for line in lock.conda] == [
        "greet==1.2=0",
        f"python=={_VERSION}.99=0",
    ]
    _package(channel, "greet", "1.3", {"bin/greet": b"#!/bin/sh\necho newer\n"})
    wheel(tmp_path / "wheels", version="1.1")
    assert remove(str(harness.root / "environments"), str(environment.digest)) == "removed"
    script = "greet; python -c 'import tinypkg; print(tinypkg.VERSION)'"
    again = harness.run("sh", "-c", script, environment=environment, locks=(lock,))
    assert again.stream() == b"hello\n1.0\n", again.stream("prepare").decode()
    assert remove(str(harness.root / "environments"), str(environment.digest)) == "removed"
    newest = harness.run("sh", "-c", script, environment=environment)
    assert newest.stream() == b"newer\n1.1\n", newest.stream("prepare").decode()


def test_a_package_that_the_channel_lacks_fails_with_the_solvers_message(
    harness: RunnerHarness, channel: Path
) -> None:
    reports = harness.run("true", environment=_environment(channel, "greet>=7"))
    assert reports.finished["outcome"] == "failed"
    assert reports.finished["reason"].startswith("environment: ")
    assert "greet >=7" in reports.finished["reason"]
    assert harness.environments() == []


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/channel", "http://no-such-host.invalid/conda"]
)
def test_without_a_channel_packages_come_from_pypi_and_that_is_logged(
    harness: RunnerHarness, tmp_path: Path, address: str
) -> None:
    wheel(tmp_path / "wheels")
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}")
    environment = _environment(address, "tinypkg=1.0", pip=pip)
    reports = harness.run("python", "-c", "import tinypkg", environment=environment)
    log = reports.stream("prepare").decode()
    assert reports.finished["outcome"] == "succeeded", log
    assert f"conda channels not used: channel {address} cannot be reached" in log
    assert log.count(": building") == 1
    assert "PyPI packages instead: tinypkg==1.0.*" in log
    assert _how(reports.events) == "built from PyPI"
    assert _lock(reports.events)["source"] == "pypi"
    again = harness.run("python", "-c", "import tinypkg", environment=environment)
    assert b"building" not in again.stream("prepare")
    assert _how(again.events) == "built from PyPI"


def test_no_package_is_dropped_without_a_request(harness: RunnerHarness, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}")
    environment = _environment("http://127.0.0.1:9/x", "tinypkg=1.0", "libgomp", pip=pip)
    reports = harness.run("true", environment=environment)
    assert reports.finished["outcome"] == "failed"
    reason = reports.finished["reason"]
    assert "PyPI has no equivalent of libgomp; " in reason
    assert "--conda-from-pypi" in reason
    assert harness.environments() == []
    requested = environment.model_copy(update={"conda_from_pypi": True})
    assert requested.digest != environment.digest
    reports = harness.run("python", "-c", "import tinypkg", environment=requested)
    assert reports.finished["outcome"] == "succeeded", reports.stream("prepare").decode()
    assert b"built without libgomp because of --conda-from-pypi" in reports.stream("prepare")


def test_a_strict_policy_takes_nothing_from_pypi(harness: RunnerHarness, channel: Path) -> None:
    environment = _environment("http://127.0.0.1:9/x", "tinypkg")
    reports = harness.run("true", environment=environment, conda_policy="strict")
    assert "`conda = strict` allows nothing else" in reports.finished["reason"]
    greeted = harness.run(
        "greet", environment=_environment(channel, "greet"), conda_policy="strict"
    )
    assert greeted.stream() == b"hello\n"


def test_a_substitute_is_not_used_when_the_channels_are_back(
    harness: RunnerHarness, channel: Path, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels")
    _package(channel, "tinypkg", "1.0", {"bin/tiny": b"#!/bin/sh\necho channel\n"})
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}")
    environment = _environment(channel, "tinypkg", pip=pip)
    channel.rename(tmp_path / "away")
    substitute = harness.run("python", "-c", "import tinypkg", environment=environment)
    assert _how(substitute.events) == "built from PyPI", substitute.stream("prepare").decode()
    (tmp_path / "away").rename(channel)
    real = harness.run("tiny", environment=environment)
    assert real.stream() == b"channel\n", real.stream("prepare").decode()
    assert _how(real.events) == "conda"
    channel.rename(tmp_path / "away")  # what was built from channels stays usable
    assert harness.run("tiny", environment=environment).stream() == b"channel\n"


def test_a_missing_rattler_is_logged(harness: RunnerHarness, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    harness.node["conda"] = None
    pip = ("--no-index", f"--find-links {tmp_path / 'wheels'}")
    environment = _environment("conda-forge", "tinypkg", pip=pip)
    reports = harness.run("python", "-c", "import tinypkg", environment=environment)
    assert reports.finished["outcome"] == "succeeded"
    assert b"py-rattler is not installed here" in reports.stream("prepare")
    harness.node["conda_obstacle"] = "this kind of target builds from PyPI"
    environment = _environment("conda-forge", "tinypkg>=1", pip=pip)
    log = harness.run("python", "-c", "import tinypkg", environment=environment).stream("prepare")
    assert b"conda channels not used: this kind of target builds from PyPI\n" in log


def _lock(events: list[dict[str, Any]]) -> dict[str, Any]:
    return next(event["lock"] for event in events if event["kind"] == "environment")


def _how(events: list[dict[str, object]]) -> object:
    return next(event["how"] for event in events if event["kind"] == "environment")
