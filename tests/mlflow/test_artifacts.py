"""MLflow's API over plain HTTP: the artifact tree, write access, and pruning."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.mlflow.conftest import lacking
from tests.mlflow.test_runs import Holder
from tests.server.conftest import Answer, Api

TREE = "/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture(scope="module")
def holder(api: Api) -> Iterator[Holder]:
    holder = Holder(api, "holder")
    yield holder
    api.ask("POST", "/api/jobs/holder/cancel")
    api.wait("holder")


def put(api: Api, path: str, content: bytes = b"hello", **options: Any) -> Answer:
    return api.ask("PUT", f"{TREE}/{quote(path)}", content, **options)


def get(api: Api, path: str, **options: Any) -> Answer:
    return api.ask("GET", f"{TREE}/{quote(path)}", **options)


def query(api: Api, address: str, *, token: str | None = None, **params: str) -> Answer:
    return api.ask("GET", f"{address}?{urlencode(params)}", token=token)


def listed(api: Api, folder: str) -> dict[str, int | None]:
    files = query(api, TREE, path=folder).json.get("files", [])
    return {file["path"] + "/" * file["is_dir"]: file.get("file_size") for file in files}


def refused(answer: Answer, status: int, code: str) -> str:
    assert (answer.status, answer.json["error_code"]) == (status, code), answer.content
    return str(answer.json["message"])


def run_of(api: Api, job: str) -> dict[str, Any]:
    run_id = api.job(job)["id"]
    answer = api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=run_id).json
    return dict(answer["run"]["info"])


def folder_of(info: dict[str, Any]) -> str:
    return str(info["artifact_uri"]).removeprefix("mlflow-artifacts:/")


def blob_files(api: Api) -> list[Path]:
    return [path for path in (api.home / "blobs").rglob("*") if path.is_file()]


def test_a_file_comes_back_as_it_was_put(api: Api) -> None:
    content = bytes(range(256)) * 9000
    assert put(api, "there/and/back.bin", content).status == 200
    answer = get(api, "there/and/back.bin")
    assert answer.content == content
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["content-length"] == str(len(content))
    assert headers["content-disposition"] == "attachment; filename=back.bin"
    assert headers["x-content-type-options"] == "nosniff"


def test_a_file_put_again_is_the_new_one(api: Api) -> None:
    put(api, "twice/a", b"first")
    put(api, "twice/a", b"")
    assert get(api, "twice/a").content == b""
    assert listed(api, "twice") == {"a": 0}


def test_a_folder_lists_its_own_level(api: Api) -> None:
    for path in ("level/b", "level/a/x", "level/a/y/z", "level/a.txt"):
        put(api, path)
    assert listed(api, "level") == {"a/": None, "a.txt": 5, "b": 5}
    assert listed(api, "level/a/") == {"x": 5, "y/": None}
    for folder in ("level/b", "level/none"):
        assert query(api, TREE, path=folder).content == b"{}"
    assert "level/" in listed(api, "")


def test_a_file_and_a_folder_can_be_deleted(api: Api) -> None:
    for path in ("gone/a", "gone/b/c", "gone/b/d", "gone/bb"):
        put(api, path)
    assert api.ask("DELETE", f"{TREE}/gone/a").json == {}
    assert api.ask("DELETE", f"{TREE}/gone/b/").json == {}
    assert api.ask("DELETE", f"{TREE}/gone/none").json == {}
    assert listed(api, "gone") == {"bb": 5}
    refused(api.ask("DELETE", f"{TREE}/"), 400, "INVALID_PARAMETER_VALUE")
    assert listed(api, "gone") == {"bb": 5}


@pytest.mark.parametrize(
    ("byte_range", "status", "content", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-1", 206, b"9", "bytes 9-9/10"),
    ],
)
def test_a_byte_range_of_a_file_can_be_read(
    api: Api, byte_range: str, status: int, content: bytes, content_range: str
) -> None:
    put(api, "range", b"0123456789")
    headers = {"Range": byte_range, "Authorization": f"Bearer {api.token}"}
    with urlopen(Request(f"{api.url}{TREE}/range", headers=headers), timeout=200) as answer:
        assert (answer.status, answer.read(), answer.headers["content-range"]) == (
            status,
            content,
            content_range,
        )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text/plain"),
        ("b.pkl", "application/octet-stream"),
        ("c.png", "image/png"),
        ("d.html", "text/html"),
        ("MLmodel", "text/plain"),
        ("e.json", "text/plain"),
        ("none", "application/octet-stream"),
    ],
)
def test_a_file_is_served_as_what_its_name_says(api: Api, name: str, kind: str) -> None:
    put(api, f"kinds/{name}", b"<script>")
    headers = get(api, f"kinds/{name}").headers
    assert headers["content-type"] == kind
    assert headers["content-disposition"].startswith("attachment;")


@pytest.mark.parametrize(
    ("name", "disposition"),
    [
        ("a b.txt", 'filename="a b.txt"'),
        ('q"uote', 'filename="q\\"uote"'),
        ("日本.txt", "filename=.txt; filename*=UTF-8''%E6%97%A5%E6%9C%AC.txt"),
        ("ünï", "filename=uni; filename*=UTF-8''%C3%BCn%C3%AF"),
        ("50%", "filename=50%"),
        # what a client of a year ago calls an image; "%17" is a control character
        ("dog%step%1%timestamp%1794747338017%i9", "filename=dog%step%1%timestamp%1794747338017%i9"),
    ],
)
def test_names_are_kept(api: Api, name: str, disposition: str) -> None:
    assert put(api, f"names/{name}", name.encode()).status == 200
    assert name in listed(api, "names")
    answer = get(api, f"names/{name}")
    assert answer.content == name.encode()
    assert answer.headers["content-disposition"] == f"attachment; {disposition}"


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "a/..",
        "%2e%2e/x",
        "a/%252e%252e/x",
        "a%2f..%2f..%2fx",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "C:/x",
        "file:/etc/passwd",
        "a%5c..%5cx",
        "a%23b",
        "x" * 3000,
        "%25" * 20 + "2525252525252525252525",
    ],
)
def test_no_path_leads_out_of_the_tree(api: Api, path: str) -> None:
    answers = [
        api.ask("PUT", f"{TREE}/{path}", b"x"),
        api.ask("GET", f"{TREE}/{path}"),
        api.ask("DELETE", f"{TREE}/{path}"),
        api.ask("GET", f"{TREE}?path={path}"),
    ]
    for answer in answers:
        assert "Invalid path" in refused(answer, 400, "INVALID_PARAMETER_VALUE")


def test_a_line_break_ends_no_path(api: Api) -> None:
    put(api, "line", b"kept")
    api.ask("DELETE", f"{TREE}/line%0A")
    api.ask("PUT", f"{TREE}/line%0A", b"other")
    assert get(api, "line").content == b"kept"


def test_a_path_is_a_file_or_a_folder(api: Api) -> None:
    put(api, "either/a/b")
    message = refused(put(api, "either/a"), 400, "INVALID_PARAMETER_VALUE")
    assert message == "'either/a' cannot be written: it is a folder"
    message = refused(put(api, "either/a/b/c"), 400, "INVALID_PARAMETER_VALUE")
    assert message == "'either/a/b/c' cannot be written: 'either/a/b' is a file"
    message = refused(get(api, "either/a"), 400, "INVALID_PARAMETER_VALUE")
    assert message == "Artifact path refers to a directory, not a file: 'either/a'"
    message = refused(get(api, "either/x"), 404, "RESOURCE_DOES_NOT_EXIST")
    assert message == "No such artifact: 'either/x'"
    for path in ("either/new/", "either/new%2F"):
        message = refused(api.ask("PUT", f"{TREE}/{path}", b"x"), 400, "INVALID_PARAMETER_VALUE")
        assert "must include a filename" in message


def test_nothing_is_open_without_a_token(api: Api) -> None:
    put(api, "closed/a")
    for token in ("", "wrong"):
        for answer in (
            put(api, "closed/a", b"x", token=token),
            get(api, "closed/a", token=token),
            api.ask("DELETE", f"{TREE}/closed/a", token=token),
            query(api, TREE, token=token, path="closed"),
            query(api, "/get-artifact", token=token, run_id="x", path="x"),
        ):
            refused(answer, 401, "UNAUTHENTICATED")
    assert get(api, "closed/a").content == b"hello"


def test_a_client_that_breaks_off_leaves_nothing(api: Api) -> None:
    before = set(blob_files(api))
    address = urlsplit(api.url)
    head = f"PUT {TREE}/broken/off HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"{head}Authorization: Bearer {api.token}\r\n\r\n".encode())
        connection.sendall(b"x" * 3_000_000)
        _wait_until(lambda: set(blob_files(api)) > before)
    _wait_until(lambda: set(blob_files(api)) == before)
    refused(get(api, "broken/off"), 404, "RESOURCE_DOES_NOT_EXIST")


def test_a_large_file_is_never_in_memory(api: Api) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(192):
            yield bytes([number]) * (1 << 20)

    before = _peak(api.pid)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Length": str(192 << 20)}
    request = Request(f"{api.url}{TREE}/large", pieces(), headers, method="PUT")
    with urlopen(request, timeout=200) as answer:
        assert answer.status == 200
    with urlopen(Request(f"{api.url}{TREE}/large", headers=headers), timeout=200) as answer:
        for piece in pieces():
            assert answer.read(len(piece)) == piece
    assert _peak(api.pid) - before < 64 << 20
    api.ask("DELETE", f"{TREE}/large")


def test_a_run_lists_its_artifacts(api: Api) -> None:
    info = api.ask("POST", "/api/2.0/mlflow/runs/create", {"experiment_id": "0"}).json
    info = info["run"]["info"]
    put(api, f"{folder_of(info)}/a.txt")
    put(api, f"{folder_of(info)}/dir/b c.txt")
    listing = "/api/2.0/mlflow/artifacts/list"
    listing_page = query(api, listing, run_id=info["run_id"]).json
    assert listing_page["root_uri"] == info["artifact_uri"]
    assert listing_page["files"] == [
        {"path": "a.txt", "is_dir": False, "file_size": 5},
        {"path": "dir", "is_dir": True},
    ]
    listing_page = query(api, listing, run_id=info["run_id"], path="dir").json
    assert listing_page["files"] == [{"path": "dir/b c.txt", "is_dir": False, "file_size": 5}]
    refused(query(api, listing, run_id="none"), 404, "RESOURCE_DOES_NOT_EXIST")
    refused(api.ask("GET", listing), 400, "INVALID_PARAMETER_VALUE")
    for parameter in ("run_id", "run_uuid"):
        params = {parameter: info["run_id"], "path": "dir/b c.txt"}
        assert query(api, "/get-artifact", **params).content == b"hello"
    outside = query(api, "/get-artifact", run_id=info["run_id"], path="../x")
    refused(outside, 400, "INVALID_PARAMETER_VALUE")


def test_the_server_info_needs_no_token(api: Api) -> None:
    server_info = api.ask("GET", "/api/3.0/mlflow/server-info", token="").json
    assert (server_info["store_type"], server_info["workspaces_enabled"]) == ("SqlStore", False)
    answer = api.ask("GET", "/api/2.0/mlflow-artifacts/presigned/a/b")
    refused(answer, 501, "NOT_IMPLEMENTED")


def test_a_job_writes_only_to_its_own_folders(api: Api, holder: Holder) -> None:
    alien = api.ask("POST", "/api/2.0/mlflow/runs/create", {"experiment_id": "0"}).json
    alien_folder = folder_of(alien["run"]["info"])
    put(api, f"{alien_folder}/a")
    job_folder = folder_of(run_of(api, "holder"))
    child = holder.post("runs/create", experiment_id="0").json["run"]["info"]
    for folder in (job_folder, f"{job_folder}/deep", folder_of(child)):
        assert put(api, f"{folder}/mine", token=holder.token).status == 200
    above = job_folder.rpartition("/")[0]
    for path in (
        "x",
        job_folder,
        f"{above}/x",
        f"{job_folder}x/y",
        f"{alien_folder}/a",
        "registry/1/x",
    ):
        message = refused(put(api, path, token=holder.token), 403, "PERMISSION_DENIED")
        assert "its own runs" in message
    for path in (alien_folder, f"{alien_folder}/a", above, "registry"):
        answer = api.ask("DELETE", f"{TREE}/{path}", token=holder.token)
        refused(answer, 403, "PERMISSION_DENIED")
    assert get(api, f"{alien_folder}/a", token=holder.token).content == b"hello"
    assert api.ask("DELETE", f"{TREE}/{job_folder}/deep", token=holder.token).status == 200
    assert listed(api, job_folder) == {"mine": 5}


def test_a_job_in_an_experiment_with_an_artifact_location(api: Api, holder: Holder) -> None:
    body = {"name": "elsewhere", "artifact_location": "mlflow-artifacts:/far/away"}
    experiment = api.ask("POST", "/api/2.0/mlflow/experiments/create", body).json
    run = holder.post("runs/create", experiment_id=experiment["experiment_id"]).json["run"]["info"]
    assert folder_of(run) == f"far/away/{run['run_id']}/artifacts"
    assert put(api, f"{folder_of(run)}/a", token=holder.token).status == 200
    refused(put(api, "far/away/x", token=holder.token), 403, "PERMISSION_DENIED")


WRITES_OUTPUTS = """
import os
os.makedirs("outputs/model")
open("outputs/model/w", "w").write("weights")
open("outputs/odd%41#name", "w").write("x")
open("logs/own.txt", "w").write("log")
"""


def test_outputs_of_a_job_are_among_its_artifacts(api: Api) -> None:
    api.submit(sys.executable, "-c", WRITES_OUTPUTS, name="leaves")
    assert api.wait("leaves")["state"] == "succeeded"
    folder = folder_of(run_of(api, "leaves"))
    put(api, f"{folder}/plot.png")
    assert listed(api, folder) == {"logs/": None, "outputs/": None, "plot.png": 5}
    # names that clients would decode to another name are not listed
    assert listed(api, f"{folder}/outputs") == {"model/": None}
    assert get(api, f"{folder}/outputs/model/w").content == b"weights"
    assert get(api, f"{folder}/logs/own.txt").content == b"log"
    answer = api.ask("DELETE", f"{TREE}/{folder}/outputs/model")
    refused(answer, 400, "INVALID_PARAMETER_VALUE")
    put(api, f"{folder}/outputs/model/w", b"better")
    assert get(api, f"{folder}/outputs/model/w").content == b"better"


def test_artifacts_go_with_their_job_and_their_bytes_with_them(api: Api) -> None:
    api.submit(sys.executable, "-c", WRITES_OUTPUTS, name="leaving")
    api.wait("leaving")
    folder = folder_of(run_of(api, "leaving"))
    put(api, f"{folder}/own", b"only the job has this")
    put(api, f"{folder}/shared", b"two have this")
    put(api, "stays/shared", b"two have this")
    assert api.ask("DELETE", "/api/jobs/leaving").status == 204
    assert listed(api, folder) == {}
    refused(get(api, f"{folder}/own"), 404, "RESOURCE_DOES_NOT_EXIST")
    _prune(api)
    contents = [path.read_bytes() for path in blob_files(api) if path.stat().st_size < 100]
    assert b"only the job has this" not in contents
    assert get(api, "stays/shared").content == b"two have this"


def test_a_registered_model_outlives_its_job(api: Api) -> None:
    api.submit(sys.executable, "-c", WRITES_OUTPUTS, name="origin")
    api.wait("origin")
    info = run_of(api, "origin")
    put(api, f"{folder_of(info)}/net/MLmodel", b"a model")
    put(api, f"{folder_of(info)}/other", b"x")
    api.ask("POST", "/api/2.0/mlflow/registered-models/create", {"name": "net"})
    for artifact in ("net", "outputs/model"):
        source = f"{info['artifact_uri']}/{artifact}"
        body = {"name": "net", "source": source, "run_id": info["run_id"]}
        created = api.ask("POST", "/api/2.0/mlflow/model-versions/create", body)
        assert created.status == 200, created.content
    assert api.ask("DELETE", "/api/jobs/origin").status == 204
    _prune(api)
    for version, path, content in (("1", "MLmodel", b"a model"), ("2", "w", b"weights")):
        body = {"name": "net", "version": version, "path": path}
        assert query(api, "/model-versions/get-artifact", **body).content == content
    refused(get(api, f"{folder_of(info)}/other"), 404, "RESOURCE_DOES_NOT_EXIST")


FULL = """
import pathlib, subprocess, sys
from retarget.blobs.folder import Blobs
from retarget.blobs.uploads import Uploads
from retarget.core.errors import StorageFull
room = pathlib.Path(sys.argv[1])
ended = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", room], capture_output=True)
if ended.returncode:
    sys.exit(77)
blobs, uploads = Blobs(room / "blobs"), Uploads(room / "uploads")
upload = uploads.create("a", 1)
small = blobs.put(b"small")
for writing in (blobs.writing, lambda: uploads.writing(upload, 1)):
    for piece in (1000, 100_000):
        try:
            with writing() as part:
                for _ in range(2_000_000 // piece):
                    part.write(b"x" * piece)
                part.keep()
            sys.exit("it fitted")
        except StorageFull:
            pass
left = sorted(path.name for path in room.rglob("*") if path.is_file())
assert left == sorted([small, "upload.json"]), left
"""


def test_a_full_disk_is_reported_and_no_partial_file_remains(tmp_path: Path) -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", FULL]
    try:
        ended = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    except FileNotFoundError:
        lacking("unshare is not installed")
        return
    if ended.returncode == 77 or "unshare" in ended.stderr:
        lacking("users cannot mount on this machine")
    assert ended.returncode == 0, ended.stderr


def _prune(api: Api) -> None:
    assert api.ask("POST", "/api/server/prune", keep_seconds=0).status == 200


def _peak(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _wait_until(is_true: Any) -> None:
    deadline = time.monotonic() + 200
    while not is_true():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def test_a_browser_sends_a_small_file_to_a_run(api: Api, holder: Holder) -> None:
    run_id = api.job("holder")["id"]
    url_path = "/ajax-api/2.0/mlflow/upload-artifact?" + urlencode({"run_uuid": run_id})
    assert api.ask("POST", f"{url_path}&path=sent/a.txt", b"sent").status == 200
    assert query(api, "/get-artifact", run_uuid=run_id, path="sent/a.txt").content == b"sent"
    for extra_query, content, word in (
        ("", b"x", "path"),
        ("&path=../a.txt", b"x", "Invalid path"),
        ("&path=a.txt", b"", "data"),
        ("&path=a.txt", bytes((10 << 20) + 1), "too large"),
    ):
        message = refused(
            api.ask("POST", url_path + extra_query, content), 400, "INVALID_PARAMETER_VALUE"
        )
        assert word in message
