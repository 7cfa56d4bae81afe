"""Experiments in SQL."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Conflict, Forbidden, Invalid, NotFound
from retarget.core.jobs import Job
from retarget.store.experiments import Experiments
from retarget.store.runs import Runs


@pytest.fixture
def experiments(engine: Engine) -> Experiments:
    return Experiments(engine)


def test_the_default_experiment_exists(experiments: Experiments) -> None:
    assert experiments.get("0").name == "Default"
    assert experiments.get("").location == "mlflow-artifacts:/0"


def test_an_experiment_comes_back_as_it_was_created(experiments: Experiments) -> None:
    experiment = experiments.create("é/x y", "", {"a": "b"}, now=5)
    assert experiments.get(experiment.id) == experiments.find("é/x y") == experiment
    assert (experiment.location, experiment.tags, experiment.created_at) == (
        f"mlflow-artifacts:/{experiment.id}",
        {"a": "b"},
        5,
    )
    assert experiments.create("s3", "s3://b/x", {}, now=5).location == "s3://b/x"
    with pytest.raises(Conflict, match="already exists"):
        experiments.create("é/x y", "", {}, now=6)


def test_a_missing_experiment_is_reported(experiments: Experiments) -> None:
    for wrong in ("77", "-1", "99999999999999999999", "9" * 5000):
        with pytest.raises(NotFound, match="No Experiment with id="):
            experiments.get(wrong)
    for wrong in ("x", "-", "1.5", "²"):
        with pytest.raises(Invalid, match="must be a valid integer"):
            experiments.get(wrong)
    with pytest.raises(NotFound, match="name 'x'"):
        experiments.find("x")


def test_deleting_takes_its_runs_along_and_restoring_brings_them_back(
    experiments: Experiments, add: Callable[..., Job]
) -> None:
    job = add(experiment="a")
    runs, experiment = Runs(experiments.engine), experiments.find("a")
    experiments.delete(experiment.id, now=9)
    assert experiments.get(experiment.id).stage == runs.get(job.id).stage == "deleted"
    with pytest.raises(NotFound):
        experiments.delete(experiment.id, now=9)
    with pytest.raises(Invalid, match="must be in the 'active' state"):
        experiments.set_tag(experiment.id, "a", "b")
    with pytest.raises(Invalid, match="Cannot rename"):
        experiments.rename(experiment.id, "b", now=9)
    with pytest.raises(Conflict, match="experiment 'a' is deleted; choose another or restore it"):
        add(experiment="a")
    experiments.restore(experiment.id, now=10)
    assert experiments.get(experiment.id).stage == runs.get(job.id).stage == "active"
    with pytest.raises(NotFound):
        experiments.restore(experiment.id, now=9)


def test_tags_and_names_change(experiments: Experiments) -> None:
    experiment = experiments.create("a", "", {}, now=5)
    experiments.set_tag(experiment.id, "k", "1")
    experiments.set_tag(experiment.id, "k", "2")
    experiments.rename(experiment.id, "b", now=6)
    assert (experiments.find("b").tags, experiments.find("b").changed_at) == ({"k": "2"}, 6)
    experiments.delete_tag(experiment.id, "k")
    with pytest.raises(NotFound, match="No tag with name: k"):
        experiments.delete_tag(experiment.id, "k")
    with pytest.raises(Conflict):
        experiments.rename(experiment.id, "Default", now=7)
    assert [loaded.name for loaded in experiments.load([experiment.id, "0", "55"])] == [
        "b",
        "Default",
    ]


def test_concurrent_callers_get_the_same_experiment(
    experiments: Experiments, other: Engine, race: Callable[..., list[Any]]
) -> None:
    stores = [experiments, Experiments(other)] * 4
    ensured = race([lambda store=store: store.ensure("new", now=1) for store in stores])
    assert len({experiment.id for experiment in ensured}) == 1
    assert ensured[0].location == f"mlflow-artifacts:/{ensured[0].id}"


def test_a_job_changes_only_an_experiment_that_is_all_its_own(
    experiments: Experiments, add: Callable[..., Job]
) -> None:
    experiment = experiments.create("a", "", {}, now=5, by_job="j1")
    assert experiments.get(experiment.id).created_by_job == "j1"
    for stranger in ("j2", ""):
        with pytest.raises(Forbidden, match="'a': it was not created by this job"):
            experiments.rename(experiment.id, "b", now=6, by_job=stranger)
    experiments.rename(experiment.id, "b", now=6, by_job="j1")
    experiments.delete(experiment.id, now=7, by_job="j1")
    experiments.restore(experiment.id, now=8, by_job="j1")
    add(experiment="b")
    changes: list[Callable[[], None]] = [
        lambda: experiments.rename(experiment.id, "c", now=9, by_job="j1"),
        lambda: experiments.delete(experiment.id, now=9, by_job="j1"),
    ]
    for change in changes:
        with pytest.raises(Forbidden, match="'b': it contains runs that this job did not create"):
            change()
    experiments.delete(experiment.id, now=9)
    with pytest.raises(Forbidden, match="contains runs"):
        experiments.restore(experiment.id, now=9, by_job="j1")
