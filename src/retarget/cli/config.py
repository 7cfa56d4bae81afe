"""`retarget config …`: the settings of this machine's server and user."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.groups import new_group
from retarget.cli.lookup import AsJson
from retarget.cli.terminal import print_result, print_status, show, write_json

if TYPE_CHECKING:
    from retarget.core.config import SettingValue
    from retarget.core.home import Home

app = new_group()


def complete_setting(incomplete: str) -> list[str]:
    from retarget.core.config import SETTINGS

    return [name for name in SETTINGS if name.startswith(incomplete)]


SettingName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a setting.", autocompletion=complete_setting)
]


@app.command("list")
def list_settings(as_json: AsJson = False) -> None:
    """List all settings, their values, and where each value comes from."""
    from retarget.cli.tables import new_table
    from retarget.sdk.config_file import resolve_config

    values = resolve_config(_home(), os.environ).values()
    if as_json:
        write_json([_row(value) for value in values])
        return
    titles = ("NAME", "VALUE", "FROM", "MEANING")
    rows = [
        (value.setting.name, value.shown or "-", value.origin, value.setting.description)
        for value in values
    ]
    show(new_table(titles, rows, flexible="VALUE", optional=["MEANING"], wrap=True))


@app.command("get")
def get_setting(name: SettingName, as_json: AsJson = False) -> None:
    """Print the value of a setting. Exits with 1 if it has none."""
    from retarget.core.config import find_setting
    from retarget.sdk.config_file import resolve_config

    value = resolve_config(_home(), os.environ)[find_setting(name).name]
    if as_json:
        write_json(_row(value))
    elif value.value is not None:
        print_result(value.shown)
    if value.value is None:
        print_status(f"{name} has no value, so its default applies", "dim")
        raise typer.Exit(1)


@app.command("set")
def set_setting(
    name: SettingName,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Its value. Default: read from stdin.")
    ] = None,
) -> None:
    """Store a setting in config.toml.

    Without VALUE, the value is read from stdin, which keeps a password out of your shell's history.
    """
    from retarget.core.config import find_setting, parse_value
    from retarget.sdk.config_file import change_config

    setting, home = find_setting(name), _home()
    parsed = parse_value(setting, _read_value(name) if value is None else value, "config set")
    change_config(home, name, parsed)
    _explain_effect(home, name)


@app.command("unset")
def unset_setting(name: SettingName) -> None:
    """Remove a setting from config.toml, so that its default applies."""
    from retarget.core.config import find_setting
    from retarget.sdk.config_file import change_config, read_config

    setting, home = find_setting(name), _home()
    if setting.name not in read_config(home):
        print_status(f"{setting.name} is not set in {home.config}", "dim")
        return
    change_config(home, setting.name, None)
    _explain_effect(home, setting.name)


def _home() -> "Home":
    from retarget.core.home import home_from

    return home_from(os.environ)


def _row(value: "SettingValue") -> dict[str, Any]:
    is_text = isinstance(value.value, str)
    return {
        "name": value.setting.name,
        "value": value.shown if is_text else value.value,
        "origin": value.origin,
        "default": value.setting.default,
        "variable": value.setting.variable,
    }


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass(f"{name}: ")
    return sys.stdin.readline().rstrip("\r\n")


def _explain_effect(home: "Home", name: str) -> None:
    """Say whether a variable overrides it, and whether a running server must be restarted."""
    from retarget.sdk.config_file import resolve_config
    from retarget.sdk.local_server import running_server

    value = resolve_config(home, os.environ)[name]
    print_status(f"{name}: {value.shown or 'no value'} (from {value.origin})", "dim")
    if value.setting.variable == value.origin:
        print_status(f"the variable {value.origin} is set and overrides {home.config}", "yellow")
    if name != "target" and running_server(home) is not None:
        print_status(
            "the running server keeps its old settings; stop it with `retarget server stop` "
            "(running jobs continue), and the next command starts it with the new ones",
            "yellow",
        )
