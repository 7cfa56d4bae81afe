"""Turns the settings schema of a kind of target into options of a command.

A schema may say more than JSON schema does: `"unit": "bytes"` (write 2g), and under `"cli"` the
name of the option (`"option": "host"`) or that the option takes a file (`"file": true`).
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, cast

from retarget.core.errors import Invalid
from retarget.core.units import parse_memory

_PUBLIC_KEY_PREFIXES = (
    *("ssh-", "ecdsa-", "sk-"),
    *("-----BEGIN PUBLIC", "-----BEGIN RSA PUBLIC", "---- BEGIN SSH2"),
)
_MAX_FILE_BYTES = 1 << 20
_Schema = dict[str, Any]


class Form(Enum):
    """How a value is written; the text is the placeholder in --help."""

    STRING = "TEXT"
    INTEGER = "N"
    NUMBER = "NUMBER"
    BYTES = "SIZE"
    PATH = "PATH"
    FLAG = ""
    PAIR = "K=V"  # of a mapping
    JSON = "JSON"
    FILE = "FILE"  # the value is the content of the file
    SECRET = " "  # prompted for or read from stdin: other users can see command lines


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    option: str
    form: Form
    description: str
    is_list: bool = False
    is_required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    secret_keys: tuple[str, ...] = ()  # keys of a JSON value that must not be on a command line

    @property
    def options(self) -> dict[str, str]:
        """Return the spellings of the option, each with its placeholder; empty: no value."""
        if self.form is Form.FLAG:
            return {self.option: "", f"--no-{self.option[2:]}": ""}
        if self.form is Form.SECRET:
            return {self.option: "", f"{self.option}-stdin": ""}
        return {self.option: "|".join(self.choices) or self.form.value}

    @property
    def help(self) -> tuple[str, str]:
        """Return the row of --help."""
        usage = " / ".join(f"{name} {value}".strip() for name, value in self.options.items())
        notes = [
            "required" if self.is_required else "",
            "repeatable" if self.is_list or self.form is Form.PAIR else "",
            f"default: {_format(self.default)}" if self.default not in (None, "", [], {}) else "",
        ]
        text = "; ".join(note for note in notes if note)
        return usage, f"{self.description}  [{text}]" if text else self.description


@dataclass(frozen=True, slots=True)
class ParsedOption:
    """One option of a command line."""

    setting: Setting
    option: str
    value: str | None


def settings_of(schema: Mapping[str, Any]) -> list[Setting]:
    """Return the settings of a schema, in its order."""
    definitions: _Schema = schema.get("$defs", {})
    required = schema.get("required", [])
    return [
        _setting(name, field, definitions, is_required=name in required)
        for name, field in schema.get("properties", {}).items()
    ]


def unknown_option(option: str, kind: str, options: Iterable[str]) -> Invalid:
    names = sorted(options)
    matches = get_close_matches(option[2:], [name[2:] for name in names], 1)
    hint = f"did you mean --{matches[0]}? " if matches else ""
    return Invalid(f"{kind} targets have no option {option}; {hint}options: {', '.join(names)}")


def values_of(options: Sequence[ParsedOption]) -> dict[str, Any]:
    """Return the settings that these options set; prompt for secrets or read them from stdin."""
    config: dict[str, Any] = {}
    if sum(option.option.endswith("-stdin") for option in options) > 1:
        raise Invalid("only one secret can be read from stdin")
    for option in options:
        value, name = _value(option), option.setting.name
        if option.setting.is_list:
            config.setdefault(name, []).append(value)
        elif option.setting.form is Form.PAIR:
            config.setdefault(name, {}).update(value)
        else:
            config[name] = value
    return config


def _setting(name: str, field: _Schema, definitions: _Schema, *, is_required: bool) -> Setting:
    resolved, extra = _resolve(field, definitions), cast(_Schema, field.get("cli", {}))
    is_list = resolved.get("type") == "array"
    item = _resolve(resolved.get("items", {}), definitions) if is_list else resolved
    form = Form.FILE if extra.get("file") else _form(item, field)
    is_plural = (is_list or form is Form.PAIR) and name.endswith("s")
    keys = {key: _resolve(value, definitions) for key, value in item.get("properties", {}).items()}
    return Setting(
        name=name,
        option="--" + str(extra.get("option", name[:-1] if is_plural else name)).replace("_", "-"),
        form=form,
        description=str(field.get("description", "")),
        is_list=is_list,
        is_required=is_required,
        default=field.get("default"),
        choices=tuple(str(choice) for choice in item.get("enum", ())),
        secret_keys=tuple(key for key, value in keys.items() if _is_secret(value)),
    )


def _resolve(field: _Schema, definitions: _Schema) -> _Schema:
    """Follow references, and choose one schema where several are allowed (or null)."""
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        extra = {key: value for key, value in field.items() if key != "$ref"}
        return _resolve(definitions.get(name, {}), definitions) | extra
    schemas = [_resolve(item, definitions) for item in field.get("anyOf", field.get("allOf", ()))]
    schemas = [schema for schema in schemas if schema.get("type") != "null"]
    if not schemas:
        return field
    # any value can be typed as a string, which the server parses
    strings = [schema for schema in schemas if schema.get("type") == "string"]
    return (strings or schemas)[0]


def _form(item: _Schema, field: _Schema) -> Form:
    if field.get("unit") == "bytes" or item.get("unit") == "bytes":
        return Form.BYTES
    if _is_secret(item):
        return Form.SECRET
    if item.get("format") in ("path", "file-path", "directory-path"):
        return Form.PATH
    if item.get("type") == "object":
        return Form.JSON if "properties" in item else Form.PAIR
    forms = {"boolean": Form.FLAG, "integer": Form.INTEGER, "number": Form.NUMBER}
    return forms.get(str(item.get("type")), Form.STRING)


def _is_secret(item: _Schema) -> bool:
    return item.get("format") == "password" or bool(item.get("writeOnly"))


def _value(parsed: ParsedOption) -> Any:
    setting, option, text = parsed.setting, parsed.option, parsed.value or ""
    if setting.form is Form.FLAG:
        return option == setting.option
    if setting.form is Form.SECRET:
        return _prompt(option) if option == setting.option else _read_stdin(option)
    if setting.form is Form.JSON:
        return _parse_json(setting, text)
    if setting.form in _PARSERS:
        return _PARSERS[setting.form](option, text)
    return _check_choice(setting, text)


def _check_choice(setting: Setting, text: str) -> str:
    if setting.choices and text not in setting.choices:
        raise Invalid(f"{setting.option}: {text!r} is not one of {', '.join(setting.choices)}")
    return text


def _parse_integer(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{option}: {text[:80]!r} is not an integer") from None


def _parse_number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Invalid(f"{option}: {text[:80]!r} is not a number")
    return number


def _parse_bytes(option: str, text: str) -> int:
    return parse_memory(text, field=option)


def _parse_pair(option: str, text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Invalid(f"{option} {text[:80]!r} is not K=V")
    return {name: value}


def _parse_json(setting: Setting, text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return text  # a short form, if the kind has one
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{setting.option}: not valid JSON: {error}") from None
    for key in setting.secret_keys:
        if value.get(key) is not None:
            raise Invalid(
                f"{setting.option}: other users could see the {key} in the process list; "
                "set it from Python with workspace.targets.attach"
            )
    return value


def _prompt(option: str) -> str:
    if not sys.stdin.isatty():
        raise Invalid(f"{option} prompts on a terminal; without one use {option}-stdin")
    from getpass import getpass

    try:
        secret = getpass(f"{option[2:]}: ")
    except EOFError:
        secret = ""
    if not secret:
        raise Invalid(f"{option}: the input is empty")
    return secret


def _read_stdin(option: str) -> str:
    prompting = option.removesuffix("-stdin")
    if sys.stdin.isatty():
        raise Invalid(f"{option} reads from a pipe; on a terminal use {prompting}")
    try:
        secret = sys.stdin.read(_MAX_FILE_BYTES).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Invalid(f"{option}: stdin is not text") from None
    if not secret:
        raise Invalid(f"{option}: stdin is empty")
    return secret


def _read_file(option: str, path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or not UTF-8
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise Invalid(f"{option}: cannot read {path}: {why}") from None
    if len(text) > _MAX_FILE_BYTES:
        raise Invalid(f"{option}: {path} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    if not text.strip():
        raise Invalid(f"{option}: {path} is empty")
    if text.startswith(_PUBLIC_KEY_PREFIXES):
        private = path.removesuffix(".pub")
        hint = f", perhaps {private}" if private != path else ""
        raise Invalid(f"{option}: {path} is a public key; name the private key{hint}")
    return text


_PARSERS: dict[Form, Callable[[str, str], Any]] = {
    Form.FILE: _read_file,
    Form.BYTES: _parse_bytes,
    Form.INTEGER: _parse_integer,
    Form.NUMBER: _parse_number,
    Form.PAIR: _parse_pair,
}


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, cast(list[Any], value))) if isinstance(value, list) else str(value)
