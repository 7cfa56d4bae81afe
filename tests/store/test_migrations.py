"""Migrations: a database of an earlier revision gets the current schema and keeps all rows."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, inspect, text

from retarget.core.environments import Environment
from retarget.core.jobs import Attempt, Job, JobSpec, Member, Transition
from retarget.core.models import LoggedModel, Model, ModelMetric, ModelVersion
from retarget.core.states import JobState
from retarget.core.targets import Allocation, Gpu, Inventory, Node, Target
from retarget.core.tracking import Experiment, Metric, Run, RunStatus
from retarget.store.engine import HEAD, migrate, open_engine, reading, writing
from retarget.store.environments import Environments
from retarget.store.experiments import Experiments
from retarget.store.jobs import Jobs
from retarget.store.logged_models import LoggedModels
from retarget.store.members import Members
from retarget.store.metrics import Metrics
from retarget.store.models import Models
from retarget.store.runs import Runs
from retarget.store.schema import metadata
from retarget.store.targets import Targets

# Rows as revision 0005 stored them: Retarget wrote these columns and this JSON.
SPEC: dict[str, Any] = {
    "command": ["python", "train.py"],
    "name": "train",
    "experiment": "Default",
    "target": "lab",
    "snapshot": None,
    "environment": {"kind": "user", "python": "/usr/bin/python3"},
    "env": {"env": "the name of a variable", "GREETING": "grüezi 🎉"},
    "cpus": 2.0,
    "memory": None,
    "gpus": 1,
    "nodes": 2,
    "processes_per_node": 1,
    "retries": 1,
    "timeout": None,
    "grace": 10.0,
    "priority": 5,
}
JOB: dict[str, Any] = {
    "id": "j1",
    "name": "train",
    "state": "running",
    "reason": "runs",
    "version": 3,
    "spec": json.dumps(SPEC),
    "target": "lab",
    "experiment": "Default",
    "priority": 5,
    "attempt": 1,
    "created": 10.5,
    "changed": 14.5,
    "started": 13.5,
}
ATTEMPT: dict[str, Any] = {
    "key": "a1",
    "job_id": "j1",
    "number": 1,
    "target": "lab",
    "handle": "pid 7",
    "shares": json.dumps([{"node": "n1", "gpus": ["0"]}, {"node": "n2", "gpus": []}]),
    "confirmed": 3_000_000_000,
    "heard": 14.0,
    "resumes": 2,
    "fence": 600.0,
    "exit_code": 3,
    "reason": "exit code 3",
    "created": 11.0,
    "launched": 11.5,
    "preparing": 12.0,
    "starting": 12.5,
    "started": 13.0,
    "output": 13.5,
    "exited": 14.0,
    "ended": 14.5,
}
MEMBER: dict[str, Any] = {
    "key": "a1",
    "node": 1,
    "confirmed": 4,
    "heard": 14.25,
    "preparing": True,
    "started": True,
    "exited": 14.0,
    "finished": False,
    "outcome": "",
    "reason": "",
}
OLD_INVENTORY: dict[str, Any] = {
    "nodes": [
        {
            "name": "n1",
            "cpus": 8.0,
            "memory": 1024,
            "gpus": [{"id": "0", "name": "A100", "memory": 2048}],
            "reason": "",
        },
        {"name": "n2", "cpus": 4.0, "memory": 512, "gpus": [], "reason": "the disk is full"},
    ],
    "details": {"reason": "a detail", "fence": "another one"},
    "fence": 600.0,
}
LAB: dict[str, Any] = {
    "name": "lab",
    "kind": "ssh",
    "config": json.dumps(
        {
            "hosts": ["n1", "n2"],
            "pins": {"n1": "ssh-ed25519 AAAA"},
            "fence": 600.0,
            "key": {"secret": "sealed:1:b64"},
        }
    ),
    "facts": json.dumps(OLD_INVENTORY),
    "checked": 9.0,
    "reason": "",
    "placements": 7,
}
# The settings of another kind keep their names, whatever those are.
OTHER: dict[str, Any] = {
    "name": "other",
    "kind": "plugin",
    "config": json.dumps({"pins": 3, "fence": "wood"}),
    "reason": "unreachable",
    "placements": 0,
}
HISTORY = [
    ("submitted", "queued", 10.5),
    ("placed", "launching", 11.0),
    ("returned", "queued", 11.25),
]
EXPERIMENT: dict[str, Any] = {
    "id": 5,
    "name": "vision",
    "location": "mlflow-artifacts:/5",
    "stage": "active",
    "created": 100,
    "changed": 101,
}
RUN: dict[str, Any] = {
    "id": "r1",
    "experiment_id": 5,
    "name": "first",
    "user": "me",
    "status": "FINISHED",
    "stage": "deleted",
    "started": 110,
    "ended": 120,
    "deleted": 130,
    "location": "mlflow-artifacts:/5/r1",
}
METRIC: dict[str, Any] = {
    "id": 1,
    "run_id": "r1",
    "key": "loss",
    "value": 0.5,
    "nan": False,
    "step": 2,
    "timestamp": 115,
}
POINT: dict[str, Any] = {
    "metric_id": 1,
    "step": 2,
    "timestamp": 115,
    "value": 0.5,
    "nan": False,
}
LOGGED_MODEL: dict[str, Any] = {
    "id": "m-1",
    "experiment_id": 5,
    "run_id": "r1",
    "name": "net",
    "type": "",
    "status": "LOGGED_MODEL_READY",
    "message": "",
    "stage": "active",
    "location": "mlflow-artifacts:/5/models/m-1",
    "created": 140,
    "changed": 141,
}
LOGGED_MODEL_METRIC: dict[str, Any] = {
    "model_id": "m-1",
    "run_id": "r1",
    "key": "acc",
    "step": 1,
    "timestamp": 142,
    "value": 0.75,
    "nan": False,
}
MODEL: dict[str, Any] = {
    "name": "net",
    "description": "all",
    "versions": 1,
    "created": 150,
    "changed": 151,
}
MODEL_VERSION: dict[str, Any] = {
    "name": "net",
    "version": 1,
    "description": "",
    "user": "",
    "stage": "None",
    "status": "READY",
    "message": "",
    "source": "s3://bucket/net",
    "location": "s3://bucket/net",
    "run_id": "r1",
    "run_link": "",
    "created": 160,
    "changed": 161,
    "metrics": "{}",
}


@pytest.fixture
def upgraded(address: str) -> Iterator[Engine]:
    """A database that revision 0005 filled, upgraded to the current schema."""
    engine = open_engine(address)
    _migrate_to(engine, "0005")
    with writing(engine) as db:
        _fill(db)
    migrate(engine)
    yield engine
    engine.dispose()


def test_the_schema_is_that_of_a_new_database(upgraded: Engine, address: str) -> None:
    with upgraded.connect() as db:
        assert compare_metadata(MigrationContext.configure(db), metadata) == []
        assert db.scalars(text("SELECT version_num FROM alembic_version")).all() == [HEAD]
    indexes = {
        index["name"]: index["column_names"]
        for table in ("attempts", "runs", "logged_models")
        for index in inspect(upgraded).get_indexes(table)
    }
    assert indexes["attempts_with_handle"] == ["ended_at"]
    definitions = "\n".join(_index_definitions(upgraded))
    for column in ("started_at DESC", "created_at DESC"):
        assert column in definitions
    assert inspect(upgraded).get_pk_constraint("points")["constrained_columns"] == [
        *("metric_id", "step", "logged_at", "value", "nan")
    ]


def test_a_job_arrives_with_its_attempt_members_and_history(upgraded: Engine) -> None:
    jobs = Jobs(upgraded)
    (job,) = jobs.list()
    variables = {"env": "the name of a variable", "GREETING": "grüezi 🎉"}
    spec = {key: value for key, value in SPEC.items() if key != "env"} | {"variables": variables}
    assert job == Job(
        id="j1",
        name="train",
        state=JobState.RUNNING,
        reason="runs",
        version=3,
        spec=JobSpec.model_validate(spec),
        attempt=1,
        created_at=10.5,
        changed_at=14.5,
        started_at=13.5,
        ended_at=None,
    )
    attempt = Attempt(
        key="a1",
        job_id="j1",
        number=1,
        target="lab",
        handle="pid 7",
        allocations=(Allocation(node="n1", gpus=("0",)), Allocation(node="n2")),
        events_acked=3_000_000_000,
        last_seen_at=14.0,
        resumes=2,
        lost_after=600.0,
        exit_code=3,
        reason="exit code 3",
        created_at=11.0,
        launched_at=11.5,
        preparing_at=12.0,
        starting_at=12.5,
        started_at=13.0,
        first_output_at=13.5,
        exited_at=14.0,
        ended_at=14.5,
    )
    assert jobs.attempts("j1") == [attempt] == jobs.ended_with_handle()
    assert Members(upgraded).of("a1") == [
        Member(
            node=1,
            events_acked=4,
            last_seen_at=14.25,
            preparing=True,
            started=True,
            exited_at=14.0,
        )
    ]
    assert jobs.history("j1") == [
        Transition(version=0, event="submitted", state=JobState.QUEUED, reason="why", at=10.5),
        Transition(version=1, event="placed", state=JobState.LAUNCHING, reason="why", at=11.0),
        Transition(version=2, event="unplaced", state=JobState.QUEUED, reason="why", at=11.25),
    ]


def test_targets_arrive_with_their_settings_and_inventories(upgraded: Engine) -> None:
    lab, other = Targets(upgraded).list()
    assert lab == Target(
        name="lab",
        kind="ssh",
        config={
            "hosts": ["n1", "n2"],
            "host_keys": {"n1": "ssh-ed25519 AAAA"},
            "lost_after": 600.0,
            "key": {"secret": "sealed:1:b64"},
        },
        inventory=Inventory(
            nodes=(
                Node(
                    name="n1",
                    cpus=8.0,
                    memory=1024,
                    gpus=(Gpu(id="0", name="A100", memory=2048),),
                    since=9.0,
                ),
                Node(name="n2", cpus=4.0, memory=512, unavailable="the disk is full", since=9.0),
            ),
            details={"reason": "a detail", "fence": "another one"},
            lost_after=600.0,
        ),
        checked_at=9.0,
    )
    assert other == Target(
        name="other", kind="plugin", config={"pins": 3, "fence": "wood"}, reason="unreachable"
    )
    assert Targets(upgraded).placements("lab") == 7


def test_tracking_arrives(upgraded: Engine) -> None:
    assert Experiments(upgraded).get("5") == Experiment(
        id="5", name="vision", location="mlflow-artifacts:/5", created_at=100, changed_at=101
    )
    loss = Metric("loss", 0.5, 115, 2)
    assert Runs(upgraded).get("r1") == Run(
        id="r1",
        experiment_id="5",
        name="first",
        user="me",
        status=RunStatus.FINISHED,
        stage="deleted",
        started_at=110,
        ended_at=120,
        location="mlflow-artifacts:/5/r1",
        metrics=(loss,),
    )
    assert Metrics(upgraded).history("r1", "loss", limit=9) == [loss]
    with reading(upgraded) as db:
        assert db.scalars(text("SELECT deleted_at FROM runs")).all() == [130]
    assert LoggedModels(upgraded).get("m-1") == LoggedModel.model_validate(
        {
            "id": "m-1",
            "experiment_id": "5",
            "run_id": "r1",
            "name": "net",
            "status": "LOGGED_MODEL_READY",
            "location": "mlflow-artifacts:/5/models/m-1",
            "created_at": 140,
            "changed_at": 141,
            "metrics": (ModelMetric("r1", Metric("acc", 0.75, 142, 1, "m-1")),),
        }
    )
    location = "s3://bucket/net"
    version = ModelVersion(
        name="net",
        version=1,
        source=location,
        location=location,
        run_id="r1",
        created_at=160,
        changed_at=161,
    )
    assert Models(upgraded).get("net") == Model(
        name="net", description="all", created_at=150, changed_at=151, latest=(version,)
    )


def test_environments_arrive(upgraded: Engine) -> None:
    (stored,) = Environments(upgraded).list()
    assert (stored.name, stored.digest, stored.created_at) == ("np", "e" * 32, 20.5)
    assert stored.environment == Environment(kind="system", pip=("numpy",), name="np", version=1)


def test_more_jobs_than_one_page_are_rewritten(address: str) -> None:
    engine = open_engine(address)
    _migrate_to(engine, "0005")
    jobs = [JOB | {"id": f"j{number}", "name": f"job-{number}"} for number in range(2_500)]
    with writing(engine) as db:
        _insert(db, "jobs", *jobs)
    migrate(engine)
    upgraded = Jobs(engine).list(limit=5_000)
    assert len(upgraded) == len(jobs)
    assert {job.spec.variables["GREETING"] for job in upgraded} == {"grüezi 🎉"}
    engine.dispose()


def _migrate_to(engine: Engine, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", "retarget.store:migrations")
    with writing(engine) as db:
        config.attributes["connection"] = db
        command.upgrade(config, revision)


def _fill(db: Connection) -> None:
    _insert(db, "targets", LAB)
    _insert(db, "targets", OTHER)
    _insert(db, "jobs", JOB)
    for version, (event, state, at) in enumerate(HISTORY):
        transition = {"job_id": "j1", "version": version, "event": event, "state": state}
        _insert(db, "history", transition | {"reason": "why", "at": at})
    _insert(db, "attempts", ATTEMPT)
    _insert(db, "members", MEMBER)
    definition = json.dumps({"kind": "system", "pip": ["numpy"]})
    digest = "e" * 32
    _insert(db, "environments", {"digest": digest, "definition": definition, "created": 20.5})
    _insert(db, "environment_names", {"name": "np", "digest": digest})
    _insert(db, "experiments", EXPERIMENT)
    _insert(db, "runs", RUN)
    _insert(db, "metrics", METRIC)
    _insert(db, "points", POINT)
    _insert(db, "logged_models", LOGGED_MODEL)
    _insert(db, "logged_model_metrics", LOGGED_MODEL_METRIC)
    _insert(db, "models", MODEL)
    _insert(db, "model_versions", MODEL_VERSION)


def _insert(db: Connection, table: str, *rows: Mapping[str, Any]) -> None:
    columns = ", ".join(f'"{name}"' for name in rows[0])
    values = ", ".join(f":{name}" for name in rows[0])
    db.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), list(rows))


def _index_definitions(engine: Engine) -> list[str]:
    query = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    if engine.dialect.name == "postgresql":
        query = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
    with reading(engine) as db:
        return [definition.replace('"', "") for definition in db.scalars(text(query))]
