"""Run every test on SQLite and on a real PostgreSQL, which lives for the test session."""

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from retarget.core.jobs import Attempt, Job, JobSpec
from retarget.core.names import new_id
from retarget.core.states import JobState
from retarget.core.targets import Allocation, Target
from retarget.store.engine import migrate, open_engine
from retarget.store.environments import Environments
from retarget.store.jobs import Jobs
from retarget.store.outputs import Outputs
from retarget.store.targets import Targets
from tests.postgresql import postgresql_programs
from tests.store.new_schema import create_schema


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/retarget.db"
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    name = cluster.create()
    yield cluster.url(name)
    cluster.drop(name)


@pytest.fixture
def engine(address: str) -> Iterator[Engine]:
    engine = open_engine(address)
    create_schema(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def other(engine: Engine, address: str) -> Iterator[Engine]:
    """The engine of a second server on the same database."""
    other = open_engine(address)
    migrate(other)
    yield other
    other.dispose()


@pytest.fixture
def jobs(engine: Engine) -> Jobs:
    return Jobs(engine)


@pytest.fixture
def outputs(engine: Engine) -> Outputs:
    return Outputs(engine)


@pytest.fixture
def targets(engine: Engine) -> Targets:
    targets = Targets(engine)
    targets.save(Target(name="local", kind="local"))
    return targets


@pytest.fixture
def environments(engine: Engine) -> Environments:
    return Environments(engine)


@pytest.fixture
def add(jobs: Jobs, targets: Targets) -> Callable[..., Job]:
    """Add a job that is one second younger than the last one, and its target if it is missing."""
    clock = iter(range(1_000, 1_000_000))

    def add_one(name: str | None = None, **spec: Any) -> Job:
        now = float(next(clock))
        job = Job(
            id=new_id(now),
            name=name or f"job-{now:.0f}",
            state=JobState.QUEUED,
            reason="waits for room",
            version=0,
            spec=JobSpec.model_validate({"command": ["python", "train.py"], **spec}),
            created_at=now,
            changed_at=now,
        )
        if job.spec.target not in {target.name for target in targets.list()}:
            targets.save(Target(name=job.spec.target, kind="local"))
        jobs.add(job)
        return job

    return add_one


@pytest.fixture
def place(jobs: Jobs, targets: Targets) -> Callable[[Job], Job]:
    """Place the next attempt of a queued job on its target."""

    def place_one(job: Job) -> Job:
        number = job.attempt + 1
        attempt = Attempt(
            key=f"{job.id}-{number}",
            job_id=job.id,
            number=number,
            target=job.spec.target,
            allocations=(Allocation(node="n", gpus=("0", "1")),),
            created_at=50.0,
        )
        placements = targets.placements(job.spec.target)
        return jobs.place(job, attempt, reason="there is room", now=50.0, placements=placements)

    return place_one


@pytest.fixture
def race() -> Callable[[list[Callable[[], Any]]], list[Any]]:
    """Run all functions at once, each in a thread. Return what they returned or raised."""

    def run(racers: list[Callable[[], Any]]) -> list[Any]:
        start = threading.Barrier(len(racers))
        results: list[Any] = [None] * len(racers)

        def one(index: int) -> None:
            start.wait()
            try:
                results[index] = racers[index]()
            except Exception as error:  # noqa: BLE001  the test checks it
                results[index] = error

        threads = [threading.Thread(target=one, args=(index,)) for index in range(len(racers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run


@pytest.fixture(scope="session")
def cluster() -> "Iterator[Cluster]":
    programs = postgresql_programs()
    if programs is None:
        message = "PostgreSQL is not installed: initdb and pg_ctl were not found"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    folder = Path(
        tempfile.mkdtemp(prefix="rt-pg-", dir="/tmp")
    )  # the path of a socket must be short
    cluster = Cluster(programs, folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Cluster:
    """A PostgreSQL for the tests, on a socket in its folder."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.user = _ordinary_user()
        self.databases_created = 0

    def start(self) -> None:
        if self.user is not None:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self._run("initdb", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.resume()
        self.admin = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")

    def resume(self) -> None:
        """Start PostgreSQL, for the first time or after `interrupt`."""
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off -c full_page_writes=off"
        self._run("pg_ctl", "-w", "-l", f"{self.folder}/log", "-o", options, "start")

    def interrupt(self) -> None:
        """Stop PostgreSQL at once, as if it were killed."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def stop(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.admin.dispose()
            self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://tester@/{database}?host={self.folder}"

    def create(self) -> str:
        self.databases_created += 1
        with self.admin.connect() as db:
            db.execute(text(f"CREATE DATABASE test_{self.databases_created}"))
        return f"test_{self.databases_created}"

    def drop(self, database: str) -> None:
        with self.admin.connect() as db:
            db.execute(text(f"DROP DATABASE {database} WITH (FORCE)"))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", f"{self.folder}/data", *arguments]
        user = self.user
        # pg_ctl's child keeps its output open, so a pipe would never end
        with tempfile.TemporaryFile() as output:
            completed = subprocess.run(
                command,
                cwd=self.folder,
                stdout=output,
                stderr=output,
                check=False,
                user=user and user.pw_uid,
                group=user and user.pw_gid,
                extra_groups=user and [],
            )
            output.seek(0)
            assert completed.returncode == 0, output.read().decode()


def _ordinary_user() -> pwd.struct_passwd | None:
    # PostgreSQL refuses to run as root
    if os.geteuid() != 0:
        return None
    users = {user.pw_name: user for user in pwd.getpwall()}
    return users.get("postgres") or users["nobody"]
