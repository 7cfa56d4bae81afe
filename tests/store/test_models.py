"""The model registry in SQL: numbers, aliases, stages, lineage, and files of versions."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from retarget.core.errors import Conflict, Forbidden, Invalid, NotFound
from retarget.core.jobs import Output
from retarget.core.models import Lineage, LoggedModel, Model, ModelVersion
from retarget.store.engine import reading, writing
from retarget.store.experiments import Experiments
from retarget.store.logged_models import VERSIONS_TAG, LoggedModels
from retarget.store.models import Models
from retarget.store.schema import artifacts

FILES = [
    Output(path="MLmodel", size=5, digest="a" * 64),
    Output(path="data/50%_x", size=5_000_000_000, digest="b" * 64),
]


@pytest.fixture
def models(engine: Engine) -> Models:
    return Models(engine)


def draft(name: str = "net", now: int = 20, **fields: Any) -> ModelVersion:
    defaults: dict[str, Any] = {"source": "s3://bucket/model", "location": "s3://bucket/model"}
    return ModelVersion(name=name, created_at=now, changed_at=now, **(defaults | fields))


def paths(engine: Engine) -> set[str]:
    with reading(engine) as db:
        return set(db.scalars(select(artifacts.c.path)))


def create(models: Models, name: str = "net", tags: Mapping[str, str] | None = None) -> Model:
    return models.create(name, "", tags or {}, now=10)


def test_a_model_is_kept_with_its_tags(models: Models) -> None:
    created = models.create("net", "ünïcode", {"a": "1", "b": ""}, now=10)
    tags = {"a": "1", "b": ""}
    assert created == Model(
        name="net", description="ünïcode", created_at=10, changed_at=10, tags=tags
    )
    assert models.get("net") == created
    models.set_tag("net", "a", "2")
    models.delete_tag("net", "b")
    models.delete_tag("net", "b")
    assert models.get("net").tags == {"a": "2"}
    assert models.get("net").changed_at == 10


def test_a_name_is_taken_once(models: Models) -> None:
    create(models)
    with pytest.raises(Conflict, match=r"Registered Model \(name=net\) already exists"):
        create(models)
    create(models, "other")
    with pytest.raises(Conflict, match=r"Registered Model \(name=net\) already exists"):
        models.rename("other", "net", now=11)
    assert [model.name for model in models.list()] == ["net", "other"]


def test_a_missing_model_or_version_is_reported(models: Models) -> None:
    calls_for_models: list[Callable[[], Any]] = [
        lambda: models.get("net"),
        lambda: models.rename("net", "x", now=1),
        lambda: models.describe("net", "x", now=1),
        lambda: models.delete("net"),
        lambda: models.set_tag("net", "k", "v"),
        lambda: models.delete_tag("net", "k"),
        lambda: models.delete_alias("net", "k"),
        lambda: models.by_alias("net", "k"),
        lambda: models.versions("net"),
        lambda: models.add_version(draft()),
    ]
    for call in calls_for_models:
        with pytest.raises(NotFound, match="Registered Model with name=net not found"):
            call()
    create(models)
    calls_for_versions: list[Callable[[], Any]] = [
        lambda: models.get_version("net", 1),
        lambda: models.set_alias("net", "k", 1),
        lambda: models.describe_version("net", 1, "x", now=1),
        lambda: models.move("net", 1, "Staging", now=1),
        lambda: models.delete_version("net", 1, now=1),
        lambda: models.set_version_tag("net", 1, "k", "v"),
        lambda: models.delete_version_tag("net", 1, "k"),
    ]
    for call in calls_for_versions:
        with pytest.raises(NotFound, match=r"Model Version \(name=net, version=1\) not found"):
            call()


def test_a_renamed_model_takes_everything_with_it(models: Models) -> None:
    create(models, tags={"a": "1"})
    models.add_version(draft(tags={"k": "v"}))
    models.set_alias("net", "best", 1)
    renamed = models.rename("net", "nät", now=30)
    assert (renamed.name, renamed.changed_at, renamed.tags) == ("nät", 30, {"a": "1"})
    version = models.by_alias("nät", "best")
    assert (version.name, version.tags, version.changed_at) == ("nät", {"k": "v"}, 30)
    with pytest.raises(NotFound):
        models.get("net")
    assert models.add_version(draft("nät")).version == 2


def test_a_version_is_kept_with_its_lineage(models: Models) -> None:
    create(models)
    lineage = Lineage(
        job_id="j",
        job_name="train",
        snapshot="f" * 64,
        environment="e" * 32,
        metrics={"loss": 0.25, "bad": "NaN", "step": 3.0},
    )
    added = models.add_version(draft(lineage=lineage, run_id="j", tags={"k": "v"}, description="d"))
    assert added.version == 1
    assert models.get_version("net", 1) == added
    assert added.lineage == lineage
    assert models.get("net").changed_at == 20
    assert models.snapshots() == {"f" * 64}


def test_a_number_is_never_used_again(models: Models) -> None:
    create(models)
    for number in (1, 2):
        assert models.add_version(draft()).version == number
    models.delete_version("net", 2, now=30)
    assert models.add_version(draft()).version == 3
    assert [version.version for version in models.versions("net")] == [3, 1]


def test_concurrent_versions_get_different_numbers(
    models: Models, other: Engine, race: Callable[[list[Callable[[], Any]]], list[Any]]
) -> None:
    servers = [models, Models(other)]
    racers = [lambda s=server: s.add_version(draft(), make=True) for server in servers * 5]
    added = race(list(racers))
    assert sorted(version.version for version in added) == list(range(1, 11))
    assert len(models.versions("net")) == 10


def test_an_alias_points_to_one_version(models: Models) -> None:
    create(models)
    for _ in range(2):
        models.add_version(draft())
    models.set_alias("net", "best", 1)
    models.set_alias("net", "best", 2)
    models.set_alias("net", "also", 2)
    assert models.by_alias("net", "best").version == 2
    assert models.get_version("net", 2).aliases == ("also", "best")
    assert models.get("net").aliases == {"best": 2, "also": 2}
    models.delete_alias("net", "also")
    models.delete_alias("net", "also")
    models.delete_version("net", 2, now=30)
    assert models.get("net").aliases == {}
    with pytest.raises(Invalid, match="Registered model alias best not found"):
        models.by_alias("net", "best")


def test_latest_is_the_newest_version(models: Models) -> None:
    create(models)
    with pytest.raises(NotFound, match="Latest version not found for model net"):
        models.by_alias("net", "latest")
    for _ in range(3):
        models.add_version(draft())
    models.move("net", 3, "Archived", now=30)
    assert models.by_alias("net", "Latest").version == 3


def test_each_stage_has_its_latest(models: Models) -> None:
    create(models)
    for _ in range(5):
        models.add_version(draft())
    for version, stage in ((2, "Production"), (3, "Production"), (4, "Staging")):
        models.move("net", version, stage, now=30 + version)
    latest = {version.stage: version.version for version in models.latest("net")}
    assert latest == {"None": 5, "Production": 3, "Staging": 4}
    assert [version.version for version in models.latest("net", ["Production"])] == [3]
    assert models.get("net").changed_at == 34
    moved = models.move("net", 5, "Production", now=40, archive=True)
    assert (moved.stage, moved.changed_at) == ("Production", 40)
    stages = {version.version: version.stage for version in models.versions("net")}
    assert stages == {1: "None", 2: "Archived", 3: "Archived", 4: "Staging", 5: "Production"}
    with pytest.raises(Invalid, match="'Archived' is not an Active stage"):
        models.move("net", 5, "Archived", now=40, archive=True)


def test_tags_and_the_description_of_a_version_change(models: Models) -> None:
    create(models)
    models.add_version(draft(tags={"k": "v"}))
    models.set_version_tag("net", 1, "k", "w")
    models.set_version_tag("net", 1, "x", "")
    models.delete_version_tag("net", 1, "k")
    models.delete_version_tag("net", 1, "k")
    described = models.describe_version("net", 1, "better", now=50)
    assert (described.description, described.changed_at, described.tags) == (
        "better",
        50,
        {"x": ""},
    )
    assert models.describe("net", "all", now=60).changed_at == 60


def test_models_and_versions_are_loaded_in_the_requested_order(models: Models) -> None:
    for name in ("b", "a", "c"):
        create(models, name)
        models.add_version(draft(name, tags={"of": name}))
    assert [model.name for model in models.load(["c", "gone", "a"])] == ["c", "a"]
    assert models.load([]) == models.load_versions([]) == []
    loaded = models.load_versions([("c", 1), ("a", 7), ("a", 1)])
    assert [version.tags["of"] for version in loaded] == ["c", "a"]
    many = [("b", 1)] + [("b", number) for number in range(2, 2_000)]
    assert [version.name for version in models.load_versions(many)] == ["b"]


def test_a_deleted_model_leaves_nothing_and_can_be_created_again(
    models: Models, engine: Engine
) -> None:
    create(models, tags={"a": "1"})
    folder = "mlflow-artifacts:/registry/one"
    models.add_version(draft(location=folder), FILES)
    models.set_alias("net", "best", 1)
    assert paths(engine) == {"registry/one/MLmodel", "registry/one/data/50%_x"}
    models.delete("net")
    assert paths(engine) == set()
    assert create(models) == Model(name="net", created_at=10, changed_at=10)
    assert models.add_version(draft()).version == 1


def test_files_are_removed_with_the_last_version_that_uses_them(
    models: Models, engine: Engine
) -> None:
    create(models)
    with writing(engine) as db:
        row = {"path": "registry/one-more/x", "size": 1, "digest": "c" * 64}
        db.execute(insert(artifacts).values(row))
        db.execute(insert(artifacts).values(row | {"path": "1/run/artifacts/x"}))
    others = paths(engine)
    one = "mlflow-artifacts:/registry/one"
    models.add_version(draft(location=one), FILES)
    models.add_version(draft(location=one))
    models.add_version(draft(location="mlflow-artifacts:/1/run/artifacts"))
    models.delete_version("net", 1, now=30)
    assert len(paths(engine)) == 4
    models.delete_version("net", 2, now=30)
    models.delete_version("net", 3, now=30)
    assert paths(engine) == others


def test_a_logged_model_is_tagged_with_its_versions(models: Models, engine: Engine) -> None:
    experiment = Experiments(engine).create("e", "", {}, now=1)
    logged = LoggedModels(engine)
    fields: dict[str, Any] = {"experiment_id": experiment.id, "name": "m", "location": "x"}
    logged.create(LoggedModel(id="m-1", created_at=1, changed_at=1, **fields))
    create(models)
    models.add_version(draft(model_id="m-1"))
    models.add_version(draft(model_id="m-1"))
    models.add_version(draft(model_id="m-gone"))
    tag = logged.get("m-1").tags[VERSIONS_TAG]
    assert tag == '[{"name": "net", "version": 1}, {"name": "net", "version": 2}]'


def test_a_job_changes_only_a_model_that_is_all_its_own(models: Models) -> None:
    models.create("net", "", {}, now=10, by_job="j1")
    models.add_version(draft(created_by_job="j1"))
    models.add_version(draft(created_by_job="j1"))
    with pytest.raises(Forbidden, match="'net': it was not created by this job"):
        models.rename("net", "new", now=11, by_job="j2")
    with pytest.raises(Forbidden, match="version 1 of model 'net': it was not created by this"):
        models.delete_version("net", 1, now=11, by_job="j2")
    models.delete_version("net", 1, now=11, by_job="j1")
    models.rename("net", "new", now=12, by_job="j1")
    models.add_version(draft("new", lineage=Lineage(job_id="j1")))  # by a user, of the job's files
    with pytest.raises(Forbidden, match="'new': it has versions that this job did not create"):
        models.delete("new", by_job="j1")
    models.delete_version("new", 3, now=13)
    models.delete("new", by_job="j1")
    with pytest.raises(NotFound):
        models.delete("new", by_job="j1")
