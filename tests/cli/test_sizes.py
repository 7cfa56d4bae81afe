"""`retarget size list` and `workspace.sizes`."""

import json
from pathlib import Path

import pytest

from retarget import Invalid, NotFound, Workspace
from tests.conftest import Cli


def test_sizes_are_listed(retarget: Cli, home: Path) -> None:
    listed = retarget("size", "list", "--series", "ncsv3", "--series", "Dv2", "--gpus")
    header, *rows = listed.stdout.splitlines()
    assert header.split() == ["NAME", "SERIES", "CPUS", "MEMORY", "GPUS", "NOTES"]
    assert [row.split()[0] for row in rows] == [
        *("Standard_NC6s_v3", "Standard_NC12s_v3", "Standard_NC24s_v3", "Standard_NC24rs_v3")
    ]
    assert rows[2].split(maxsplit=6)[1:] == [
        *("NCsv3", "24", "448.0", "GiB", "4"),
        "V100  isolated, restricted",
    ]
    (home / "sizes.toml").write_text('[lab]\nseries = "own"\ncpus = 8\nmemory = "32g"')
    (own,) = json.loads(retarget("size", "list", "--series", "own", "--json").stdout)
    assert (own["name"], own["memory"], own["gpu_memory"]) == ("lab", 32 * 2**30, None)
    assert retarget("size", "list", "--series", "own", "--gpus").stderr == "no matching sizes\n"
    unknown = retarget("size", "list", "--series", "x")
    assert (unknown.returncode, "series: 'x' has no sizes" in unknown.stderr) == (2, True)


def test_the_sdk_finds_and_lists_sizes(server: None) -> None:
    sizes = Workspace().sizes
    assert repr(sizes["standard_nc6"]) == "<Size Standard_NC6>"
    assert {size.gpu_model for size in sizes.list(series="NC")} == {"K80"}
    assert all(size.gpus for size in sizes.list(gpus=True))
    assert len(list(sizes)) > len(sizes.list(series=["D", "Dv2"])) > 0
    with pytest.raises(NotFound, match="similar: Standard_NC6"):
        sizes["Standard_NC7"]
    with pytest.raises(Invalid, match="gpus: 2 is not True or False"):
        sizes.list(gpus=2)  # pyright: ignore[reportArgumentType]
