"""One folder, one command: only `--target` changes, and what comes out does not."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.testbeds.engines import IMAGE, Engine
from tests.testbeds.hosts import Host

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/anywhere"
PLACES = {
    "local": [],
    "gpu-box": ["--target", "gpu-box"],
    "lab": ["--target", "lab", "--nodes", "2"],
    "box": ["--target", "box"],
}


@pytest.fixture
def everywhere(retarget: Cli, lab: list[Host], docker: Engine) -> Iterator[Cli]:
    """A server with a target of every kind, and an engine on its own machine."""
    key = ("--kind", "ssh", "--key", lab[0].key)
    hosts = [word for host in lab for word in ("--host", f"ml@{host.address}")]
    for words in (
        ("gpu-box", *key, "--address", lab[0].address, "--user", "ml"),
        ("lab", *key, *hosts),
        ("box", "--kind", "container", "--engine", docker.url, "--image", IMAGE),
    ):
        made = retarget("target", "attach", *words)
        assert made.returncode == 0, made.stderr
    yield retarget
    for name in ("gpu-box", "lab", "box"):
        gone = retarget("target", "detach", name)
        assert gone.returncode == 0, gone.stderr


@pytest.mark.targets
def test_metrics_outputs_and_log_are_the_same_on_every_kind(
    everywhere: Cli, tmp_path: Path
) -> None:
    found: dict[str, Any] = {}
    for place, words in PLACES.items():
        ran = everywhere("run", "--name", place, *words, EXAMPLE / "train.py", timeout=100)
        assert ran.returncode == 0, ran.stderr
        everywhere("job", "outputs", place, "--download", tmp_path / place)
        files = {
            str(path.relative_to(tmp_path / place)): path.read_bytes()
            for path in (tmp_path / place).rglob("*")
            if path.is_file()
        }
        points = csv.DictReader(
            everywhere("job", "metrics", place, "loss", "--csv").stdout.splitlines()
        )
        values = [(point["step"], point["value"]) for point in points]
        log = ran.stdout.replace("[rank 0] ", "")  # two nodes are two ranks
        found[place] = log, values, files
    assert len(found["local"][1]) == 20
    assert "outputs/line.json" in found["local"][2]
    for place in found:
        assert found[place] == found["local"], place
