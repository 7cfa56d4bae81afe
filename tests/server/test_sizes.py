"""/api/sizes: the packaged sizes, and those of the home."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.conftest import Api


@pytest.fixture
def own_sizes(api: Api) -> Iterator[Path]:
    """The file of the user's own sizes, which does not exist yet."""
    path = api.home / "sizes.toml"
    yield path
    path.unlink(missing_ok=True)


def test_sizes_are_listed_and_shown(api: Api) -> None:
    sizes = {size["name"]: size for size in api.ask("GET", "/api/sizes").json}
    assert sizes["Standard_NC24rs_v3"] == {
        **{"name": "Standard_NC24rs_v3", "series": "NCsv3", "cpus": 24.0, "memory": 448 * 2**30},
        **{"gpus": 4, "gpu_model": "V100", "gpu_memory": 16 * 2**30},
        **{"isolated": True, "restricted": True},
    }
    shown = api.ask("GET", "/api/sizes/STANDARD_NC24RS_V3").json
    assert shown == sizes["Standard_NC24rs_v3"]
    chosen = api.ask("GET", "/api/sizes", series=["nc", "Dv2"], gpus="true").json
    assert [size["series"] for size in chosen] == ["NC"] * 4


def test_what_does_not_exist_is_named(api: Api) -> None:
    missing = api.ask("GET", "/api/sizes/Standard_D22_v2")
    assert (missing.status, "similar: Standard_D2_v2" in missing.json["message"]) == (404, True)
    unknown = api.ask("GET", "/api/sizes", series="Dv9")
    assert (unknown.status, unknown.json["field"]) == (422, "series")


def test_own_sizes_are_added_and_replace_others_at_once(api: Api, own_sizes: Path) -> None:
    before = api.ask("GET", "/api/sizes").json
    own_sizes.write_text(
        '[lab]\ncpus = 8\nmemory = "32g"\n[standard_nc6]\ncpus = 6\nmemory = "50g"\ngpus = 2'
    )
    after = api.ask("GET", "/api/sizes").json
    assert len(after) == len(before) + 1
    assert (after[-1]["name"], after[-1]["memory"]) == ("lab", 32 * 2**30)
    replaced = api.ask("GET", "/api/sizes/Standard_NC6").json
    assert (replaced["name"], replaced["gpus"]) == ("standard_nc6", 2)


def test_a_wrong_file_is_one_sentence(api: Api, own_sizes: Path) -> None:
    own_sizes.write_text("[lab]\ncpus = 8")
    refused = api.ask("GET", "/api/sizes")
    assert refused.status == 422
    assert refused.json["message"] == f"{own_sizes}: lab: memory: is required"
    own_sizes.unlink()
    own_sizes.mkdir()
    refused = api.ask("GET", "/api/sizes")
    assert (refused.status, refused.json["message"]) == (
        *(422, f"{own_sizes} is not a regular file"),
    )
    own_sizes.rmdir()
