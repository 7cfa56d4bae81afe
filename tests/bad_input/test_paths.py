"""Paths that would leave where they belong: in snapshots, outputs, streams and artifacts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.snapshots import digest_bytes
from retarget.core.tokens import attempt_token
from tests.bad_input.conftest import refusal, unchanged
from tests.server.conftest import Api

CONTENT = b"print('hello')"
DIGEST = digest_bytes(CONTENT)


def file(path: object, **more: Any) -> dict[str, Any]:
    return {"path": path, "size": len(CONTENT), "digest": DIGEST, **more}


def link(path: str, to: str) -> dict[str, Any]:
    return {"path": path, "link": to}


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([file("../x")], "'../x' is not a path inside the folder"),
        ([file("/etc/x")], "is not a path inside the folder"),
        ([file("a/../../b")], "is not a path inside the folder"),
        ([file("a/../b")], "is not a path inside the folder"),
        ([file("a//b")], "is not a path inside the folder"),
        ([file("./a")], "is not a path inside the folder"),
        ([file("a/")], "is not a path inside the folder"),
        ([file("")], "is not a path inside the folder"),
        ([file("a\0b")], "is not a path inside the folder"),
        ([file("\ud800")], "cannot be read"),
        ([file(3)], "is not a text"),
        ([file("a"), file("a")], "'a' is there twice"),
        ([file("a"), file("a/b")], "'a' is a file and a folder"),
        ([link("a", "b"), file("a/b")], "'a' is a file and a folder"),
        ([link("a", "..")], "leaves the folder"),
        ([link("a", "/etc/passwd")], "leaves the folder"),
        ([link("d/a", "../../x")], "leaves the folder"),
        ([link("a", "b/../../x")], "leaves the folder"),
        ([link("a", "b\0")], "leaves the folder"),
        ([file("a", digest="../../token")], "has no proper digest"),
        ([file("a", size=-1)], "has no proper digest"),
        ([file("a", size=1.5)], "is not a whole number"),
        ([file("a", digest="b" * 64)], "1 of its files were never sent"),
        ("x", "cannot be read"),
        ([["a"]], "cannot be read"),
    ],
)
def test_a_snapshot_is_refused_by_the_path_that_is_wrong(
    api: Api, entries: Any, sentence: str
) -> None:
    manifest = json.dumps({"version": 1, "entries": entries}).encode()
    snapshot = digest_bytes(manifest)
    for content in (CONTENT, manifest):
        assert api.ask("PUT", f"/api/blobs/{digest_bytes(content)}", content).status == 200
    with unchanged(api):
        asked = {"command": ["true"], "snapshot": snapshot}
        assert sentence in refusal(api.ask("POST", "/api/jobs", asked))


@pytest.mark.parametrize("manifest", [b"", b"{", b"[" * 5000, b'{"version": 9}', b"\xff"])
def test_what_is_no_manifest_is_refused(api: Api, manifest: bytes) -> None:
    api.ask("PUT", f"/api/blobs/{digest_bytes(manifest)}", manifest)
    with unchanged(api):
        asked = {"command": ["true"], "snapshot": digest_bytes(manifest)}
        assert "manifest cannot be read" in refusal(api.ask("POST", "/api/jobs", asked))


class Door:
    """The door of a live attempt, to which anything can be sent."""

    def __init__(self, api: Api, key: str) -> None:
        self._api = api
        self._path = f"/api/attempts/{key}"
        self._token = attempt_token((api.home / "secret").read_text().encode(), key)

    def ask(self, method: str, path: str, body: Any, **query: Any) -> Any:
        return self._api.ask(method, self._path + path, body, token=self._token, **query)


@pytest.fixture(scope="module")
def door(api: Api) -> Iterator[Door]:
    job = api.submit("sleep", "600", name="paths", cpus=0.1)
    api.wait("paths", "running")
    launches = (api.home / "targets/local/launches").iterdir()
    (folder,) = (each for each in launches if job["id"] in (each / "launch.json").read_text())
    yield Door(api, folder.name)
    api.ask("POST", "/api/jobs/paths/cancel")
    api.wait("paths")


def frame(header: bytes, content: bytes = b"x") -> bytes:
    return len(header).to_bytes(4, "big") + header + content


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/passwd", "outputs/../../x", "outputs/..", "outputs", "outputs/", ""),
        *("zzz/x", "outputs/a\0b", "artifacts/../x", "artifacts/..", "logs/.."),
    ],
)
def test_an_output_is_kept_nowhere_else(api: Api, door: Door, path: str) -> None:
    with unchanged(api):
        header = json.dumps({"path": path, "size": 0}).encode()
        said = refusal(door.ask("POST", "/outputs", frame(header, b"")))
    assert "is not below outputs, logs, artifacts" in said


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"[]", b"null", b"\xff", b"[" * 30_000, b'{"path": "outputs/x"}'),
        *(b'{"path": "outputs/x", "size": %s}' % size for size in (b"-1", b"1e999", b"NaN")),
        b'{"path": "outputs/x", "size": ' + b"9" * 5000 + b"}",
        b'{"path": "outputs/x", "size": 99999999999999999999}',
    ],
)
def test_an_output_with_a_header_that_is_none_is_refused(
    api: Api, door: Door, header: bytes
) -> None:
    with unchanged(api):
        assert "frame" in refusal(door.ask("POST", "/outputs", frame(header)))


@pytest.mark.parametrize("name", ["..", "%2e%2e", "x" * 500])
def test_a_stream_has_a_name_that_is_one(api: Api, door: Door, name: str) -> None:
    said = refusal(door.ask("PUT", f"/streams/{name}", b"x", offset=0))
    assert "is not the name of a stream" in said


@pytest.mark.parametrize("name", ["a%2F..%2F..%2Fx", "%00", "%1b"])
def test_any_other_name_of_a_stream_is_one_file_in_its_own_folder(
    api: Api, door: Door, name: str
) -> None:
    outside = _outside(api)
    assert door.ask("PUT", f"/streams/{name}", b"x", offset=0).status == 200
    assert _outside(api) == outside


@pytest.mark.parametrize(
    "path",
    [
        *("..%2f..%2fx", "%252e%252e%252fx", "%2e%2e/x", "a%5c..%5cb", "%2fetc%2fpasswd"),
        *("file:%2f%2f%2fetc", "x" * 3000),
    ],
)
def test_an_artifact_stays_in_its_tree(api: Api, path: str) -> None:
    with unchanged(api):
        answer = api.ask("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{path}", b"x")
        assert answer.status in (400, 404, 422), answer.content
        assert answer.json["message"]


def _outside(api: Api) -> set[Path]:
    """Return all there is but the streams of attempts, and what SQLite puts beside its file."""
    kept = [entry for entry in api.home.iterdir() if entry.name not in ("logs", "targets")]
    found = {path for entry in kept for path in (entry, *entry.rglob("*"))}
    return {path for path in found if not path.name.startswith("retarget.db")}
