"""The settings of a home: what config.toml may hold, and which value wins."""

import pytest

from retarget.core.config import SETTINGS, hide_password, parse_config, resolve
from retarget.core.errors import Invalid

PATH = "/home/me/.retarget/config.toml"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"prot = 1", "unknown key 'prot'; did you mean 'port'?"),
        (b"[server]\nport = 1", "unknown key 'server'; known: database, host"),
        (b"port = true", "port: True is not a port number"),
        (b"port = 65536", "port: 65536 is not a port number"),
        (b'port = "80"', "port: write 80 without quotes"),
        (b"poll_seconds = nan", "poll_seconds: nan is not a number of seconds above 0"),
        (b"host = 5", "host: 5 is not an address"),
        (b'target = "a b"', "target: 'a b' is not the name of a target"),
        (b'public_url = "http://me:pw@x"', "public_url: the address must not contain a user"),
        (b'database = "mysql://x:geheim@y/z"', "database: this is not a database URL"),
        (b"port = 1\nport = 2", "is not valid TOML"),
        (b'host = "\xff"', "is not text in UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_key(content: bytes, sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_config(content, PATH)
    assert PATH in str(refused.value)
    assert sentence in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_a_variable_wins_over_the_file_and_the_file_over_the_default() -> None:
    config = parse_config(b'host = "::1"\nport = 5000', PATH)
    environ = {"RETARGET_PORT": "6000", "RETARGET_HOST": "", "RETARGET_POLL_SECONDS": "0.5"}
    values = resolve(config, environ, PATH)
    assert list(values) == list(SETTINGS)
    assert (values["port"].value, values["port"].origin) == (6000, "RETARGET_PORT")
    assert (values["host"].value, values["host"].origin) == ("::1", PATH)
    assert (values["target"].value, values["target"].origin) == ("local", "default")
    assert values["poll_seconds"].value == 0.5
    with pytest.raises(Invalid, match=r"^RETARGET_PORT: '²' is not a port number"):
        resolve(config, {"RETARGET_PORT": "²"}, PATH)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me@host/name", "postgresql://me@host/name"),
        ("postgresql://me:geheim@host:5432/name", "postgresql://me:***@host:5432/name"),
        ("postgresql://me:ge@he/im?x@host/name", "postgresql://me:***@host/name"),
        ("postgresql:///name?password=geheim", "postgresql:///name?***"),
        ("postgresql://me@host/n?password=ge@heim", "postgresql://me:***@heim"),
        ("sqlite:////home/me/x.db", "sqlite:////home/me/x.db"),
        ("geheim", "********"),
    ],
)
def test_a_database_is_shown_without_its_password(url: str, shown: str) -> None:
    assert hide_password(url) == shown
