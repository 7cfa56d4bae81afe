"""The same folder and command give the same results on every kind of target."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.testbeds.engines import IMAGE, Engine
from tests.testbeds.hosts import SshHost

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/anywhere"
OPTIONS = {
    "local": [],
    "gpu-box": ["--target", "gpu-box"],
    "pool": ["--target", "pool", "--nodes", "2"],
    "box": ["--target", "box"],
}


@pytest.fixture
def all_targets(retarget: Cli, ssh_hosts: list[SshHost], docker: Engine) -> Iterator[Cli]:
    """A server with a target of every kind, and an engine on this machine."""
    key = ("--kind", "ssh", "--key", ssh_hosts[0].key)
    hosts = [word for host in ssh_hosts for word in ("--host", f"ml@{host.address}")]
    for options in (
        ("gpu-box", *key, "--address", ssh_hosts[0].address, "--user", "ml"),
        ("pool", *key, *hosts),
        ("box", "--kind", "container", "--engine", docker.url, "--image", IMAGE),
    ):
        attached = retarget("target", "attach", *options)
        assert attached.returncode == 0, attached.stderr
    yield retarget
    for name in ("gpu-box", "pool", "box"):
        detached = retarget("target", "detach", name)
        assert detached.returncode == 0, detached.stderr


@pytest.mark.targets
def test_metrics_outputs_and_log_are_the_same_on_every_kind(
    all_targets: Cli, tmp_path: Path
) -> None:
    results: dict[str, Any] = {}
    for name, options in OPTIONS.items():
        ran = all_targets("run", "--name", name, *options, EXAMPLE / "train.py", timeout=200)
        assert ran.returncode == 0, ran.stderr
        all_targets("job", "outputs", name, "--download", tmp_path / name)
        files = {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
        points = csv.DictReader(
            all_targets("job", "metrics", name, "loss", "--csv").stdout.splitlines()
        )
        values = [(point["step"], point["value"]) for point in points]
        log = ran.stdout.replace("[rank 0] ", "")  # two nodes are two ranks
        results[name] = log, values, files
    assert len(results["local"][1]) == 20
    assert "outputs/line.json" in results["local"][2]
    for name in results:
        assert results[name] == results["local"], name


@pytest.mark.targets
def test_files_outside_outputs_are_kept_on_every_kind(all_targets: Cli, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(
        "import os\nos.mkdir('deep')\n"
        "open('deep/rank', 'w').write(os.environ.get('RANK', '0')); open('old', 'a').write('!')"
    )
    (tmp_path / "code/old").write_text("old")
    for name, options in OPTIONS.items():
        ran = all_targets("run", "--name", name, *options, "train.py", cwd=tmp_path / "code")
        assert ran.returncode == 0, ran.stderr
        paths = ["deep/rank", "old"]
        if name == "pool":
            paths += [f"node-1/{path}" for path in paths]
        line = f"also kept {len(paths)} files written outside outputs/: {', '.join(paths)}"
        assert line in ran.stderr
        all_targets("job", "outputs", name, "--download", tmp_path / name)
        assert (tmp_path / name / "workdir/old").read_text() == "old!"
    assert (tmp_path / "pool/workdir/node-1/deep/rank").read_text() == "1"
