"""Opens the database: transactions, the present schema, and database errors in plain words."""

import os
import sqlite3
import threading
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
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
from sqlalchemy.exc import ArgumentError, DBAPIError

from retarget.core.errors import Conflict, Invalid, RetargetError, StorageFull
from retarget.store.schema import metadata

HEAD = "0005"  # the newest revision in migrations/versions

_PATIENCE = 30.0  # seconds that a writer waits for the one before it
_LOCK = 0x7265746172676574  # "retarget": the advisory lock of whoever migrates


def open_engine(url: str) -> Engine:
    """Return an engine for `sqlite:///FILE` or `postgresql+psycopg://…`, to be disposed of.

    A SQLite file that is not there is made, readable by its owner alone.
    """
    address = _parse(url)
    if address.get_backend_name() == "sqlite":
        return _open_sqlite(address)
    try:
        return create_engine(
            address,
            pool_size=16,
            max_overflow=16,
            pool_pre_ping=True,
            execution_options={"turn": nullcontext()},
        )
    except ModuleNotFoundError:
        raise Invalid(
            "PostgreSQL needs a package that is not installed; pip install 'retarget[postgres]'"
        ) from None


@contextmanager
def reading(engine: Engine) -> Generator[Connection, None, None]:
    """Open a transaction that only reads."""
    with _in_words(engine), engine.connect() as db:
        yield db


@contextmanager
def writing(engine: Engine) -> Generator[Connection, None, None]:
    """Open a transaction that writes: committed as a whole at the end, or not at all."""
    turn: AbstractContextManager[Any] = engine.get_execution_options()["turn"]
    with turn, _in_words(engine), engine.connect() as db:
        db.execution_options(writes=True)
        with db.begin():
            yield db


def upsert(
    db: Connection, into: Table, *rows: Mapping[str, Any], replace: Collection[str] = ()
) -> None:
    """Insert rows; where a primary key is there already, change only the columns in `replace`."""
    if rows:
        statement = _upsert(db.dialect.name, into, tuple(replace))
        db.execute(statement, [dict(row) for row in rows])


@cache  # made anew for each file a job leaves it would cost more than running it
def _upsert(dialect: str, into: Table, replace: tuple[str, ...]) -> Executable:
    key = list(into.primary_key.columns)
    statement = _insert(dialect)(into)
    if not replace:
        return statement.on_conflict_do_nothing(index_elements=key)
    changes = {name: statement.excluded[name] for name in replace}
    return statement.on_conflict_do_update(index_elements=key, set_=changes)


def insert_new(
    db: Connection, into: Table, rows: Sequence[Mapping[str, Any]], *, key: tuple[str, ...] = ()
) -> None:
    """Insert rows; those whose key, the primary one unless said, is there already stay as is."""
    if rows:
        db.execute(_insert_new(db.dialect.name, into, key), list(rows))


@cache  # made anew for each metric it would cost more than running it
def _insert_new(dialect: str, into: Table, key: tuple[str, ...]) -> Executable:
    columns = [into.c[name] for name in key] or list(into.primary_key.columns)
    return _insert(dialect)(into).on_conflict_do_nothing(index_elements=columns)


def _insert(dialect: str) -> Any:
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # 30 ms that SQLite does without
    else:
        from sqlalchemy.dialects.sqlite import insert
    return insert


def migrate(engine: Engine) -> None:
    """Bring the database to the present schema. Several servers may do so at once.

    Raise Conflict for a database of a newer Retarget, Invalid for what is no database.
    """
    with _opening(engine):
        with reading(engine) as db:
            if _revision(db) == HEAD:
                _check_tables(db)
                return
        with writing(engine) as db:
            if db.dialect.name == "postgresql":
                db.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            seen = _revision(db)
            if seen != HEAD:
                _upgrade(db, seen)


def _check_tables(db: Connection) -> None:
    lacking = set(metadata.tables) - set(inspect(db).get_table_names())
    if lacking:
        raise Conflict(
            f"the database {_shown(db.engine)} has lost its table {min(lacking)!r}; "
            "put a backup in its place, or move it away to begin anew"
        )


def _parse(url: str) -> URL:
    wanted = "write sqlite:////path/to/retarget.db or postgresql+psycopg://user@host/database"
    try:
        address = make_url(url)
    except ArgumentError:
        raise Invalid(f"that is not the address of a database; {wanted}") from None
    if address.drivername in ("postgresql", "postgresql+psycopg"):
        return address.set(drivername="postgresql+psycopg")
    if address.drivername == "sqlite" and address.database not in (None, "", ":memory:"):
        return address
    raise Invalid(f"{_without_secrets(address)!r} does not name a database; {wanted}")


def _open_sqlite(address: URL) -> Engine:
    path = str(address.database)
    try:
        # only ever a new file: closing a file that SQLite has open would drop SQLite's locks
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise Invalid(f"cannot make the database {path}: {error.strerror}") from None
    engine = create_engine(
        address,
        connect_args={"timeout": _PATIENCE},
        pool_size=16,
        max_overflow=-1,
        # threads of one server take turns here at once; SQLite would have them sleep and try again
        execution_options={"turn": threading.Lock()},
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


_SETTINGS = (
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "foreign_keys = ON",
    # pages, 32 MB: whoever fills the journal waits for the disk, and should not have to often
    "wal_autocheckpoint = 8192",
)


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, below
    for setting in _SETTINGS:
        connection.execute(f"PRAGMA {setting}").close()


def _begin_sqlite(db: Connection) -> None:
    # a reader that turns into a writer can fail at once; one that begins as a writer waits
    writes = db.get_execution_options().get("writes", False)
    db.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _revision(db: Connection) -> str | None:
    if not inspect(db).has_table("alembic_version"):
        return None
    return db.scalar(text("SELECT version_num FROM alembic_version"))


def _upgrade(db: Connection, seen: str | None) -> None:
    # importing Alembic costs more than all the rest of opening, and most databases are up to date
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "retarget.store:migrations")
    config.attributes["connection"] = db
    known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    shown = _shown(db.engine)
    if seen is not None and seen not in known:
        raise Conflict(
            f"the database {shown} was made by a newer Retarget: its schema is {seen!r} and this "
            f"one knows {HEAD!r} at most; upgrade Retarget, or use another database"
        )
    foreign = set(inspect(db).get_table_names()) & set(metadata.tables)
    if seen is None and foreign:
        raise Conflict(
            f"the database {shown} has a table {min(foreign)!r} that is not Retarget's; "
            "use an empty database"
        )
    command.upgrade(config, "head")


@contextmanager
def _opening(engine: Engine) -> Generator[None, None, None]:
    try:
        with _in_words(engine):
            yield
    except DBAPIError as error:
        raise Invalid(f"cannot open the database {_shown(engine)}: {error.orig}") from error


@contextmanager
def _in_words(engine: Engine) -> Generator[None, None, None]:
    try:
        yield
    except DBAPIError as error:
        told = _told(error.orig, _shown(engine))
        if told is None:
            raise
        raise told from error


def _told(cause: BaseException | None, shown: str) -> RetargetError | None:
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the rest tells which kind of it
    if code == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", None) == "53100":
        return StorageFull(f"there is no room left for the database {shown}; free some disk space")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
        return StorageFull(
            f"the database {shown} cannot be written ({cause}); look at its disk and its folder"
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return Invalid(
            f"{shown} is damaged or is not a database ({cause}); "
            "put a backup in its place, or move it away to begin anew"
        )
    if code == sqlite3.SQLITE_BUSY:
        return Conflict(
            f"another process has kept the database {shown} locked for {_PATIENCE:.0f} seconds; "
            "end it and try again"
        )
    return None


def _shown(engine: Engine) -> str:
    url = engine.url
    return str(url.database) if url.get_backend_name() == "sqlite" else _without_secrets(url)


def _without_secrets(url: URL) -> str:
    return url.set(query={}).render_as_string()  # a password may also stand behind the "?"
