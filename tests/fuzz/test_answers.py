"""The client reads answers of other programs and of other versions of the server."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.cli.show import show_job, show_timing, show_why
from retarget.cli.show_jobs import show_jobs
from retarget.cli.show_models import show_model, show_models, show_version
from retarget.core.errors import RetargetError
from retarget.sdk.display import Displayable
from retarget.sdk.environment_registry import Environments
from retarget.sdk.follow import Watch
from retarget.sdk.http import Address, Connection, RemoteServer
from retarget.sdk.job import Job
from retarget.sdk.jobs import Jobs, wait_all
from retarget.sdk.models import Model, Models, ModelVersion
from retarget.sdk.sizes import Sizes
from retarget.sdk.targets import Targets
from retarget.sdk.tracking import Experiments
from retarget.sdk.uploads import Uploads
from retarget.sdk.workspace import Prepared, Workspace
from tests.fuzz.mutated import noise, read_or_refused

_EARLY, _LATE = "2025-01-01T00:00:01.500000Z", "2025-01-01T00:00:03.500000Z"
_ATTEMPT: dict[str, Any] = {
    **{"number": 1, "target": "local", "exit_code": 0, "reason": "", "created_at": _EARLY},
    **{"launched_at": _EARLY, "started_at": _LATE, "first_output_at": None, "ended_at": _LATE},
    "resumes": 0,
}
_JOB: dict[str, Any] = {
    **{"id": "j1", "name": "calm-otter", "state": "succeeded", "reason": "", "version": 3},
    **{"target": "local", "experiment": "Default", "command": ["python", "a.py"]},
    **{"display_name": "The otter", "description": "", "tags": {"k": "v"}, "properties": {}},
    **{"exit_code": 0, "attempt": 1, "created_at": _EARLY, "changed_at": _LATE},
    **{"failures": 0, "preemptions": 0, "started_at": _EARLY, "ended_at": _LATE},
    **{"priority": 0, "cpus": 1.0, "memory": None, "gpus": 0, "nodes": 1, "retries": 0},
    **{"processes_per_node": 1, "timeout": None, "snapshot": None, "variables": {"A": "b"}},
    "excluded": [{"path": "a/", "rule": "default", "files": 1, "size": 1, "at_least": False}],
    "hint": None,
    "secrets": [],
    "notices": [],
    "own_packages": [],
    "allow_pip": False,
    "split_stderr": False,
    **{
        "environment": {
            "kind": "user",
            "python": None,
            "prefer": None,
            "name": None,
            "conda": [],
            "pip": [],
        },
        "attempts": [_ATTEMPT],
    },
}
_POINT: dict[str, Any] = {"step": 1, "logged_at": _EARLY, "value": "NaN"}
_LOGGED: dict[str, Any] = {"metrics": [_POINT | {"key": "loss"}], "params": {"lr": "1"}}
_TRACKING: dict[str, Any] = {
    **_LOGGED,
    **{"run_id": "r", "experiment": "e", "status": "RUNNING", "tags": {}, "models": ["m"]},
}
_SERIES: dict[str, Any] = {
    "key": "loss",
    "total": 1,
    "min": 0,
    "max": "Infinity",
    "points": [_POINT],
}
_RUN: dict[str, Any] = {
    **_LOGGED,
    **{"run_id": "r", "name": "n", "job": None, "state": None, "status": "FAILED"},
    **{"started_at": _EARLY, "ended_at": None},
}
_EXPERIMENT: dict[str, Any] = {
    "id": "1",
    "name": "e",
    "stage": "active",
    "jobs": 1,
    "runs": 1,
    "changed_at": _EARLY,
    "tags": {},
}
_TARGET: dict[str, Any] = {
    **{"name": "local", "kind": "local", "config": {}, "tags": {}, "inventory": None},
    **{"checked_at": _EARLY, "reason": "", "jobs": {"queued": 1}, "used": {"cpus": 1, "memory": 5}},
}
_SIZE: dict[str, Any] = {
    **{"name": "Standard_NC6", "series": "NC", "cpus": 6.0, "memory": 5, "gpus": 1},
    **{"gpu_model": "K80", "gpu_memory": None, "isolated": False, "restricted": True},
}
_ENVIRONMENT: dict[str, Any] = {
    **{"name": "e", "digest": "d", "kind": "system", "python": "3.12", "conda": []},
    **{"channels": [], "pip": ["numpy"], "created_at": _EARLY, "built": [{}]},
}
_VERSION: dict[str, Any] = {
    **{"name": "m", "version": 1, "description": "", "stage": "None", "source": "s", "tags": {}},
    **{"location": "l", "created_at": _EARLY, "changed_at": _EARLY, "aliases": ["best"]},
    "lineage": {
        "job_id": "j",
        "job_name": "n",
        "snapshot": None,
        "environment": None,
        "metrics": {"a": "NaN"},
    },
}
_MODEL: dict[str, Any] = {
    **{
        "name": "m",
        "description": "",
        "created_at": _EARLY,
        "changed_at": _EARLY,
        "tags": {"a": "b"},
    },
    **{"aliases": {"best": 1}, "latest": _VERSION, "versions": [_VERSION]},
}
_FILE: dict[str, Any] = {"path": "outputs/a", "size": 3, "digest": "d"}
_TRANSITION: dict[str, Any] = {
    "version": 1,
    "event": "started",
    "state": "running",
    "reason": "",
    "at": _EARLY,
}
_STREAM: dict[str, Any] = {"stream": "output", "size": 3}
_WHY: dict[str, Any] = {"state": "queued", "reason": "", "behind": ["a"], "diagnosis": None}


def workspace(connection: Connection) -> Workspace:
    return Workspace(connection.address.url, "token")


def of_a_job(use: Callable[[Job], object]) -> Callable[[Connection], object]:
    return lambda connection: use(Job(connection, _JOB))


def look_at(job: Job) -> object:
    show_timing(job.timing())
    return repr(job), job.exit_code, job.attempts, job.excluded, job.wait(timeout=0.01)


def look_at_version(version: ModelVersion) -> object:
    return version.tags, version.aliases, version.lineage


# What the client reads, and the answer of the server.
READS: dict[str, tuple[Any, Callable[[Connection], object]]] = {
    "job": (_JOB, lambda connection: look_at(Jobs(connection)["a"])),
    "jobs": ([_JOB], lambda connection: show_jobs(Jobs(connection).list(limit=2))),
    "sent": (_JOB, lambda connection: look_at(workspace(connection).send(Prepared({})))),
    "batch": ([_JOB], lambda connection: workspace(connection).send_all([Prepared({})])),
    "prune": ({"removed": 1}, lambda connection: workspace(connection).prune()),
    "refresh": (_JOB, of_a_job(lambda job: look_at(job.refresh()))),
    "cancel": (_JOB, of_a_job(lambda job: job.cancel())),
    "rerun": (_JOB, of_a_job(lambda job: look_at(job.rerun()))),
    "outputs": ([_FILE], of_a_job(lambda job: job.outputs())),
    "streams": ([_STREAM], of_a_job(lambda job: job.streams())),
    "history": ([_TRANSITION], of_a_job(lambda job: job.history())),
    "why": (_WHY, of_a_job(lambda job: show_why(job.why()))),
    "tracking": (_TRACKING, of_a_job(lambda job: (job.metrics(), job.params()))),
    "tags": (_JOB, of_a_job(lambda job: job.tags())),
    "series": (_SERIES, of_a_job(lambda job: list(job.metric_history("loss")))),
    "registered": (_VERSION, of_a_job(lambda job: look_at_version(job.register_model("m", "p")))),
    "all": (
        {"done": True, "jobs": [_JOB]},
        lambda connection: wait_all(connection, [Job(connection, _JOB)], 0.01),
    ),
    "change": (_JOB, lambda connection: Watch(connection, _JOB).wait_for_change()),
    "rest": ([_STREAM], lambda connection: list(Watch(connection, _JOB)._read_rest(1))),  # pyright: ignore[reportPrivateUsage]
    "target": (_TARGET, lambda connection: Targets(connection)["local"]),
    "targets": ([_TARGET], lambda connection: Targets(connection).list()),
    "kinds": ([{"kind": "local"}], lambda connection: Targets(connection).kinds()),
    "size": (_SIZE, lambda connection: Displayable.table([Sizes(connection)["a"]])),
    "sizes": ([_SIZE], lambda connection: Sizes(connection).list(gpus=True)),
    "environment": (_ENVIRONMENT, lambda connection: Environments(connection)["e"].to_json()),
    "environments": ([_ENVIRONMENT], lambda connection: Environments(connection).list()),
    "removed": ({"removed": ["a"]}, lambda connection: Environments(connection).delete("e")),
    "experiments": ([_EXPERIMENT], lambda connection: Experiments(connection).list()),
    "experiment": (
        _EXPERIMENT | {"newest": [_RUN]},
        lambda connection: Experiments(connection).get("e", limit=5),
    ),
    "models": ([_MODEL], lambda connection: show_models(Models(connection).list())),
    "model": (_MODEL, lambda connection: show_model(workspace(connection).models["m"])),
    "version": (_VERSION, lambda connection: look_at_version(Model(connection, _MODEL)["1"])),
    "files": ([_FILE], lambda connection: ModelVersion(connection, _VERSION).files()),
    "alias": (_VERSION, lambda connection: ModelVersion(connection, _VERSION).alias("best")),
    "complete": ({"complete": True}, lambda connection: Uploads(connection).is_complete("d")),
    "missing": ({"missing": ["d"]}, lambda connection: set(Uploads(connection).missing({"d": 1}))),
}

_WRONG: list[Any] = [None, True, -1, 0.5, "", "x", [], ["x"], [None], {}, {"x": 1}]


@st.composite
def damaged(draw: st.DrawFn, answer: Any) -> Any:
    """Draw the answer with one value missing or of another type."""
    if isinstance(answer, dict) and answer and draw(st.integers(0, 9)):
        fields = cast("dict[str, Any]", answer)
        name = draw(st.sampled_from(sorted(fields)))
        rest = {key: value for key, value in fields.items() if key != name}
        return rest | ({name: draw(damaged(fields[name]))} if draw(st.integers(0, 3)) else {})
    if isinstance(answer, list) and answer and draw(st.integers(0, 3)):
        return [draw(damaged(answer[0]))]
    return draw(st.sampled_from(_WRONG))


class AnswerHandler(http.server.BaseHTTPRequestHandler):
    """Answers /health with `health`, and all other requests with `answer`."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    answer = b""
    health = b'{"status":"ok"}'

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = self.health if self.path == "/health" else self.answer
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), AnswerHandler)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    connection = Connection(RemoteServer(Address(f"http://127.0.0.1:{serving.server_port}", "t")))
    yield connection
    connection.close()
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.mark.parametrize("what", READS)
def test_the_right_answer_is_read(connection: Connection, what: str) -> None:
    right, read = READS[what]
    AnswerHandler.answer = json.dumps(right).encode()
    read(connection)


@pytest.mark.parametrize("what", READS)
@given(data=st.data())
def test_answers_of_another_shape(connection: Connection, what: str, data: st.DataObject) -> None:
    right, read = READS[what]
    AnswerHandler.answer = json.dumps(data.draw(damaged(right))).encode()
    read_or_refused(lambda: read(connection))


@given(data=st.data())
def test_jobs_and_versions_of_another_shape_are_shown_or_refused(
    connection: Connection, data: st.DataObject
) -> None:
    with suppress(RetargetError):
        job = Job(connection, data.draw(damaged(_JOB)))
        AnswerHandler.answer = json.dumps(_TRACKING).encode()
        read_or_refused(lambda: show_job(job))
    with suppress(RetargetError):
        version = ModelVersion(connection, data.draw(damaged(_VERSION)))
        read_or_refused(lambda: show_version(version))


@given(noise(AnswerHandler.health, b"[" * 3000, b'["status"]'))
def test_who_answers_for_the_first_time(connection: Connection, content: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnswerHandler, "health", content)
        AnswerHandler.answer = b"{}"
        new = Connection(RemoteServer(connection.address), verify=True)
        read_or_refused(lambda: new.get("/x"))
        new.close()
