"""Paths that would escape their folder: in snapshots, outputs, streams and artifacts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retarget.core.snapshots import digest_bytes
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
        ([file(3)], "is not a string"),
        ([file("a"), file("a")], "'a' appears twice"),
        ([file("a"), file("a/b")], "'a' is both a file and a folder"),
        ([link("a", "b"), file("a/b")], "'a' is both a file and a folder"),
        ([link("a", "..")], "leaves the folder"),
        ([link("a", "/etc/passwd")], "leaves the folder"),
        ([link("d/a", "../../x")], "leaves the folder"),
        ([link("a", "b/../../x")], "leaves the folder"),
        ([link("a", "b\0")], "leaves the folder"),
        ([file("a", digest="../../token")], "has no valid digest"),
        ([file("a", size=-1)], "has no valid digest"),
        ([file("a", size=1.5)], "is not an integer"),
        ([file("a", digest="b" * 64)], "1 of its files were not uploaded"),
        ("x", "cannot be read"),
        ([["a"]], "cannot be read"),
    ],
)
def test_a_snapshot_with_a_wrong_path_is_refused(api: Api, entries: Any, sentence: str) -> None:
    manifest = json.dumps({"version": 1, "entries": entries}).encode()
    snapshot = digest_bytes(manifest)
    for content in (CONTENT, manifest):
        assert api.ask("PUT", f"/api/blobs/{digest_bytes(content)}", content).status == 200
    with unchanged(api):
        body = {"command": ["true"], "snapshot": snapshot}
        assert sentence in refusal(api.ask("POST", "/api/jobs", body))


@pytest.mark.parametrize("manifest", [b"", b"{", b"[" * 5000, b'{"version": 9}', b"\xff"])
def test_an_invalid_manifest_is_refused(api: Api, manifest: bytes) -> None:
    api.ask("PUT", f"/api/blobs/{digest_bytes(manifest)}", manifest)
    with unchanged(api):
        body = {"command": ["true"], "snapshot": digest_bytes(manifest)}
        assert "manifest cannot be read" in refusal(api.ask("POST", "/api/jobs", body))


class AttemptApi:
    """The API of a live attempt, which takes any request."""

    def __init__(self, api: Api, key: str) -> None:
        self._api = api
        self._path = f"/api/attempts/{key}"
        self._runner_key = api.runner_key(key)

    def ask(self, method: str, path: str, body: Any, **query: Any) -> Any:
        return self._api.ask(method, self._path + path, body, proven_by=self._runner_key, **query)


@pytest.fixture(scope="module")
def attempt(api: Api) -> Iterator[AttemptApi]:
    job = api.submit("sleep", "600", name="paths", cpus=0.1)
    api.wait("paths", "running")
    launches = (api.home / "targets/local/launches").iterdir()
    (folder,) = (launch for launch in launches if job["id"] in (launch / "launch.json").read_text())
    yield AttemptApi(api, folder.name)
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
def test_an_output_outside_its_folders_is_refused(api: Api, attempt: AttemptApi, path: str) -> None:
    with unchanged(api):
        header = json.dumps({"path": path, "size": 0}).encode()
        message = refusal(attempt.ask("POST", "/outputs", frame(header, b"")))
    assert "is not below outputs, logs, workdir, artifacts" in message


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"[]", b"null", b"\xff", b"[" * 30_000, b'{"path": "outputs/x"}'),
        *(b'{"path": "outputs/x", "size": %s}' % size for size in (b"-1", b"1e999", b"NaN")),
        b'{"path": "outputs/x", "size": ' + b"9" * 5000 + b"}",
        b'{"path": "outputs/x", "size": 99999999999999999999}',
    ],
)
def test_an_output_with_an_invalid_header_is_refused(
    api: Api, attempt: AttemptApi, header: bytes
) -> None:
    with unchanged(api):
        assert "frame" in refusal(attempt.ask("POST", "/outputs", frame(header)))


@pytest.mark.parametrize("name", ["..", "%2e%2e", "x" * 500])
def test_an_invalid_stream_name_is_refused(api: Api, attempt: AttemptApi, name: str) -> None:
    message = refusal(attempt.ask("PUT", f"/streams/{name}", b"x", offset=0))
    assert "is not a stream name" in message


@pytest.mark.parametrize("name", ["a%2F..%2F..%2Fx", "%00", "%1b"])
def test_any_other_stream_name_is_one_file_in_the_folder_of_streams(
    api: Api, attempt: AttemptApi, name: str
) -> None:
    before = _files_outside_logs(api)
    assert attempt.ask("PUT", f"/streams/{name}", b"x", offset=0).status == 200
    assert _files_outside_logs(api) == before


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


def _files_outside_logs(api: Api) -> set[Path]:
    """Return all files of the server except streams, launch folders and the database."""
    entries = [entry for entry in api.home.iterdir() if entry.name not in ("logs", "targets")]
    paths = {path for entry in entries for path in (entry, *entry.rglob("*"))}
    return {path for path in paths if not path.name.startswith("retarget.db")}
