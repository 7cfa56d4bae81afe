"""Every write publishes what it has changed: once it is committed, and only then."""

from collections.abc import Callable, Generator
from typing import Any

import pytest
from sqlalchemy import Engine

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.events import Change, Noun, job_changed
from retarget.core.jobs import Job, Output
from retarget.core.states import Event
from retarget.core.targets import Inventory, Node, Target
from retarget.core.tracking import Metric, Run, RunStatus
from retarget.store.artifacts import Artifacts
from retarget.store.changes import note
from retarget.store.engine import migrate, open_engine, writing
from retarget.store.experiments import Experiments
from retarget.store.jobs import Jobs
from retarget.store.outputs import Outputs
from retarget.store.runs import Runs
from retarget.store.targets import Targets
from retarget.store.track import Logged, TrackFiles

_NOW = 60.0


class Published:
    """The changes that were published since the last look."""

    def __init__(self) -> None:
        self._changes: list[Change] = []

    def add(self, changes: Any) -> None:
        self._changes += changes

    def __call__(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return list(dict.fromkeys(changes))


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def engine(address: str, published: Published) -> Generator[Engine]:
    engine = open_engine(address, publish=published.add)
    migrate(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def job(add: Callable[..., Job], published: Published) -> Job:
    job = add()
    published()
    return job


def test_nothing_is_published_before_the_commit_or_after_a_rollback(
    engine: Engine, published: Published
) -> None:
    def fail() -> None:
        with writing(engine) as db:
            note(db, job_changed("rolled back", 1))
            raise Conflict("meanwhile")

    with writing(engine) as db:
        note(db, job_changed("committed", 1))
        assert published() == []
    assert published() == [job_changed("committed", 1)]
    with pytest.raises(Conflict):
        fail()
    with writing(engine):
        pass
    assert published() == []


def test_every_change_of_a_job_is_published_with_its_version(
    jobs: Jobs,
    add: Callable[..., Job],
    place: Callable[[Job], Job],
    engine: Engine,
    published: Published,
) -> None:
    job = add()
    assert published() == [Change(Noun.TARGET, "local"), job_changed(job.id, 0)]
    explained = jobs.explain(job, "waits for memory")
    assert published() == [job_changed(job.id, explained.version)]
    jobs.explain(explained, explained.reason)
    jobs.explain(job, "of an older version")
    assert published() == []
    experiment = Experiments(engine).ensure("other", now=0)
    jobs.join(explained, experiment)
    joined = jobs.read(job.id)
    assert published() == [job_changed(job.id, joined.version)]
    placed = place(joined)
    assert published() == [job_changed(job.id, placed.version)]
    with pytest.raises(Conflict):
        jobs.record(joined, Event.CANCEL_REQUESTED, reason="", now=_NOW)
    assert published() == []
    failed = jobs.record(placed, Event.FAILED, reason="it broke", now=_NOW)
    assert published() == [job_changed(job.id, failed.version)]
    jobs.delete(failed)
    assert published() == [job_changed(job.id, None)]


def test_a_placement_that_is_undone_is_published(
    jobs: Jobs, job: Job, place: Callable[[Job], Job], published: Published
) -> None:
    placed = place(job)
    attempt = jobs.attempts(job.id)[-1]
    jobs.unplace(placed, attempt, reason="another node", now=_NOW)
    assert published() == [
        job_changed(job.id, placed.version),
        job_changed(job.id, jobs.read(job.id).version),
    ]


def test_a_target_is_published_when_a_check_has_another_result(
    targets: Targets, published: Published
) -> None:
    local, changed = targets.find("local"), [Change(Noun.TARGET, "local")]
    published()
    for inventory in (Inventory(lost_after_seconds=5.0), Inventory(lost_after_seconds=6.0)):
        targets.save_check(local, inventory, "", _NOW)
        assert published() == changed
        targets.save_check(local, inventory, "", _NOW + 1)
        assert published() == []
    targets.save_check(local, None, "it does not answer", _NOW)
    assert published() == changed
    targets.save_check(local, None, "it does not answer", _NOW + 1)
    assert published() == []
    targets.save_check(local, None, "it does not answer", _NOW, {"port": 22})
    assert published() == changed


def test_a_node_is_published_when_its_state_has_changed(
    targets: Targets, published: Published
) -> None:
    local = targets.find("local")
    published()

    def check(*nodes: Node) -> list[Change]:
        targets.save_check(local, Inventory(nodes=nodes), "", _NOW)
        return published()

    one, two = (Node(name=name, cpus=1.5, memory=2**40, changed_at=1.0) for name in ("n1", "n2"))
    silent = Node(name="n2", cpus=1.5, memory=2**40, unavailable="no\0 route", changed_at=2.0)
    target = Change(Noun.TARGET, "local")
    first, second = (Change(Noun.NODE, f"local/{name}") for name in ("n1", "n2"))
    assert sorted(check(one, two)) == sorted([target, first, second])
    assert check(one, two) == []
    assert sorted(check(one, silent)) == sorted([target, second])
    assert check(one, silent) == []
    assert sorted(check(one)) == sorted([target, second])
    targets.remove("local", reason="detached", now=_NOW)
    assert sorted(published()) == sorted([target, first])


def test_a_target_that_is_attached_changed_or_detached_is_published(
    targets: Targets, job: Job, published: Published
) -> None:
    published()
    lab = Target(name="lab", kind="local")
    targets.add(lab)
    assert published() == [Change(Noun.TARGET, "lab")]
    with pytest.raises(Conflict):
        targets.add(lab)
    tagged = lab.model_copy(update={"tags": {"room": "12"}})
    assert not targets.change(tagged, before=tagged, placements=0)
    assert published() == []
    assert targets.change(tagged, before=lab, placements=0)
    assert published() == [Change(Noun.TARGET, "lab")]
    targets.remove("lab", reason="detached", now=_NOW)
    assert published() == [Change(Noun.TARGET, "lab")]
    with pytest.raises(NotFound):
        targets.remove("lab", reason="detached", now=_NOW)
    assert published() == []
    targets.remove("local", reason="detached", now=_NOW, force=True)
    assert published() == [job_changed(job.id, 1), Change(Noun.TARGET, "local")]


def test_what_a_run_logs_is_published_by_every_way_in(
    engine: Engine, job: Job, place: Callable[[Job], Job], published: Published
) -> None:
    attempt = place(job)
    published()
    runs, of_job = Runs(engine), [Change(Noun.METRIC, job.id, job=job.id)]
    runs.log(job.id, [Metric("loss", 0.5, 1, 1)])
    assert published() == of_job
    runs.log(job.id, params={"lr": "0.1"})
    assert published() == of_job
    runs.log(job.id, tags={"stage": "dev"})
    assert published() == of_job
    with pytest.raises(Invalid):
        runs.log(job.id, params={"lr": "0.2"})
    assert published() == []
    file = (f"{job.id}-{attempt.attempt}", "1-a.jsonl")
    TrackFiles(engine).log_lines(file, (0, 30), job.id, Logged([Metric("acc", 0.5, 1, 1)]))
    assert published() == of_job
    TrackFiles(engine).log_lines(file, (0, 30), job.id, Logged([Metric("acc", 0.5, 1, 1)]))
    assert published() == []  # a part of the file that was sent again
    runs.delete(job.id, now=1)
    runs.restore(job.id)
    assert published() == of_job


def test_a_run_of_no_job_is_published_without_one(engine: Engine, published: Published) -> None:
    runs, run_id = Runs(engine), "a" * 32
    experiment = Experiments(engine).ensure("Default", now=0)
    runs.create(
        Run(
            id=run_id,
            experiment_id=experiment.id,
            name="alone",
            user="",
            status=RunStatus.RUNNING,
            started_at=0,
            location="mlflow-artifacts:/0/a/artifacts",
        )
    )
    assert published() == [Change(Noun.METRIC, run_id)]
    runs.log(run_id, [Metric("loss", 0.5, 1, 1)])
    assert published() == [Change(Noun.METRIC, run_id)]


def test_files_of_a_job_are_published(engine: Engine, job: Job, published: Published) -> None:
    of_job = [Change(Noun.OUTPUT, job.id, 1, job.id)]
    Outputs(engine).put(job.id, 1, Output(path="outputs/a", size=1, digest="d"))
    assert published() == of_job
    Outputs(engine).remove(job.id, 1, "outputs/a")
    assert published() == of_job
    artifact = [Change(Noun.OUTPUT, job.id, job=job.id)]
    folder = f"0/{job.id}/artifacts"
    Artifacts(engine).put(f"{folder}/plots/loss.png", 1, "d")
    assert published() == artifact
    Artifacts(engine).remove(f"{folder}/plots")
    assert published() == artifact
    Artifacts(engine).put("0/models/m-1/artifacts/MLmodel", 1, "d")
    assert published() == []
