"""A home that was served from PostgreSQL does not start on an empty SQLite database."""

from pathlib import Path

import pytest

from retarget.core.errors import Conflict
from retarget.core.home import Home
from retarget.server.served_database import check_database, record_database
from tests.conftest import Cli
from tests.store.conftest import Cluster


def test_a_home_of_postgresql_refuses_an_empty_sqlite_database(
    retarget: Cli, home: Path, cluster: Cluster
) -> None:
    name = cluster.create()
    url = cluster.url(name)
    with_postgresql = {"RETARGET_DATABASE": url}
    assert retarget("run", "--name", "first", "--", "true", env=with_postgresql).returncode == 0
    retarget("server", "stop")
    refused = retarget("job", "list")
    assert refused.returncode == 1
    assert "was last served from the database postgresql://" in refused.stderr
    assert "which has no jobs; to continue, set RETARGET_DATABASE" in refused.stderr
    assert not (home / "retarget.db").exists()
    retarget("config", "set", "database", url)
    assert "first" in retarget("job", "list").stdout
    retarget("server", "stop")
    cluster.drop(name)


def test_the_record_names_the_database_without_user_and_password(tmp_path: Path) -> None:
    home = Home(tmp_path)
    record_database(home, "postgresql+psycopg://me:geheim@host/name?password=geheim")
    assert home.served_database.read_text() == "postgresql://host:5432/name\n"
    check_database(home, "postgresql://other:user@host:5432/name")  # not opened: it is the same
    with pytest.raises(Conflict, match=r"served-database"):
        check_database(home, None)
    assert not home.database.exists()
