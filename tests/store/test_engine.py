"""Opening a database: settings, migrations, and the errors when it cannot be opened."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, DatabaseUnreachable, Invalid, StorageFull
from retarget.core.targets import Target
from retarget.store.engine import HEAD, migrate, open_engine, reading, writing
from retarget.store.jobs import Jobs
from retarget.store.schema import environments, metadata
from retarget.store.targets import Targets

OPEN = """
import sys
from retarget.store.engine import migrate, open_engine
engine = open_engine(sys.argv[1])
migrate(engine)
engine.dispose()
print("alembic" in sys.modules)
"""


def test_an_empty_database_gets_every_table(engine: Engine) -> None:
    assert {*metadata.tables, "alembic_version"} == set(inspect(engine).get_table_names())


def test_the_migrations_make_the_schema(engine: Engine) -> None:
    with engine.connect() as db:
        context = MigrationContext.configure(db)
        assert compare_metadata(context, metadata) == []


def test_the_newest_migration_is_the_head() -> None:
    config = Config()
    config.set_main_option("script_location", "retarget.store:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_opening_again_keeps_everything_and_does_not_import_alembic(
    address: str, targets: Targets
) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", OPEN, address], capture_output=True, text=True, check=True
    )
    assert completed.stdout == "False\n"
    assert [target.name for target in targets.list()] == ["local"]


def test_many_processes_may_migrate_at_once(address: str) -> None:
    command = [sys.executable, "-c", OPEN, address]
    servers = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    assert [server.communicate()[1] for server in servers] == [b""] * 4
    assert [server.returncode for server in servers] == [0] * 4


def test_many_threads_may_migrate_at_once(
    address: str, race: Callable[[list[Callable[[], Any]]], list[Any]]
) -> None:
    engines = [open_engine(address) for _ in range(6)]
    try:
        assert race([lambda engine=engine: migrate(engine) for engine in engines]) == [None] * 6
        with engines[0].connect() as db:
            assert db.scalars(text("SELECT version_num FROM alembic_version")).all() == [HEAD]
    finally:
        for engine in engines:
            engine.dispose()


def test_a_database_of_another_version_is_left_alone(engine: Engine) -> None:
    with writing(engine) as db:
        db.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Conflict, match=r"created by another version of Retarget: .* '9999'"):
        migrate(engine)


def test_a_database_with_tables_of_another_program_is_left_alone(address: str) -> None:
    engine = open_engine(address)
    with writing(engine) as db:
        db.execute(text("CREATE TABLE jobs (id INTEGER)"))
    with pytest.raises(Conflict, match="a table 'jobs' that is not Retarget's"):
        migrate(engine)
    assert inspect(engine).get_table_names() == ["jobs"]
    engine.dispose()


def test_a_failed_write_leaves_nothing(engine: Engine) -> None:
    row = insert(environments).values(digest="a", definition={}, created_at=1.0)
    with pytest.raises(IntegrityError), writing(engine) as db:  # noqa: PT012  the second one fails
        db.execute(row)
        db.execute(row)
    with reading(engine) as db:
        assert db.execute(select(environments)).all() == []


def test_characters_that_sql_refuses_are_replaced(engine: Engine, targets: Targets) -> None:
    targets.save_check(targets.find("local"), None, "a\0b\udc80c", 1.0)
    assert targets.find("local").reason == "a\ufffdb?c"
    assert [target.name for target in targets.list()] == ["local"]


def test_sqlite_is_set_up_for_many_writers(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/retarget.db")
    names = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
    with reading(engine) as db:
        settings = [db.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]
    assert settings == ["wal", 1, 30_000, 1]
    migrate(engine)
    files = list(tmp_path.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {file.name for file in files} >= {"retarget.db", "retarget.db-wal"}
    engine.dispose()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" * 300])
def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "retarget.db"
    file.write_bytes(content)
    engine = open_engine(f"sqlite:///{file}")
    with pytest.raises(Invalid, match=r"retarget\.db is damaged or is not a database"):
        migrate(engine)
    engine.dispose()
    assert file.read_bytes() == content


def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "retarget.db"
    engine = open_engine(f"sqlite:///{file}")
    migrate(engine)
    engine.dispose()
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    engine = open_engine(f"sqlite:///{file}")
    with pytest.raises(Invalid, match="damaged"):
        Jobs(engine).list()
    engine.dispose()


def test_a_path_that_cannot_hold_a_database_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file or directory"):
        open_engine(f"sqlite:///{tmp_path}/missing/retarget.db")
    engine = open_engine(f"sqlite:///{tmp_path}")
    with pytest.raises(Invalid, match="cannot open the database"):
        migrate(engine)
    engine.dispose()


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "mysql://host/name", "sqlite:///"])
def test_an_address_that_names_no_database_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match=r"write sqlite:////path/to/retarget\.db"):
        open_engine(url)


def test_an_unreachable_server_is_reported_without_its_password(tmp_path: Path) -> None:
    engine = open_engine(f"postgresql://me:secret@/retarget?host={tmp_path}")
    with pytest.raises(Invalid, match="cannot open the database") as raised:
        migrate(engine)
    assert "secret" not in str(raised.value)
    engine.dispose()


def test_a_full_disk_is_reported(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        engine.dispose()
        event.listen(engine, "connect", _fill_up)
        with pytest.raises(StorageFull, match="free some disk space"):
            Targets(engine).save(_large_target())
    else:
        full = "DO $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$"
        with pytest.raises(StorageFull, match="free some disk space"), writing(engine) as db:
            db.execute(text(full))


def test_a_database_locked_for_too_long_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retarget.store.engine._LOCK_TIMEOUT_SECONDS", 0.1)
    first, second = (open_engine(f"sqlite:///{tmp_path}/retarget.db") for _ in range(2))
    with writing(first), pytest.raises(Conflict, match="locked"), writing(second):
        pass
    first.dispose()
    second.dispose()


def _fill_up(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA max_page_count = 1")  # SQLite never sets it below the present count


def _large_target() -> Target:
    return Target(name="large", kind="local", config={"text": "x" * 1_000_000})


def test_a_paused_server_keeps_no_rows_from_the_others(
    engine: Engine, targets: Targets, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("only one server uses it")
    monkeypatch.setattr("retarget.store.engine._IDLE_TRANSACTION_SECONDS", 1)
    engine.dispose()  # new connections have the new limit
    rename = text("UPDATE targets SET reason = :reason")

    def pause_within_a_transaction() -> None:
        with writing(engine) as paused:
            paused.execute(rename, {"reason": "of the paused server"})
            with writing(other) as db:  # waits until PostgreSQL ends the other transaction
                db.execute(rename, {"reason": "of the other"})
            paused.execute(rename, {"reason": "too late"})

    with pytest.raises(DatabaseUnreachable):
        pause_within_a_transaction()
    assert [target.reason for target in targets.list()] == ["of the other"]
