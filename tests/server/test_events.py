"""GET /api/events over a real server: what comes, what is missed, and what it costs."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from retarget.sdk.workspace import Workspace
from tests.server.conftest import Api, serving

_LOGS_METRICS = """
import time
from retarget import track
for step in range(200):
    track.log(loss=step)
    time.sleep(0.005)
open("outputs/model.txt", "w").write("model")
"""


class Stream:
    """A client of server-sent events."""

    def __init__(self, response: HTTPResponse, connection: HTTPConnection) -> None:
        self.response, self.connection = response, connection
        self.last_id = ""
        self.position = ""  # like last_id, but also from heartbeats

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield events until the response ends."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            self.position = fields.get("id", self.position)
            if "data" in fields:
                self.last_id = fields["id"]
                event = json.loads(fields["data"])
                assert event["noun"] == fields["event"]
                yield event
            fields = {}

    def until(self, is_last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Return the events up to this one."""
        events: list[dict[str, Any]] = []
        for event in self:
            events.append(event)
            if is_last(event):
                return events
        raise AssertionError(f"the stream ended after {events}")


@contextmanager
def streaming(
    api: Api, *, headers: dict[str, str] | None = None, **query: Any
) -> Generator[Stream]:
    address = urlsplit(api.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=200)
    path = f"/api/events?{urlencode(query, doseq=True)}"
    connection.request(
        "GET", path, headers={"Authorization": f"Bearer {api.token}"} | (headers or {})
    )
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.getheader("content-type", "").startswith("text/event-stream")
    try:
        yield Stream(response, connection)
    finally:
        response.close()
        connection.close()


def finished(api: Api, name: str, *command: str) -> dict[str, Any]:
    api.submit(*command, name=name)
    return api.wait(name)


def finished_batch(api: Api, count: int) -> list[dict[str, Any]]:
    specs = [{"command": ["true"], "cpus": 0.1} for _ in range(count)]
    jobs = api.ask("POST", "/api/jobs/batch", {"jobs": specs}).json
    return [api.wait(job["id"]) for job in jobs]


def is_about(noun: str, **fields: Any) -> Callable[[dict[str, Any]], bool]:
    expected = {"noun": noun, **fields}
    return lambda event: event | expected == event


def test_without_a_token_nothing_is_streamed(api: Api) -> None:
    assert api.ask("GET", "/api/events", token="").status == 401
    assert api.ask("GET", "/api/events", token="wrong", nouns="nonsense").status == 401
    answer = api.ask("GET", "/api/events", nouns="job,nonsense")
    assert (answer.status, answer.json["field"]) == (422, "nouns")
    assert "'nonsense'" in answer.json["message"]
    assert api.ask("GET", "/api/events", nouns="log").status == 422  # inside servers only


def test_a_stream_begins_with_a_reset_and_shows_a_job_until_it_is_deleted(api: Api) -> None:
    with streaming(api, nouns="job") as stream:
        assert next(iter(stream)) == {"noun": "reset"}
        job = finished(api, "watched", "true")
        assert api.ask("DELETE", "/api/jobs/watched").status == 204
        events = stream.until(lambda event: "version" not in event)
    assert all(event["noun"] == "job" and event["id"] == job["id"] for event in events)
    versions = {event.get("version") for event in events}
    assert {job["version"], None} <= versions  # others may be published together
    assert min(version for version in versions if version is not None) <= 1


def test_a_job_that_tracks_publishes_its_metrics_coalesced_and_its_outputs(api: Api) -> None:
    with streaming(api) as stream:
        began = time.monotonic()
        job = finished(api, "tracks", sys.executable, "-c", _LOGS_METRICS)
        seconds = time.monotonic() - began
        assert job["state"] == "succeeded", job["reason"]
        final = is_about("job", id=job["id"], version=job["version"])
        events = stream.until(final)
    metrics = [event for event in events if event["noun"] == "metric"]
    assert set(map(str, metrics)) == {str({"noun": "metric", "id": job["id"], "job": job["id"]})}
    assert 1 <= len(metrics) <= seconds / 0.25 + 2
    outputs = [event for event in events if event["noun"] == "output"]
    expected = {"noun": "output", "id": job["id"], "version": 1, "job": job["id"]}
    assert expected in outputs


def test_an_mlflow_client_publishes_metrics_of_its_run(api: Api) -> None:
    created = api.ask("POST", "/api/2.0/mlflow/runs/create", {"experiment_id": "0"})
    run = created.json["run"]["info"]["run_id"]
    with streaming(api, nouns="metric") as stream:
        assert next(iter(stream))["noun"] == "reset"
        metric = {"run_id": run, "key": "loss", "value": 1.0, "timestamp": 1}
        requests: list[tuple[str, dict[str, Any]]] = [
            ("log-metric", metric),
            ("log-parameter", {"run_id": run, "key": "lr", "value": "0.1"}),
            ("log-batch", {"run_id": run, "metrics": [metric | {"step": 1}]}),
        ]
        for path, body in requests:
            answer = api.ask("POST", f"/api/2.0/mlflow/runs/{path}", body)
            assert answer.status == 200, answer.content
            time.sleep(0.5)  # longer than events are held back
            event = stream.until(is_about("metric", id=run))[-1]
            assert event == {"noun": "metric", "id": run}  # it belongs to no job


def test_a_target_publishes_changes_and_checks_only_with_another_result(api: Api) -> None:
    with streaming(api, nouns="target,job") as stream:
        assert next(iter(stream))["noun"] == "reset"
        changed = api.ask("PATCH", "/api/targets/local", {"tags": {"room": "12"}})
        assert changed.status == 200, changed.content
        stream.until(is_about("target", id="local"))
        assert api.ask("POST", "/api/targets/local/check").status == 200
        job = finished(api, "after-the-check", "true")
        events = stream.until(is_about("job", id=job["id"], version=job["version"]))
    assert not [event for event in events if event["noun"] == "target"]


def test_only_the_chosen_jobs_are_shown(api: Api) -> None:
    first, second = (api.submit("sleep", "0.5", name=f"chosen-{n}") for n in range(2))
    with streaming(api, job=[second["id"]]) as stream:
        for name in (first["name"], second["name"]):
            final = api.wait(name)
        events = stream.until(is_about("job", id=second["id"], version=final["version"]))
    assert {event.get("id") for event in events} == {None, second["id"]}


@pytest.mark.parametrize("by_header", [True, False])
def test_a_client_that_comes_back_loses_nothing_and_repeats_nothing(
    api: Api, by_header: bool
) -> None:
    with streaming(api, nouns="job") as stream:
        assert next(iter(stream))["noun"] == "reset"
        position = stream.last_id
    finals = {job["id"]: job["version"] for job in finished_batch(api, 12)}
    after: dict[str, Any] = (
        {"headers": {"Last-Event-ID": position}, "after": "other-1"}  # the header wins
        if by_header
        else {"after": position}
    )
    events: list[dict[str, Any]] = []
    while not finals.items() <= {(event["id"], event["version"]) for event in events}:
        with streaming(api, nouns="job", **after) as stream:
            events.append(next(iter(stream)))  # one of each connection
            after = {"after": stream.last_id}
    assert {event["noun"] for event in events} == {"job"}
    assert {event["id"] for event in events} == set(finals)
    assert len({(event["id"], event["version"]) for event in events}) == len(events)


def test_a_restarted_server_ends_its_streams_and_answers_old_ids_with_a_reset(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "home") as api, streaming(api) as stream:
        finished(api, "first", "true")
        assert next(iter(stream))["noun"] == "reset"
        assert api.ask("POST", "/api/server/stop").status == 202
        list(stream)  # to its end, which is not an error
        position = stream.last_id
        while (api.home / "servers/main/server.json").exists():
            time.sleep(0.01)
    with serving(tmp_path / "home") as api, streaming(api, after=position) as stream:
        assert next(iter(stream)) == {"noun": "reset"}
        assert stream.last_id.partition("-")[0] != position.partition("-")[0]


def test_the_iterator_of_the_sdk_continues_over_a_restart_with_a_reset(tmp_path: Path) -> None:
    received: list[Any] = []
    with serving(tmp_path / "home", RETARGET_PORT="0") as api:
        port = urlsplit(api.url).port
        workspace = Workspace(api.url, api.token)
        events = workspace.events(nouns=["job"])
        assert next(events).noun == "reset"
        first = finished(api, "first", "true")
        while (event := next(events)).version != first["version"]:
            assert (event.noun, event.id, event.job) == ("job", first["id"], first["id"])
        thread = threading.Thread(target=lambda: received.append(next(events)))
        thread.start()
    # a new server would remove the file of the old one while the next line reads it
    assert not (tmp_path / "home/servers/main/server.json").exists()
    with serving(tmp_path / "home", RETARGET_PORT=str(port)) as api:
        thread.join(200)
        assert [event.noun for event in received] == ["reset"]
        second = workspace.jobs["first"].rerun(name="second")
        assert next(events).id == second.id
        second.wait()


def test_the_iterator_of_the_sdk_continues_a_broken_connection_without_a_reset(api: Api) -> None:
    with _Proxy(api) as proxy:
        events = Workspace(proxy.url, api.token).events(nouns=["job"])
        assert next(events).noun == "reset"
        proxy.cut()
        finals = {job["id"]: job["version"] for job in finished_batch(api, 3)}
        seen: list[tuple[str | None, int | None]] = []
        while not finals.items() <= set(seen):
            event = next(events)
            seen.append((event.id, event.version))
            proxy.cut()
        assert {job_id for job_id, _ in seen} == set(finals)
        assert len(set(seen)) == len(seen)


def test_streams_and_waits_cost_nothing_while_nothing_happens(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as api:
        cpus = api.ask("POST", "/api/targets/local/check").json["inventory"]["nodes"][0]["cpus"]
        api.submit("sleep", "600", name="held", cpus=cpus)
        version = api.wait("held", "running")["version"]
        waiting = [{"command": ["true"], "cpus": cpus} for _ in range(1000)]
        ids = [job["id"] for job in api.ask("POST", "/api/jobs/batch", {"jobs": waiting}).json]
        time.sleep(5)  # until all reasons are written
        alone = _cpu_seconds(api, 5.0)
        body = json.dumps({"jobs": ids, "timeout_seconds": 30}).encode()
        requests = [_request(api, "GET", "/api/events")] * 200
        requests += [_request(api, "GET", f"/api/jobs/held?wait=30&version={version}")] * 190
        requests += [_request(api, "POST", "/api/jobs/wait", body)] * 10
        connections = [_open(api, request) for request in requests]
        time.sleep(3)
        watched = _cpu_seconds(api, 5.0)
        for connection in connections:
            connection.close()
        api.ask("POST", "/api/jobs/held/cancel")
        print(f"CPU seconds of 5: {alone:.2f} alone, {watched:.2f} with 200 streams and waits")
        assert watched - alone < 0.25
        for job in ids:
            api.ask("POST", f"/api/jobs/{job}/cancel")


class _Proxy:
    """Forwards connections to a server, and cuts them when told to."""

    def __init__(self, api: Api) -> None:
        address = urlsplit(api.url)
        self._server = (address.hostname or "", address.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "_Proxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        while self._open:
            end = self._open.pop()
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                sink.sendall(content)


def _cpu_seconds(api: Api, seconds: float) -> float:
    """Return how much CPU time the server takes in that time."""
    before = _used(api.pid)
    time.sleep(seconds)
    return _used(api.pid) - before


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _request(api: Api, method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _open(api: Api, request: bytes) -> socket.socket:
    address = urlsplit(api.url)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    connection.sendall(request)
    return connection
