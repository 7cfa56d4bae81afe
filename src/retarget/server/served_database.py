"""Records which database served a home, so that a lost setting does not seem to lose all jobs."""

import logging

from retarget.blobs.disk import sync_files
from retarget.core.errors import Conflict
from retarget.core.home import Home
from retarget.store.engine import describe_database, has_jobs, sqlite_url

_log = logging.getLogger("retarget")
_DEFAULT = "retarget.db"  # not a path: the home may be moved


def check_database(home: Home, url: str | None) -> None:
    """Raise Conflict if the home was served from another database and this one has no jobs.

    None is the SQLite database in the home. A user who leaves that one has chosen the new one.
    """
    previous, current = _read(home), _describe(url)
    if previous in ("", current) or has_jobs(url or sqlite_url(home.database)):
        return
    if previous == _DEFAULT:
        _log.warning("the jobs in %s stay there; this server uses %s", home.database, current)
        return
    raise Conflict(
        f"the home {home.root} was last served from the database {previous}, but this server would "
        f"use {current if url else home.database}, which has no jobs; to continue, set "
        "RETARGET_DATABASE or run `retarget config set database URL`; to start with an empty "
        f"database, delete {home.served_database}"
    )


def record_database(home: Home, url: str | None) -> None:
    """Write down that this server uses this database, once it has opened it."""
    name = _describe(url)
    if _read(home) == name:
        return
    part = home.served_database.with_suffix(".part")
    part.write_text(f"{name}\n")
    sync_files([part], home.root)
    part.rename(home.served_database)


def _describe(url: str | None) -> str:
    return _DEFAULT if url is None else describe_database(url)


def _read(home: Home) -> str:
    try:
        return home.served_database.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""
