"""The settings of a home: their rules, and where each value comes from."""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retarget.core.addresses import parse_address
from retarget.core.conda_policy import AUTO, STRICT
from retarget.core.errors import Invalid
from retarget.core.names import check_name
from retarget.core.toml import check_keys, parse_toml, suggest
from retarget.core.units import parse_memory

Plain = str | int | float
MAX_CONFIG_BYTES = 1_000_000  # of a file of settings
_MAX_PORT = 65_535
_DATABASE = re.compile(r"(sqlite|postgresql|postgresql\+psycopg)://.+", re.S)
_HIDDEN = "********"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `parse` takes a value of the file or the text of a variable."""

    name: str
    variable: str
    parse: Callable[[object], Plain]
    default: Plain | None
    description: str


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of a setting and where it comes from. None: there is no value."""

    setting: Setting
    value: Plain | None
    origin: str

    @property
    def shown(self) -> str:
        """The value for a person: without passwords."""
        if self.value is None:
            return ""
        return (
            hide_password(str(self.value)) if self.setting.name == "database" else str(self.value)
        )


def find_setting(name: str) -> Setting:
    """Return the setting with this name, or raise Invalid with a suggestion."""
    if name not in SETTINGS:
        raise Invalid(f"unknown setting {name!r}; {suggest(name, SETTINGS)}", field="name")
    return SETTINGS[name]


def parse_config(content: bytes, path: str) -> dict[str, Plain]:
    """Return the checked settings of a config.toml, or raise Invalid with the file and the key."""
    table = parse_toml(content, path)
    check_keys(table, SETTINGS, path)
    return {name: _parse_entry(SETTINGS[name], value, path) for name, value in table.items()}


def parse_value(setting: Setting, value: object, source: str) -> Plain:
    try:
        return setting.parse(value)
    except ValueError as error:
        raise Invalid(f"{source}: {setting.name}: {error}", field=setting.name) from None


def _parse_entry(setting: Setting, value: object, path: str) -> Plain:
    parsed = parse_value(setting, value, path)
    if isinstance(value, str) and not isinstance(parsed, str):  # only variables are all text
        raise Invalid(f"{path}: {setting.name}: write {value} without quotes", field=setting.name)
    return parsed


def resolve(
    config: Mapping[str, Plain], environ: Mapping[str, str], path: str
) -> dict[str, SettingValue]:
    """Return every setting: from its variable, or else from the file, or else its default."""
    return {name: _resolve(setting, config, environ, path) for name, setting in SETTINGS.items()}


def _resolve(
    setting: Setting, config: Mapping[str, Plain], environ: Mapping[str, str], path: str
) -> SettingValue:
    text = environ.get(setting.variable)
    if text:
        try:
            return SettingValue(setting, setting.parse(text), setting.variable)
        except ValueError as error:
            raise Invalid(f"{setting.variable}: {error}", field=setting.name) from None
    if setting.name in config:
        return SettingValue(setting, config[setting.name], path)
    return SettingValue(setting, setting.default, "default")


def hide_password(url: str) -> str:
    """Return a database URL without its password. The query is hidden too: it may hold one."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return _HIDDEN
    credentials, at, address = rest.rpartition("@")  # a password may contain anything
    user = re.split("[:/?@]", credentials, maxsplit=1)[0]
    password = ":***" if user != credentials else ""
    host, query, _ = address.partition("?")
    return f"{scheme}://{user}{password}{at}{host}{'?***' if query else ''}"


def _port(value: object) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_digits = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 6
    if (is_number or is_digits) and 0 <= int(str(value)) <= _MAX_PORT:
        return int(str(value))
    raise ValueError(f"{value!r} is not a port number")


def _seconds(value: object) -> float:
    try:
        seconds = 0.0 if isinstance(value, bool) else float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:  # false for NaN, too
        raise ValueError(f"{value!r} is not a number of seconds above 0")
    return seconds


def _host(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value or " " in value:
        raise ValueError(f"{value!r} is not an address to listen on, such as 127.0.0.1")
    return value


def _url(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a server address; write http://host:port")
    try:
        parse_address(value)
    except Invalid as error:
        raise ValueError(str(error)) from None
    return value


def _database(value: object) -> str:
    # the value is not shown: it may hold a password
    if isinstance(value, str) and _DATABASE.fullmatch(value):
        return value
    raise ValueError(
        "this is not a database URL; write sqlite:////path/to/retarget.db or "
        "postgresql+psycopg://user@host/database"
    )


def _target(value: object) -> str:
    try:
        return check_name(str(value)) if isinstance(value, str) else check_name("")
    except Invalid:
        raise ValueError(f"{value!r} is not the name of a target") from None


def _conda(value: object) -> str:
    if value not in (AUTO, STRICT):
        raise ValueError(f"{value!r} is not one of {AUTO}, {STRICT}")
    return str(value)


def _size(value: object) -> str | int:
    """Return a number of bytes, or its text: it stays as it was written."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        parse_size(value)
    except (ValueError, Invalid):
        raise ValueError(f"{value!r} is not a size; write 500m or 2g, or 0 for none") from None
    return value


def parse_size(value: str | int) -> int:
    """Return the number of bytes of a setting; unlike an amount of memory, it may be 0."""
    return 0 if str(value).strip() == "0" else parse_memory(value)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("database", "RETARGET_DATABASE", _database, None, "the URL of the database"),
        Setting("host", "RETARGET_HOST", _host, "127.0.0.1", "the address to listen on"),
        Setting("port", "RETARGET_PORT", _port, None, "the port to listen on"),
        Setting(
            "public_url",
            "RETARGET_PUBLIC_URL",
            _url,
            None,
            "the address that clients use, if it differs",
        ),
        Setting(
            "poll_seconds", "RETARGET_POLL_SECONDS", _seconds, 1.0, "seconds between two polls"
        ),
        Setting(
            "keep_limit",
            "RETARGET_KEEP_LIMIT",
            _size,
            "200m",
            "how much a job may keep outside of outputs/",
        ),
        Setting("target", "RETARGET_TARGET", _target, "local", "the target to run on by default"),
        Setting(
            "conda",
            "RETARGET_CONDA",
            _conda,
            AUTO,
            "auto: PyPI may replace conda channels that cannot be used; strict: it may not",
        ),
    )
}
