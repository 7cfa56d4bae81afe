"""What jobs logged, read through Retarget's own API."""

import json
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.conftest import Api


def log(api: Api, run_id: str, **batch: Any) -> None:
    answer = api.ask("POST", "/api/2.0/mlflow/runs/log-batch", {"run_id": run_id, **batch})
    assert answer.status == 200, answer.content


def series(key: str, *values: Any) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": value, "timestamp": 1000 + step, "step": step}
        for step, value in enumerate(values)
    ]


def done(api: Api, **fields: Any) -> dict[str, Any]:
    return api.wait(api.submit("true", **fields)["name"])


def test_a_job_that_logged_nothing_has_a_run_of_its_own(api: Api) -> None:
    job = done(api, name="silent", experiment="quiet")
    tracking = api.ask("GET", "/api/jobs/silent/tracking").json
    assert tracking == {
        "run_id": job["id"],
        "experiment": "quiet",
        "status": "FINISHED",
        "metrics": [],
        "params": {},
        "tags": tracking["tags"],
        "models": [],
    }
    assert tracking["tags"] == {
        "mlflow.runName": "silent",
        "mlflow.source.name": "true",
        "mlflow.source.type": "JOB",
    }


def test_what_was_logged_is_shown_and_odd_numbers_survive(api: Api) -> None:
    job = done(api, name="odd")
    metrics = [
        *series("loss", 0.5, 0.25),
        *series("gone", "NaN"),
        *series("up", "Infinity"),
        *series("down", "-Infinity"),
    ]
    params = [{"key": "lr", "value": "0.1"}]
    log(api, job["id"], metrics=metrics, params=params, tags=[{"key": "who", "value": "me"}])
    tracking = api.ask("GET", f"/api/jobs/{job['id']}/tracking").json
    assert {metric["key"]: metric["value"] for metric in tracking["metrics"]} == {
        "down": "-Infinity",
        "gone": "NaN",
        "loss": 0.25,
        "up": "Infinity",
    }
    [loss] = [metric for metric in tracking["metrics"] if metric["key"] == "loss"]
    assert (loss["step"], loss["logged_at"]) == (1, "1970-01-01T00:00:01.001000Z")
    assert (tracking["params"], tracking["tags"]["who"]) == ({"lr": "0.1"}, "me")


def test_the_state_of_a_job_and_the_status_of_its_run_are_two_things(api: Api) -> None:
    job = done(api, name="two-things")
    body = {"run_id": job["id"], "status": "KILLED"}
    assert api.ask("POST", "/api/2.0/mlflow/runs/update", body).status == 200
    assert api.job("two-things")["state"] == "succeeded"
    assert api.ask("GET", "/api/jobs/two-things/tracking").json["status"] == "KILLED"


def test_a_metric_is_sampled_by_step_and_its_bounds_are_of_all_points(api: Api) -> None:
    job = done(api, name="long")
    values = [float(step) for step in range(1000)]
    values[500] = -7.0
    log(api, job["id"], metrics=series("val/loss", *values))
    full = api.ask("GET", "/api/jobs/long/metrics/val/loss").json
    assert [point["value"] for point in full["points"]] == values
    few = api.ask("GET", "/api/jobs/long/metrics/val/loss", points=11).json
    assert (few["key"], few["total"], few["min"], few["max"]) == ("val/loss", 1000, -7.0, 999.0)
    steps = [point["step"] for point in few["points"]]
    assert (len(steps), steps[0], steps[-1]) == (11, 0, 999)
    assert steps == sorted(steps)
    [last] = api.ask("GET", "/api/jobs/long/metrics/val/loss", points=1).json["points"]
    assert last["step"] == 999
    for points in (0, 10_001, "many"):
        assert api.ask("GET", "/api/jobs/long/metrics/val/loss", points=points).status == 422


def test_a_metric_without_a_number_has_no_bounds(api: Api) -> None:
    job = done(api, name="nothing-but-nan")
    log(api, job["id"], metrics=series("x", "NaN", "NaN"))
    metric = api.ask("GET", "/api/jobs/nothing-but-nan/metrics/x").json
    assert (metric["total"], metric["min"], metric["max"]) == (2, None, None)
    assert [point["value"] for point in metric["points"]] == ["NaN", "NaN"]


def test_a_missing_metric_is_reported_with_the_existing_ones(api: Api) -> None:
    job = done(api, name="some")
    answer = api.ask("GET", "/api/jobs/some/metrics/acc")
    assert (answer.status, answer.json["message"]) == (
        404,
        "job 'some' has no metric 'acc'; it has logged none",
    )
    log(api, job["id"], metrics=series("loss", 1))
    assert "it has loss" in api.ask("GET", "/api/jobs/some/metrics/acc").json["message"]
    assert api.ask("GET", "/api/jobs/nobody/metrics/acc").status == 404
    assert api.ask("GET", "/api/jobs/nobody/tracking").status == 404


def test_experiments_show_their_runs(api: Api) -> None:
    job = done(api, name="inside", experiment="trial")
    name = "team/über ?#"
    body = {"name": name, "tags": [{"key": "area", "value": "vision"}]}
    assert api.ask("POST", "/api/2.0/mlflow/experiments/create", body).status == 200
    experiments = api.ask("GET", "/api/experiments").json
    [trial] = [experiment for experiment in experiments if experiment["name"] == "trial"]
    assert (trial["stage"], trial["jobs"], trial["runs"]) == ("active", 1, 1)
    changed, ended = (
        datetime.fromisoformat(time) for time in (trial["changed_at"], job["ended_at"])
    )
    assert abs(changed - ended) < timedelta(seconds=0.01)
    run = {"experiment_id": trial["id"], "run_name": "by hand", "start_time": 5}
    run_id = api.ask("POST", "/api/2.0/mlflow/runs/create", run).json["run"]["info"]["run_id"]
    log(api, run_id, metrics=series("acc", 0.5))
    shown = api.ask("GET", "/api/experiments/trial").json
    assert (shown["jobs"], shown["runs"]) == (1, 2)
    first, second = shown["newest"]
    assert (first["job"], first["state"], first["run_id"]) == ("inside", "succeeded", job["id"])
    assert (second["job"], second["state"], second["name"]) == (None, None, "by hand")
    assert (second["status"], second["started_at"]) == (
        "RUNNING",
        "1970-01-01T00:00:00.005000Z",
    )
    assert [(metric["key"], metric["value"]) for metric in second["metrics"]] == [("acc", 0.5)]
    assert len(api.ask("GET", "/api/experiments/trial", limit=1).json["newest"]) == 1
    odd = api.ask("GET", f"/api/experiments/{quote(name, safe='')}").json
    assert (odd["name"], odd["tags"], odd["newest"]) == (name, {"area": "vision"}, [])


def test_a_deleted_run_does_not_count_and_a_deleted_experiment_says_so(api: Api) -> None:
    created = api.ask("POST", "/api/2.0/mlflow/experiments/create", {"name": "old"}).json
    run = {"experiment_id": created["experiment_id"], "start_time": 1}
    run_id = api.ask("POST", "/api/2.0/mlflow/runs/create", run).json["run"]["info"]["run_id"]
    api.ask("POST", "/api/2.0/mlflow/runs/delete", {"run_id": run_id})
    shown = api.ask("GET", "/api/experiments/old").json
    assert (shown["stage"], shown["runs"], shown["newest"]) == ("active", 0, [])
    api.ask("POST", "/api/2.0/mlflow/experiments/delete", created)
    assert api.ask("GET", "/api/experiments/old").json["stage"] == "deleted"
    missing = api.ask("GET", "/api/experiments/never")
    assert (missing.status, missing.json["error"]) == (404, "NotFound")
    assert "retarget experiment list" in missing.json["message"]


@pytest.mark.parametrize(
    "path", ["jobs/x/tracking", "jobs/x/metrics/loss", "experiments", "experiments/x"]
)
def test_tracking_needs_the_token_of_a_user(api: Api, path: str) -> None:
    assert api.ask("GET", f"/api/{path}", token="").status == 401
    assert api.ask("GET", f"/api/{path}", token="wrong").status == 401


def test_openapi_documents_how_special_numbers_are_written(api: Api) -> None:
    schemas = api.ask("GET", "/openapi.json").json["components"]["schemas"]
    value = json.dumps(schemas["PointView"]["properties"]["value"])
    assert all(word in value for word in ('"NaN"', '"Infinity"', '"-Infinity"', '"number"'))
