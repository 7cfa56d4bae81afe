"""Open the database: transactions, schema migrations and readable database errors."""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Executable,
    Table,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from retarget.core.errors import (
    Conflict,
    DatabaseUnreachable,
    Invalid,
    RetargetError,
    StorageFull,
)
from retarget.core.events import Change
from retarget.core.extras import install_command
from retarget.store.changes import Publish, ignore
from retarget.store.schema import metadata

_log = logging.getLogger("retarget")

HEAD = "0001"  # the newest revision in migrations/versions

_LOCK_TIMEOUT_SECONDS = 30.0  # how long a writer waits for the writer before it
# for PostgreSQL, unless its URL has others: after how long a silent host counts as unreachable
_TIMEOUTS = {"connect_timeout": 10, "tcp_user_timeout": 30_000}
# of PostgreSQL: connections fail, the server stops or starts, too many connections, a transaction
# that did not continue
_UNREACHABLE_STATES = ("08", "57P", "53300", "25P03")
# A server that is paused within a transaction must not keep its rows from the others for long.
_IDLE_TRANSACTION_SECONDS = 10
_MIGRATION_LOCK_ID = 0x7265746172676574  # "retarget" in ASCII: the advisory lock of a migration


def sqlite_url(path: Path) -> URL:
    """Return the URL of a SQLite file, whatever characters its path has."""
    return URL.create("sqlite", database=str(path))


def open_engine(url: str | URL, *, publish: Publish = ignore) -> Engine:
    """Return an engine for `sqlite:///FILE` or `postgresql+psycopg://…`. The caller disposes of it.

    A missing SQLite file is created, readable only by its owner. After every committed transaction
    that has changed something, `publish` is called with the changes, in the thread that wrote.
    """
    address = _parse(url)
    if address.get_backend_name() == "sqlite":
        return _open_sqlite(address, publish)
    try:
        engine = create_engine(
            address,
            pool_size=16,
            max_overflow=16,
            pool_pre_ping=True,
            connect_args={
                name: value for name, value in _TIMEOUTS.items() if name not in address.query
            },
            execution_options={
                "write_lock": nullcontext(),
                "publish": publish,
                "availability": _Availability(_without_secrets(address)),
            },
        )
    except ModuleNotFoundError:
        raise Invalid(
            f"PostgreSQL needs a package that is not installed; run {install_command('postgres')}"
        ) from None
    event.listen(engine, "connect", _set_up_postgresql)
    return engine


def describe_database(url: str) -> str:
    """Return which database a URL names, without user, password and options."""
    address = _parse(url)
    if address.get_backend_name() == "sqlite":
        return f"sqlite:///{os.path.abspath(str(address.database))}"
    host = address.host or address.query.get("host") or "localhost"
    port = address.port or address.query.get("port") or 5432
    return f"postgresql://{host}:{port}/{address.database or address.username or ''}"


def is_sqlite(url: str) -> bool:
    """Whether only one server at a time can use the database."""
    return _parse(url).get_backend_name() == "sqlite"


def has_jobs(url: str | URL) -> bool:
    """Whether the database holds any job. A missing SQLite file is not created."""
    address = _parse(url)
    if address.get_backend_name() == "sqlite" and not os.path.exists(str(address.database)):
        return False
    engine = open_engine(url)
    try:
        with _opening(engine), reading(engine) as db:
            has_tables = inspect(db).has_table("jobs") and inspect(db).has_table("alembic_version")
            return has_tables and db.execute(text("SELECT 1 FROM jobs LIMIT 1")).first() is not None
    finally:
        engine.dispose()


@contextmanager
def reading(engine: Engine) -> Generator[Connection, None, None]:
    """Open a read-only transaction."""
    with _translating_errors(engine), engine.connect() as db:
        yield db


@contextmanager
def writing(engine: Engine) -> Generator[Connection, None, None]:
    """Open a transaction that writes. It is committed as a whole, or rolled back on an error."""
    options, changes = engine.get_execution_options(), list[Change]()
    write_lock: AbstractContextManager[Any] = options["write_lock"]
    with write_lock, _translating_errors(engine), engine.connect() as db:
        db.execution_options(writes=True, changes=changes)
        with db.begin():
            yield db
    if changes:
        options["publish"](changes)


def upsert(
    db: Connection, table: Table, *rows: Mapping[str, Any], replace: Collection[str] = ()
) -> None:
    """Insert rows. Where a primary key exists already, update only the columns in `replace`."""
    if rows:
        statement = _upsert(db.dialect.name, table, tuple(replace))
        db.execute(statement, [dict(row) for row in rows])


@cache  # building the statement costs more than running it
def _upsert(dialect: str, table: Table, replace: tuple[str, ...]) -> Executable:
    key = list(table.primary_key.columns)
    statement = _insert(dialect)(table)
    if not replace:
        return statement.on_conflict_do_nothing(index_elements=key)
    changes = {name: statement.excluded[name] for name in replace}
    return statement.on_conflict_do_update(index_elements=key, set_=changes)


def insert_new(
    db: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: tuple[str, ...] = ()
) -> None:
    """Insert rows, and skip those whose key exists already. The default is the primary key."""
    if rows:
        db.execute(_insert_new(db.dialect.name, table, key), list(rows))


@cache  # building the statement costs more than running it
def _insert_new(dialect: str, table: Table, key: tuple[str, ...]) -> Executable:
    columns = [table.c[name] for name in key] or list(table.primary_key.columns)
    return _insert(dialect)(table).on_conflict_do_nothing(index_elements=columns)


def _insert(dialect: str) -> Any:
    if dialect == "postgresql":
        # imported here because it takes 30 ms, which SQLite users need not wait for
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert
    return insert


def migrate(engine: Engine) -> None:
    """Upgrade the database to the current schema. Several servers may do so at once.

    Raise Conflict if another version of Retarget made the database, and Invalid if it is none.
    """
    with _opening(engine):
        with reading(engine) as db:
            if _revision(db) == HEAD:
                _check_tables(db)
                return
        with writing(engine) as db:
            if db.dialect.name == "postgresql":
                db.execute(
                    text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK_ID}
                )
            revision = _revision(db)
            if revision != HEAD:
                _upgrade(db, revision)


def _check_tables(db: Connection) -> None:
    missing = set(metadata.tables) - set(inspect(db).get_table_names())
    if missing:
        raise Conflict(
            f"the database {_display_name(db.engine)} lacks the table {min(missing)!r}; "
            "restore a backup, or move the database away to start with an empty one"
        )


def _set_up_postgresql(connection: Any, _record: object) -> None:
    connection.autocommit = True
    milliseconds = _IDLE_TRANSACTION_SECONDS * 1000
    connection.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
    connection.autocommit = False


def _parse(url: str | URL) -> URL:
    expected = "write sqlite:////path/to/retarget.db or postgresql+psycopg://user@host/database"
    try:
        address = make_url(url)
    except ArgumentError:
        raise Invalid(f"this is not a database URL; {expected}") from None
    if address.drivername in ("postgresql", "postgresql+psycopg"):
        return address.set(drivername="postgresql+psycopg")
    if address.drivername == "sqlite" and address.database not in (None, "", ":memory:"):
        return address
    raise Invalid(f"{_without_secrets(address)!r} does not name a database; {expected}")


def _open_sqlite(address: URL, publish: Publish) -> Engine:
    path = str(address.database)
    try:
        # only for a new file: closing a file that SQLite has open would drop SQLite's locks
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise Invalid(f"cannot create the database {path}: {error.strerror}") from None
    engine = create_engine(
        address,
        connect_args={"timeout": _LOCK_TIMEOUT_SECONDS},
        pool_size=16,
        max_overflow=-1,
        # this lock wakes the next thread at once; SQLite would let it sleep and retry
        execution_options={
            "write_lock": threading.Lock(),
            "publish": publish,
            "availability": _Availability(path),
        },
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


_SQLITE_PRAGMAS = (
    "synchronous = NORMAL",
    "foreign_keys = ON",
    # pages, 32 MB: the writer that fills the journal waits for the disk, so let it fill rarely
    "wal_autocheckpoint = 8192",
)


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # _begin_sqlite begins transactions
    _use_write_ahead_log(connection)
    for setting in _SQLITE_PRAGMAS:
        connection.execute(f"PRAGMA {setting}").close()


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # while another connection makes the same change, SQLite fails at once instead of waiting
    deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _begin_sqlite(db: Connection) -> None:
    # a reader that becomes a writer can fail at once; one that begins as a writer waits
    writes = db.get_execution_options().get("writes", False)
    db.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _revision(db: Connection) -> str | None:
    if not inspect(db).has_table("alembic_version"):
        return None
    return db.scalar(text("SELECT version_num FROM alembic_version"))


def _upgrade(db: Connection, revision: str | None) -> None:
    # importing Alembic takes longer than everything else here, and most databases are up to date
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "retarget.store:migrations")
    config.attributes["connection"] = db
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    name = _display_name(db.engine)
    if revision is not None and revision not in revisions:
        raise Conflict(
            f"the database {name} was created by another version of Retarget: its schema is "
            f"{revision!r}, and this version reads schemas up to {HEAD!r}; use that version, or "
            "another database"
        )
    foreign = set(inspect(db).get_table_names()) & set(metadata.tables)
    if revision is None and foreign:
        raise Conflict(
            f"the database {name} has a table {min(foreign)!r} that is not Retarget's; "
            "use an empty database"
        )
    command.upgrade(config, "head")


class _Availability:
    """Whether a database answers. When that changes, one line is written to the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._has_answered = False
        self.is_lost = True  # until it has answered

    def lose(self, cause: object) -> DatabaseUnreachable:
        """Note that the database does not answer, and return the error to raise."""
        with self._lock:
            is_new, self.is_lost = not self.is_lost, True
        if is_new:
            reason = str(cause).strip().partition("\n")[0]
            message = "the database %s does not answer: %s; requests get 503 until it does"
            _log.error(message, self._name, reason)
        return DatabaseUnreachable(
            f"the database {self._name} does not answer; check that it runs, and try again"
        )

    def restore(self) -> None:
        """Note that the database answers."""
        with self._lock:
            is_new = self.is_lost and self._has_answered
            self.is_lost, self._has_answered = False, True
        if is_new:
            _log.warning("the database %s answers again", self._name)


@contextmanager
def _opening(engine: Engine) -> Generator[None, None, None]:
    try:
        with _translating_errors(engine):
            yield
    except (DBAPIError, DatabaseUnreachable) as error:
        failure = error.__cause__ if isinstance(error, DatabaseUnreachable) else error
        cause = failure.orig if isinstance(failure, DBAPIError) else failure
        raise Invalid(f"cannot open the database {_display_name(engine)}: {cause}") from error


@contextmanager
def _translating_errors(engine: Engine) -> Generator[None, None, None]:
    availability: _Availability = engine.get_execution_options()["availability"]
    try:
        yield
    except PoolTimeout as error:
        raise availability.lose("all connections are in use") from error
    except DBAPIError as error:
        if _is_unreachable(error):
            raise availability.lose(error.orig) from error
        translated = _translate(error.orig, _display_name(engine))
        if translated is None:
            raise
        raise translated from error
    if availability.is_lost:
        availability.restore()


def _is_unreachable(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):
        return False
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state.startswith(_UNREACHABLE_STATES)
    return error.connection_invalidated or isinstance(error, OperationalError)


def _translate(cause: BaseException | None, database: str) -> RetargetError | None:
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the higher bits are the extended code
    if code == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", None) == "53100":
        return StorageFull(f"the disk of the database {database} is full; free some disk space")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
        return StorageFull(
            f"cannot write the database {database} ({cause}); check its disk and its folder"
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return Invalid(
            f"{database} is damaged or is not a database ({cause}); "
            "restore a backup, or move the file away to start with an empty database"
        )
    if code == sqlite3.SQLITE_BUSY:
        return Conflict(
            f"another process has locked the database {database} for "
            f"{_LOCK_TIMEOUT_SECONDS:.0f} seconds; stop it and try again"
        )
    return None


def _display_name(engine: Engine) -> str:
    url = engine.url
    return str(url.database) if url.get_backend_name() == "sqlite" else _without_secrets(url)


def _without_secrets(url: URL) -> str:
    return url.set(query={}).render_as_string()  # the query may hold a password, too
