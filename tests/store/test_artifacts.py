"""Artifacts in SQL: a tree of files, which also shows the outputs of jobs."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, text

from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Job, JobSpec, Output
from retarget.core.models import LoggedModel, ModelVersion
from retarget.core.states import JobState
from retarget.core.targets import Target
from retarget.core.tracking import Run, RunStatus, artifact_path
from retarget.store import artifacts as module
from retarget.store.artifacts import Artifact, Artifacts, Entry
from retarget.store.engine import migrate, open_engine, writing
from retarget.store.jobs import Jobs
from retarget.store.logged_models import LoggedModels
from retarget.store.models import Models
from retarget.store.outputs import Outputs
from retarget.store.runs import Runs
from retarget.store.schema import artifacts as table
from retarget.store.targets import Targets


@pytest.fixture
def tree(engine: Engine) -> Artifacts:
    return Artifacts(engine)


def _put(tree: Artifacts, *paths: str) -> None:
    tree.put_all(Artifact(path, len(path), f"digest of {path}") for path in paths)


def _names(tree: Artifacts, folder: str) -> list[str]:
    return [entry.name + "/" * entry.is_dir for entry in tree.list(folder)]


def _paths(tree: Artifacts, folder: str = "") -> list[str]:
    return [file.path for file in tree.walk(folder)]


def test_a_folder_lists_its_own_level_by_name(tree: Artifacts) -> None:
    _put(tree, "1/r/b.txt", "1/r/a/x", "1/r/a/y/z", "1/r/a-b", "1/r/a0", "1/q/other")
    assert tree.list("1/r") == [
        Entry("a", True),
        Entry("a-b", False, 7),
        Entry("a0", False, 6),
        Entry("b.txt", False, 9),
    ]
    assert _names(tree, "") == ["1/"]
    assert _names(tree, "1/r/a") == ["x", "y/"]
    assert tree.list("1/r/a0") == tree.list("1/none") == tree.list("1/") == []


def test_a_file_is_found_and_a_folder_is_refused(tree: Artifacts) -> None:
    tree.put("1/r/model", 5_000_000_000, "d")
    assert tree.find("1/r/model") == Artifact("1/r/model", 5_000_000_000, "d")
    with pytest.raises(NotFound, match="No such artifact: '1/r/none'"):
        tree.find("1/r/none")
    with pytest.raises(Invalid, match="refers to a directory, not a file: '1/r'"):
        tree.find("1/r")


def test_a_file_written_again_replaces_the_first(tree: Artifacts) -> None:
    tree.put("a", 1, "d")
    tree.put("a", 2, "e")
    assert tree.walk("") == [Artifact("a", 2, "e")]
    assert tree.digests() == {"e"}


def test_a_path_is_a_file_or_a_folder(tree: Artifacts) -> None:
    _put(tree, "1/r/a", "1/r/b/c")
    with pytest.raises(Invalid, match="'1/r/a' is a file"):
        tree.put("1/r/a/x/y", 1, "d")
    with pytest.raises(Invalid, match="it is a folder"):
        tree.put("1/r/b", 1, "d")
    with pytest.raises(Invalid, match="is a file"):
        _put(tree, "2/new", "1/r/a/x")
    assert _paths(tree) == ["1/r/a", "1/r/b/c"]


SPECIAL_NAMES = (
    "a",
    "a%",
    "a_",
    "a%/x",
    "a_/x",
    "ab/x",
    "A/x",
    "a/x",
    "a/é ü",
    "a/ß",
    "a/日本",
    "a//",
)


def test_wildcards_of_sql_in_names_have_no_meaning(tree: Artifacts) -> None:
    _put(tree, *(f"f%_/{name}/end" for name in SPECIAL_NAMES), "fx_/no", "f%x/no", "F%_/no")
    assert len(tree.walk("f%_")) == len(SPECIAL_NAMES)
    assert _paths(tree, "f%_/a_") == ["f%_/a_/end", "f%_/a_/x/end"]
    tree.remove("f%_/a_")
    tree.remove("f%_/a%/x")
    assert len(tree.walk("f%_")) == len(SPECIAL_NAMES) - 3
    tree.remove("f%_")
    assert _paths(tree) == ["F%_/no", "f%x/no", "fx_/no"]


def test_removing_a_folder_removes_only_its_files(tree: Artifacts) -> None:
    _put(tree, "r/a/1", "r/a/b/2", "r/a.txt", "r/a0", "r/ab/3", "ra/4")
    tree.remove("r/a")
    tree.remove("r/none")
    assert _paths(tree) == ["r/a.txt", "r/a0", "r/ab/3", "ra/4"]
    tree.remove("r/a0")
    assert _paths(tree, "r") == ["r/a.txt", "r/ab/3"]


def test_deep_folders_are_skipped(tree: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_READ", 3)
    _put(tree, *(f"r/{name}/{file}" for name in "abc" for file in range(10)))
    _put(tree, *(f"r/f{number}" for number in range(7)))
    assert _names(tree, "r") == ["a/", "b/", "c/", *(f"f{number}" for number in range(7))]


NAMES = st.text(st.sampled_from("aA0-/.%_é日 "), min_size=1, max_size=5)


@given(st.sets(NAMES, max_size=12), NAMES)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_tree_matches_its_paths(tree: Artifacts, names: set[str], folder: str) -> None:
    with writing(tree.engine) as db:
        db.execute(delete(table))
    kept: list[str] = []
    for name in names:
        try:
            tree.put(name, 1, "d")
        except Invalid:
            clash = any(f"{name}/".startswith(f"{k}/") or k.startswith(f"{name}/") for k in kept)
            assert clash
        else:
            kept.append(name)
    inside = sorted(name for name in kept if name.startswith(f"{folder}/"))
    level = {name[len(folder) + 1 :].partition("/")[0] for name in inside}
    assert [entry.name for entry in tree.list(folder)] == sorted(level)
    assert [path for path in _paths(tree, folder) if path != folder] == inside
    tree.remove(folder)
    assert _paths(tree) == sorted(set(kept) - set(inside) - {folder})


@pytest.fixture
def foreign(cluster: Any) -> Iterator[Engine]:
    """A PostgreSQL that does not sort text by bytes, like most."""
    name = f"foreign_{os.getpid()}"
    order = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' TEMPLATE template0"
    with cluster.admin.connect() as db:
        db.execute(text(f"CREATE DATABASE {name} {order}"))
    foreign = open_engine(cluster.url(name))
    migrate(foreign)
    yield foreign
    foreign.dispose()
    cluster.drop(name)


LETTERS = ("a/x", "A/x", "a-b/x", "a b/x", "ab/x", "a.b", "á/x", "B")
LEVEL = ["A/", "B", "a/", "a b/", "a-b/", "a.b", "ab/", "á/"]


def test_folders_are_correct_in_any_collation(foreign: Engine) -> None:
    tree = Artifacts(foreign)
    with foreign.connect() as db:
        assert db.scalar(text("SELECT 'a' < 'B'")), "this database sorts by bytes"
    _put(tree, "r-/x", *(f"r/{path}" for path in LETTERS))
    assert _paths(tree, "r/a") == ["r/a/x"]
    assert _names(tree, "r") == LEVEL
    tree.remove("r/a")
    assert len(_paths(tree, "r")) == len(LETTERS) - 1
    with foreign.connect() as db:
        db.execute(text("SET enable_seqscan = off"))
        query = "EXPLAIN SELECT * FROM artifacts WHERE path >= 'r/' AND path < 'r0'"
        plan = "\n".join(db.scalars(text(query)))
    assert "pk_artifacts" in plan, plan


def test_folders_of_outputs_are_correct_in_any_collation(foreign: Engine) -> None:
    tree = Artifacts(foreign)
    spec = JobSpec.model_validate({"command": ["true"]})
    fields: dict[str, Any] = {"id": "j1", "name": "j", "state": JobState.QUEUED, "reason": ""}
    Targets(foreign).save(Target(name="local", kind="local"))
    Jobs(foreign).add(Job(**fields, version=0, spec=spec, created_at=1.0, changed_at=1.0))
    for path in LETTERS:
        Outputs(foreign).put("j1", 0, Output(path=f"outputs/{path}", size=1, digest="d"))
    folder = artifact_path(Runs(foreign).get("j1").location)
    assert _names(tree, f"{folder}/outputs") == LEVEL
    assert _paths(tree, f"{folder}/outputs/a") == [f"{folder}/outputs/a/x"]


@pytest.fixture
def outputs_of_job(
    jobs: Jobs, outputs: Outputs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> tuple[Job, str]:
    """A job on its first attempt that has outputs, and the folder of its run."""
    job = place(add())
    for path in ("outputs/model/weights", "outputs/log.txt", "logs/out"):
        outputs.put(job.id, 1, Output(path=path, size=3, digest=f"digest of {path}"))
    outputs.put(job.id, 2, Output(path="outputs/later", size=3, digest="e"))
    return job, artifact_path(Runs(jobs.engine).get(job.id).location) or ""


def test_a_jobs_own_run_shows_the_outputs_of_the_job(
    tree: Artifacts, outputs_of_job: tuple[Job, str]
) -> None:
    _, folder = outputs_of_job
    _put(tree, f"{folder}/plot.png", f"{folder}/outputs/extra")
    assert _names(tree, folder) == ["logs/", "outputs/", "plot.png"]
    assert _names(tree, f"{folder}/outputs") == ["extra", "log.txt", "model/"]
    assert tree.find(f"{folder}/outputs/log.txt").digest == "digest of outputs/log.txt"
    assert len(tree.walk(folder)) == 5
    assert _paths(tree, f"{folder}/outputs/model") == [f"{folder}/outputs/model/weights"]
    with pytest.raises(Invalid, match="directory"):
        tree.find(f"{folder}/outputs/model")
    with pytest.raises(NotFound):
        tree.find(f"{folder}/outputs/later")


def test_an_artifact_hides_an_output_at_the_same_path(
    tree: Artifacts, outputs_of_job: tuple[Job, str]
) -> None:
    _, folder = outputs_of_job
    path = f"{folder}/outputs/log.txt"
    tree.put(path, 9, "artifact")
    assert tree.find(path) == Artifact(path, 9, "artifact")
    assert Entry("log.txt", False, 9) in tree.list(f"{folder}/outputs")
    tree.remove(path)
    assert tree.find(path).size == 3


def test_an_output_is_not_removed_as_an_artifact(
    tree: Artifacts, outputs_of_job: tuple[Job, str]
) -> None:
    job, folder = outputs_of_job
    _put(tree, f"{folder}/plot.png")
    for path in (f"{folder}/outputs/log.txt", f"{folder}/outputs"):
        with pytest.raises(Invalid, match=job.id):
            tree.remove(path)
    tree.remove(folder)
    assert _names(tree, folder) == ["logs/", "outputs/"]


def test_a_job_owns_the_folders_of_its_runs_and_models(
    tree: Artifacts, outputs_of_job: tuple[Job, str], add: Callable[..., Job]
) -> None:
    job, folder = outputs_of_job
    other = add()
    _make_run(tree, "child", job.id, "mlflow-artifacts:/deep/er/child/artifacts")
    _make_model(tree, "m-1", job.id, "mlflow-artifacts://host:5000/0/models/m-1/artifacts/")
    for owned in (folder, f"{folder}/a/b", "deep/er/child/artifacts", "0/models/m-1/artifacts/x"):
        assert tree.belongs_to(owned, job.id), owned
        assert not tree.belongs_to(owned, other.id), owned
    above = folder.rpartition("/")[0]
    for foreign_folder in (
        "",
        above,
        f"{folder}x",
        "deep/er/child",
        f"x/{folder}",
        f"0/{other.id}",
    ):
        assert not tree.belongs_to(foreign_folder, job.id), foreign_folder


def test_the_artifacts_of_a_job_are_removed_with_it(
    tree: Artifacts, jobs: Jobs, outputs_of_job: tuple[Job, str]
) -> None:
    job, folder = outputs_of_job
    _make_model(tree, "m-1", job.id, "mlflow-artifacts:/0/models/m-1/artifacts")
    _make_model(tree, "m-2", None, "mlflow-artifacts:/0/models/m-2/artifacts")
    _put(tree, f"{folder}/a", "0/models/m-1/artifacts/a", "0/models/m-2/artifacts/a", "0/other")
    tree.remove_of_job(job.id)
    with writing(jobs.engine) as db:
        db.execute(text("DELETE FROM jobs"))
    assert _paths(tree) == ["0/models/m-2/artifacts/a", "0/other"]


def test_the_files_of_registered_models_stay(
    tree: Artifacts, jobs: Jobs, outputs_of_job: tuple[Job, str]
) -> None:
    job, folder = outputs_of_job
    model = "0/models/m-1/artifacts"
    _make_model(tree, "m-1", job.id, f"mlflow-artifacts:/{model}")
    _put(tree, f"{folder}/net/w", f"{folder}/net2", f"{folder}/net.txt", f"{model}/MLmodel")
    for location in (f"{folder}/net", f"{folder}/outputs/model", model):
        _register(tree, f"mlflow-artifacts:/{location}")
    kept = [f"{model}/MLmodel", f"{folder}/net/w", f"{folder}/outputs/model/weights"]
    tree.remove_of_job(job.id)
    with writing(jobs.engine) as db:
        db.execute(text("DELETE FROM jobs"))
    assert _paths(tree) == sorted(kept)
    assert tree.find(kept[2]).digest == "digest of outputs/model/weights"


def _make_run(tree: Artifacts, run_id: str, job_id: str | None, location: str) -> None:
    fields = {"name": "n", "user": "u", "status": RunStatus.RUNNING, "started_at": 1}
    run = {"id": run_id, "experiment_id": "0", "job_id": job_id, "location": location}
    Runs(tree.engine).create(Run.model_validate(fields | run))


def _make_model(tree: Artifacts, model_id: str, job_id: str | None, location: str) -> None:
    model = LoggedModel(
        id=model_id,
        experiment_id="0",
        job_id=job_id,
        name="m",
        location=location,
        created_at=1,
        changed_at=1,
    )
    LoggedModels(tree.engine).create(model)


def _register(tree: Artifacts, location: str) -> None:
    draft = ModelVersion(name="m", source=location, location=location, created_at=1, changed_at=1)
    Models(tree.engine).add_version(draft, make=True)
