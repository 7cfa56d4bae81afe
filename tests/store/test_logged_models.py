"""Logged models in SQL."""

import math
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Invalid, NotFound
from retarget.core.models import LoggedModel, LoggedModelStatus, ModelMetric
from retarget.core.tracking import DELETED, Metric
from retarget.store.engine import writing
from retarget.store.experiments import Experiments
from retarget.store.logged_models import VERSIONS_TAG, LoggedModels, log_model_metrics, note_version


@pytest.fixture
def logged(engine: Engine) -> LoggedModels:
    Experiments(engine).create("e", "", {}, now=1)
    return LoggedModels(engine)


def model(model_id: str = "m-1", now: int = 10, **fields: Any) -> LoggedModel:
    defaults: dict[str, Any] = {"experiment_id": "1", "name": "net", "location": "s3://x"}
    return LoggedModel(id=model_id, created_at=now, changed_at=now, **(defaults | fields))


def log(logged: LoggedModels, *metrics: Metric, run_id: str = "r") -> None:
    with writing(logged.engine) as db:
        log_model_metrics(db, run_id, metrics)


def test_a_model_is_kept_with_its_params_and_tags(logged: LoggedModels) -> None:
    created = model(
        params={"lr": "0.1"}, tags={"k": "ü"}, run_id="r", job_id="j", type="net", message="m"
    )
    logged.create(created)
    assert logged.get("m-1") == created


def test_a_model_needs_an_experiment(logged: LoggedModels) -> None:
    with pytest.raises(NotFound, match="No Experiment with id=7 exists"):
        logged.create(model(experiment_id="7"))


def test_a_missing_model_is_reported(logged: LoggedModels) -> None:
    for call in (
        lambda: logged.get("m-1"),
        lambda: logged.finalize("m-1", LoggedModelStatus.READY, now=1),
        lambda: logged.delete("m-1", now=1),
        lambda: logged.set_tags("m-1", {"k": "v"}),
        lambda: logged.delete_tag("m-1", "k"),
        lambda: logged.log_params("m-1", {"k": "v"}),
        lambda: log(logged, Metric("k", 1.0, 1, model_id="m-1")),
    ):
        with pytest.raises(NotFound, match="Logged model with ID 'm-1' not found"):
            call()


def test_a_deleted_model_is_returned_only_on_request(logged: LoggedModels) -> None:
    logged.create(model())
    logged.delete("m-1", now=20)
    with pytest.raises(NotFound):
        logged.get("m-1")
    deleted = logged.get("m-1", deleted=True)
    assert (deleted.stage, deleted.changed_at) == (DELETED, 20)


def test_a_model_is_finalized(logged: LoggedModels) -> None:
    logged.create(model())
    finalized = logged.finalize("m-1", LoggedModelStatus.FAILED, now=20)
    assert (finalized.status, finalized.changed_at) == (LoggedModelStatus.FAILED, 20)
    assert logged.get("m-1") == finalized


def test_tags_are_changed_and_deleted(logged: LoggedModels) -> None:
    logged.create(model(tags={"a": "1"}))
    logged.set_tags("m-1", {"a": "2", "b": "3"})
    logged.delete_tag("m-1", "b")
    assert logged.get("m-1").tags == {"a": "2"}
    with pytest.raises(NotFound, match="No tag with key 'b' found for model with ID 'm-1'"):
        logged.delete_tag("m-1", "b")


def test_a_param_never_changes(logged: LoggedModels) -> None:
    logged.create(model(params={"a": "1"}))
    logged.log_params("m-1", {"a": "1", "b": "2"})
    with pytest.raises(Invalid, match="Param with key='a' was already logged with value='1'"):
        logged.log_params("m-1", {"a": "2", "c": "3"})
    assert logged.get("m-1").params == {"a": "1", "b": "2"}


def test_metrics_come_back_with_their_runs(logged: LoggedModels) -> None:
    logged.create(model())
    first = Metric("acc", 0.5, 1, 0, "m-1", "train", "d1")
    log(logged, first, Metric("other", 1.0, 1))
    log(logged, first, Metric("acc", math.inf, 2, 1, "m-1"))
    log(logged, Metric("acc", 0.75, 1, 0, "m-1"), run_id="s")
    metrics = logged.get("m-1").metrics
    assert sorted(metrics) == [
        ModelMetric("r", first),
        ModelMetric("r", Metric("acc", math.inf, 2, 1, "m-1")),
        ModelMetric("s", Metric("acc", 0.75, 1, 0, "m-1")),
    ]
    log(logged, Metric("acc", math.nan, 2, 1, "m-1"))
    assert math.isnan(logged.get("m-1").metrics[-1].metric.value)


def test_models_are_loaded_in_the_requested_order(logged: LoggedModels) -> None:
    for name in ("m-1", "m-2", "m-3"):
        logged.create(model(name, tags={"of": name}))
    assert [loaded.id for loaded in logged.load(["m-3", "m-9", "m-1"])] == ["m-3", "m-1"]
    assert [loaded.tags["of"] for loaded in logged.load(["m-2", "m-1"])] == ["m-2", "m-1"]
    assert logged.load([]) == []


def test_a_runs_models_come_newest_first(logged: LoggedModels) -> None:
    for number, run_id in ((1, "r"), (2, "r"), (3, "s"), (4, "r")):
        logged.create(model(f"m-{number}", now=number, run_id=run_id))
    logged.delete("m-4", now=9)
    assert [loaded.id for loaded in logged.made_by("r")] == ["m-2", "m-1"]


@pytest.mark.parametrize("invalid", ["{", "7", ""])
def test_an_invalid_tag_of_versions_is_replaced(logged: LoggedModels, invalid: str) -> None:
    logged.create(model(tags={VERSIONS_TAG: invalid}))
    with writing(logged.engine) as db:
        note_version(db, "m-1", "net", 1)
        note_version(db, "m-1", "net", 1)
    assert logged.get("m-1").tags[VERSIONS_TAG] == '[{"name": "net", "version": 1}]'
