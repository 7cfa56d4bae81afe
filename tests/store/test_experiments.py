"""Experiments in SQL."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.jobs import Job
from retarget.store.experiments import Experiments
from retarget.store.runs import Runs


@pytest.fixture
def experiments(engine: Engine) -> Experiments:
    return Experiments(engine)


def test_there_is_a_default_one(experiments: Experiments) -> None:
    assert experiments.get("0").name == "Default"
    assert experiments.get("").location == "mlflow-artifacts:/0"


def test_one_comes_back_as_it_was_made(experiments: Experiments) -> None:
    made = experiments.create("é/x y", "", {"a": "b"}, now=5)
    assert experiments.get(made.id) == experiments.find("é/x y") == made
    assert (made.location, made.tags, made.created) == (
        f"mlflow-artifacts:/{made.id}",
        {"a": "b"},
        5,
    )
    assert experiments.create("s3", "s3://b/x", {}, now=5).location == "s3://b/x"
    with pytest.raises(Conflict, match="already exists"):
        experiments.create("é/x y", "", {}, now=6)


def test_one_that_is_not_there_is_told(experiments: Experiments) -> None:
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
    runs, made = Runs(experiments.engine), experiments.find("a")
    experiments.delete(made.id, now=9)
    assert experiments.get(made.id).stage == runs.get(job.id).stage == "deleted"
    with pytest.raises(NotFound):
        experiments.delete(made.id, now=9)
    with pytest.raises(Invalid, match="must be in the 'active' state"):
        experiments.set_tag(made.id, "a", "b")
    with pytest.raises(Invalid, match="Cannot rename"):
        experiments.rename(made.id, "b", now=9)
    with pytest.raises(Conflict, match="experiment 'a' is deleted; choose another or restore it"):
        add(experiment="a")
    experiments.restore(made.id, now=10)
    assert experiments.get(made.id).stage == runs.get(job.id).stage == "active"
    with pytest.raises(NotFound):
        experiments.restore(made.id, now=9)


def test_tags_and_names_change(experiments: Experiments) -> None:
    made = experiments.create("a", "", {}, now=5)
    experiments.set_tag(made.id, "k", "1")
    experiments.set_tag(made.id, "k", "2")
    experiments.rename(made.id, "b", now=6)
    assert (experiments.find("b").tags, experiments.find("b").changed) == ({"k": "2"}, 6)
    experiments.delete_tag(made.id, "k")
    with pytest.raises(NotFound, match="No tag with name: k"):
        experiments.delete_tag(made.id, "k")
    with pytest.raises(Conflict):
        experiments.rename(made.id, "Default", now=7)
    assert [each.name for each in experiments.load([made.id, "0", "55"])] == ["b", "Default"]


def test_all_who_need_one_get_the_same(
    experiments: Experiments, other: Engine, race: Callable[..., list[Any]]
) -> None:
    both = [experiments, Experiments(other)] * 4
    ends = race([lambda each=each: each.ensure("new", now=1) for each in both])
    assert len({end.id for end in ends}) == 1
    assert ends[0].location == f"mlflow-artifacts:/{ends[0].id}"
