"""MLflow's API over plain HTTP: multipart uploads of artifacts."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from retarget.blobs.folder import Blobs
from retarget.blobs.uploads import Upload, Uploads
from retarget.core.errors import Invalid, NotFound
from tests.mlflow.test_artifacts import folder_of, get, listed, refused, run_of
from tests.mlflow.test_runs import Holder
from tests.server.conftest import Answer, Api, serving

MPU = "/api/2.0/mlflow-artifacts/mpu"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("home")) as api:
        yield api


def begin(api: Api, folder: str, name: str, part_count: int, **options: Any) -> dict[str, Any]:
    body = {"path": f"/somewhere/{name}", "num_parts": part_count}
    answer = api.ask("POST", f"{MPU}/create/{folder}", body, **options)
    assert answer.status == 200, answer.content
    return answer.json


def send(url: str, content: bytes) -> tuple[int, str]:
    """Send a part as a client does: without its token."""
    try:
        with urlopen(Request(url, content, method="PUT"), timeout=200) as answer:
            return answer.status, answer.headers["ETag"]
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def send_all(upload: dict[str, Any], contents: list[bytes]) -> list[dict[str, Any]]:
    """Send the parts, the last one first, and return them as a client lists them."""
    parts: list[dict[str, Any]] = []
    for credential, content in reversed(list(zip(upload["credentials"], contents, strict=True))):
        status, etag = send(credential["url"], content)
        assert status == 200, etag
        parts.insert(
            0, {"part_number": credential["part_number"], "etag": etag, "url": credential["url"]}
        )
    return parts


def end(api: Api, action: str, folder: str, upload: Any, parts: Any = (), **more: Any) -> Answer:
    body = {"path": "/elsewhere/big", "upload_id": upload["upload_id"], "parts": list(parts)}
    return api.ask("POST", f"{MPU}/{action}/{folder}", body, **more)


CONTENTS = [b"a" * 700_000, b"b" * 700_000, b"c" * 5]


def test_parts_become_one_file_in_their_order(api: Api) -> None:
    upload = begin(api, "whole/in", "big", 3)
    assert [credential["part_number"] for credential in upload["credentials"]] == [1, 2, 3]
    parts = send_all(upload, CONTENTS)
    assert listed(api, "whole") == {}
    assert end(api, "complete", "whole/in", upload, reversed(parts)).json == {}
    assert get(api, "whole/in/big").content == b"".join(CONTENTS)
    assert listed(api, "whole/in") == {"big": 1_400_005}


def test_a_completion_can_be_repeated(api: Api) -> None:
    upload = begin(api, "again", "big", 2)
    parts = send_all(upload, CONTENTS[:2])
    with ThreadPoolExecutor(4) as pool:
        completions = [pool.submit(end, api, "complete", "again", upload, parts) for _ in range(4)]
        assert [completion.result().status for completion in completions] == [200] * 4
    assert get(api, "again/big").content == b"".join(CONTENTS[:2])
    assert [path.name for path in (api.home / "uploads" / upload["upload_id"]).iterdir()] == [
        "upload.json"
    ]
    assert send(upload["credentials"][0]["url"], b"late")[0] == 400


def test_of_a_part_sent_twice_the_named_etag_is_used(api: Api) -> None:
    upload = begin(api, "part", "big", 1)
    url = upload["credentials"][0]["url"]
    etags = [send(url, content)[1] for content in (b"first", b"second")]
    parts = [{"part_number": 1, "etag": etags[0]}]
    assert end(api, "complete", "part", upload, parts).status == 200
    assert get(api, "part/big").content == b"first"


def test_what_does_not_fit_together_is_refused(api: Api) -> None:
    upload = begin(api, "odd", "big", 3)
    parts = send_all(upload, CONTENTS)
    wrong: list[tuple[list[Any], str]] = [
        (parts[:2], "has 3 parts, got 2"),
        ([parts[0], parts[2]], "without gaps"),
        ([*parts, parts[0]], "part 1 is listed twice"),
        ([parts[0] | {"etag": parts[1]["etag"]}, *parts[1:]], "part 1 of upload"),
        ([parts[0] | {"etag": "/../../../token"}, *parts[1:]], "part 1 of upload"),
        ([parts[0] | {"etag": None}, *parts[1:]], "has no ETag"),
        ([], "Missing value for required parameter 'parts'"),
    ]
    for part_list, message in wrong:
        answer = end(api, "complete", "odd", upload, part_list)
        assert message in refused(answer, 400, "INVALID_PARAMETER_VALUE")
    for alien in ("0" * 32, "../../blobs", "none"):
        answer = end(api, "complete", "odd", {"upload_id": alien}, parts)
        assert "no upload" in refused(answer, 404, "RESOURCE_DOES_NOT_EXIST")
    refused(end(api, "complete", "other", upload, parts), 404, "RESOURCE_DOES_NOT_EXIST")
    assert listed(api, "odd") == {}
    assert end(api, "complete", "odd", upload, parts).status == 200


def test_a_missing_part_is_reported(api: Api) -> None:
    upload = begin(api, "gap", "big", 2)
    parts = [{"part_number": 1, "etag": send(upload["credentials"][0]["url"], b"x")[1]}]
    parts.append({"part_number": 2, "etag": parts[0]["etag"]})
    message = refused(end(api, "complete", "gap", upload, parts), 400, "INVALID_PARAMETER_VALUE")
    assert "part 2 of upload" in message


@pytest.mark.parametrize("number", [0, -1, 10_001, "x"])
def test_there_are_not_too_many_parts(api: Api, number: Any) -> None:
    answer = api.ask("POST", f"{MPU}/create/many", {"path": "a", "num_parts": number})
    refused(answer, 400, "INVALID_PARAMETER_VALUE")


def test_an_aborted_upload_is_gone(api: Api) -> None:
    upload = begin(api, "stop", "big", 2)
    parts = send_all(upload, CONTENTS[:2])
    assert end(api, "abort", "stop", upload).json == {}
    assert not (api.home / "uploads" / upload["upload_id"]).exists()
    assert send(upload["credentials"][0]["url"], b"late")[0] == 404
    refused(end(api, "complete", "stop", upload, parts), 404, "RESOURCE_DOES_NOT_EXIST")
    refused(end(api, "abort", "stop", upload), 404, "RESOURCE_DOES_NOT_EXIST")


def test_an_upload_url_is_valid_for_one_part_only(api: Api) -> None:
    first, second = (begin(api, "forged", name, 2) for name in ("a", "b"))
    url = first["credentials"][0]["url"]
    head, proof = url.split("?")
    for forged in (
        head,
        f"{head}?proof=",
        f"{head}?proof=%C3%A9",
        url[:-1] + ("0" if url[-1] != "0" else "1"),
        f"{head[:-1]}2?{proof}",
        f"{head.replace(first['upload_id'], second['upload_id'])}?{proof}",
    ):
        assert send(forged, b"x")[0] == 403, forged
    assert api.token not in url
    assert send(url, b"x")[0] == 200


def test_uploads_outlive_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as api:
        upload = begin(api, "r", "big", 2)
        first = send(upload["credentials"][0]["url"], b"one ")[1]
    (tmp_path / "servers/main/server.json").unlink(missing_ok=True)  # one that is killed leaves it
    with serving(tmp_path) as api:
        second = send(upload["credentials"][1]["url"].replace(_base(upload), api.url), b"two")[1]
        parts = [{"part_number": 1, "etag": first}, {"part_number": 2, "etag": second}]
        assert end(api, "complete", "r", upload, parts).status == 200
        assert get(api, "r/big").content == b"one two"


def test_addresses_are_where_the_client_found_the_server(api: Api) -> None:
    headers = {"Authorization": f"Bearer {api.token}", "Host": "cluster.example:8443"}
    headers["Content-Type"] = "application/json"
    request = Request(f"{api.url}{MPU}/create/h", b'{"path": "a", "num_parts": 1}', headers)
    with urlopen(request, timeout=200) as answer:
        assert b'"url":"http://cluster.example:8443/api/2.0/mlflow-artifacts/' in answer.read()


def test_a_job_uploads_only_to_its_own_folders(api: Api) -> None:
    holder = Holder(api, "holder")
    job_folder = folder_of(run_of(api, "holder"))
    upload = begin(api, job_folder, "big", 1, token=holder.token)
    parts = send_all(upload, [b"mine"])
    assert end(api, "complete", job_folder, upload, parts, token=holder.token).status == 200
    assert get(api, f"{job_folder}/big").content == b"mine"
    alien = begin(api, "alien", "big", 1)
    for how in ("create", "complete", "abort"):
        answer = end(api, how, "alien", alien, parts, token=holder.token)
        refused(answer, 403, "PERMISSION_DENIED")
    api.ask("POST", "/api/jobs/holder/cancel")
    api.wait("holder")


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path / "uploads")


def _write(uploads: Uploads, upload: Upload, number: int, content: bytes) -> str:
    with uploads.writing(upload, number) as part:
        part.write(content)
        return part.keep()


def test_what_nobody_goes_on_with_is_removed(uploads: Uploads) -> None:
    old, new = uploads.create("old", 1), uploads.create("new", 1)
    _write(uploads, old, 1, b"x")
    os.utime(uploads.root / old.id, (1000, 1000))
    os.utime(uploads.root / new.id, (3000, 3000))
    uploads.remove_old(before=2000)
    assert [path.name for path in uploads.root.iterdir()] == [new.id]
    with pytest.raises(NotFound, match="has expired"):
        uploads.find(old.id)
    assert uploads.find(new.id) == new


def test_a_part_under_way_is_lost_with_its_upload(uploads: Uploads, tmp_path: Path) -> None:
    upload = uploads.create("a", 1)
    with pytest.raises(NotFound), uploads.writing(upload, 1) as part:  # noqa: PT012
        part.write(b"x")
        uploads.remove(upload.id)
        part.keep()
    assert list(uploads.root.iterdir()) == []
    with pytest.raises(Invalid, match="does not accept part 2"), uploads.writing(upload, 2):
        pass


def test_a_part_that_breaks_off_leaves_nothing(uploads: Uploads) -> None:
    upload = uploads.create("a", 1)
    with pytest.raises(ConnectionError), uploads.writing(upload, 1) as part:  # noqa: PT012
        part.write(b"x")
        raise ConnectionError
    assert [path.name for path in (uploads.root / upload.id).iterdir()] == ["upload.json"]


def test_a_file_that_was_joined_is_a_blob(uploads: Uploads, tmp_path: Path) -> None:
    blobs, upload = Blobs(tmp_path / "blobs"), uploads.create("a", 2)
    digests = [_write(uploads, upload, number, b"x" * number) for number in (1, 2)]
    size, digest = uploads.join(upload, digests, blobs)
    assert (size, blobs.path(digest).read_bytes()) == (3, b"xxx")


def _base(upload: dict[str, Any]) -> str:
    return str(upload["credentials"][0]["url"]).partition("/api/")[0]
