"""Code that was damaged on the server's disk: the job says what to do, and that helps."""

from pathlib import Path

import pytest

from retarget.core.snapshots import digest_bytes
from retarget.sdk.http import Address, Connection, RemoteServer
from retarget.sdk.snapshot import scan, upload
from retarget.sdk.uploads import Uploads
from tests.server.conftest import Api

CODE = b"print('the code ran')\n" + b"# padding\n" * 10


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "main.py").write_bytes(CODE)
    return folder


def send(api: Api, code: Path) -> str:
    server = RemoteServer(Address(api.url, api.token))
    return upload(scan(code), Uploads(Connection(server)))


@pytest.mark.parametrize("damaged", ["the file", "the manifest"])
@pytest.mark.parametrize("content", [b"", b"x"])
def test_a_job_with_a_short_blob_says_what_to_do_and_the_next_submit_sends_it(
    api: Api, code: Path, damaged: str, content: bytes
) -> None:
    snapshot = send(api, code)
    digest = digest_bytes(CODE) if damaged == "the file" else snapshot
    job = api.submit("sleep", "0", snapshot=snapshot)  # the snapshot is marked as complete
    api.wait(job["name"])
    (api.home / "blobs" / digest[:2] / digest).write_bytes(content)
    failed = api.wait(api.submit("python", "main.py", snapshot=snapshot)["name"])
    assert failed["state"] == "failed"
    assert failed["reason"] == (
        "the code could not be downloaded: a file of the code was lost or damaged on the server's "
        "disk; submit the job again to send it again"
    )
    assert send(api, code) == snapshot
    assert api.wait(api.submit("python", "main.py", snapshot=snapshot)["name"])["state"] == (
        "succeeded"
    )


def test_a_failed_job_without_its_manifest_is_shown_without_a_hint(api: Api, code: Path) -> None:
    (code / "main.py").write_text("import no_such_module  # no other test has this snapshot")
    snapshot = send(api, code)
    job = api.submit("python", "main.py", snapshot=snapshot)
    assert "--pip no-such-module" in api.wait(job["name"])["hint"]
    (api.home / "blobs" / snapshot[:2] / snapshot).unlink()
    # the module may be one of the user's own
    assert (api.job(job["name"])["state"], api.job(job["name"])["hint"]) == ("failed", None)
    assert api.ask("GET", "/api/jobs").json[0]["hint"] is None
