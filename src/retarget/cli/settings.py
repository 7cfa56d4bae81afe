"""The settings of a kind of target as options of a command, made from the schema of the kind.

What a schema may say beside what JSON schema has: `"unit": "bytes"` (write 2g), and under `"cli"`
another name (`"option": "host"`) or that a file's text is meant (`"file": true`).
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

_PUBLIC = ("ssh-", "ecdsa-", "sk-", "-----BEGIN PUBLIC", "-----BEGIN RSA PUBLIC", "---- BEGIN SSH2")
_LARGEST = 1 << 20  # bytes of a file that is a setting
_Schema = dict[str, Any]


class Form(Enum):
    """How a value is written."""

    TEXT = "TEXT"
    WHOLE = "N"
    NUMBER = "NUMBER"
    BYTES = "SIZE"
    PATH = "PATH"
    FLAG = ""
    PAIR = "K=V"  # of a mapping
    JSON = "JSON"
    FILE = "FILE"  # its text is the value
    SECRET = " "  # asked for, or read from stdin: others can read the arguments of a command


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    option: str
    form: Form
    about: str
    is_list: bool = False
    is_needed: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()  # parts of it that no argument may hold

    @property
    def options(self) -> dict[str, str]:
        """Return every way to give it, each with what it needs: nothing, or such a value."""
        if self.form is Form.FLAG:
            return {self.option: "", f"--no-{self.option[2:]}": ""}
        if self.form is Form.SECRET:
            return {self.option: "", f"{self.option}-stdin": ""}
        return {self.option: "|".join(self.choices) or self.form.value}

    @property
    def help(self) -> tuple[str, str]:
        """Return it as a row of --help."""
        written = " / ".join(f"{name} {value}".strip() for name, value in self.options.items())
        notes = [
            "required" if self.is_needed else "",
            "repeatable" if self.is_list or self.form is Form.PAIR else "",
            f"default: {_shown(self.default)}" if self.default not in (None, "", [], {}) else "",
        ]
        told = "; ".join(note for note in notes if note)
        return written, f"{self.about}  [{told}]" if told else self.about


@dataclass(frozen=True, slots=True)
class Given:
    """One option as it was written."""

    setting: Setting
    option: str
    value: str | None


def settings_of(schema: Mapping[str, Any]) -> list[Setting]:
    """Return the settings that a schema tells of, in its order."""
    known: _Schema = schema.get("$defs", {})
    needed = schema.get("required", [])
    return [
        _setting(name, part, known, is_needed=name in needed)
        for name, part in schema.get("properties", {}).items()
    ]


def unknown_option(option: str, kind: str, known: Iterable[str]) -> Invalid:
    there = sorted(known)
    close = get_close_matches(option[2:], [each[2:] for each in there], 1)
    meant = f"; did you mean --{close[0]}?" if close else ";"
    return Invalid(f"{kind} targets have no option {option}{meant} there are {', '.join(there)}")


def values_of(given: Sequence[Given]) -> dict[str, Any]:
    """Return the settings that these options mean; a secret is asked for, or read from stdin."""
    config: dict[str, Any] = {}
    if sum(each.option.endswith("-stdin") for each in given) > 1:
        raise Invalid("only one secret can be read from stdin")
    for each in given:
        value, name = _value(each), each.setting.name
        if each.setting.is_list:
            config.setdefault(name, []).append(value)
        elif each.setting.form is Form.PAIR:
            config.setdefault(name, {}).update(value)
        else:
            config[name] = value
    return config


def _setting(name: str, part: _Schema, known: _Schema, *, is_needed: bool) -> Setting:
    plain, extra = _plain(part, known), cast(_Schema, part.get("cli", {}))
    is_list = plain.get("type") == "array"
    item = _plain(plain.get("items", {}), known) if is_list else plain
    form = Form.FILE if extra.get("file") else _form(item, part)
    many = (is_list or form is Form.PAIR) and name.endswith("s")
    inside = {key: _plain(each, known) for key, each in item.get("properties", {}).items()}
    return Setting(
        name=name,
        option="--" + str(extra.get("option", name[:-1] if many else name)).replace("_", "-"),
        form=form,
        about=str(part.get("description", "")),
        is_list=is_list,
        is_needed=is_needed,
        default=part.get("default"),
        choices=tuple(str(each) for each in item.get("enum", ())),
        secrets=tuple(key for key, each in inside.items() if _is_secret(each)),
    )


def _plain(part: _Schema, known: _Schema) -> _Schema:
    """Return what is meant where a schema names another one, or allows null, too."""
    if "$ref" in part:
        return _plain(known.get(str(part["$ref"]).rpartition("/")[2], {}), known) | {
            key: value for key, value in part.items() if key != "$ref"
        }
    choices = [_plain(each, known) for each in part.get("anyOf", part.get("allOf", ()))]
    choices = [each for each in choices if each.get("type") != "null"]
    if not choices:
        return part
    # of several, a text can be written as it is; the server makes the best of it
    texts = [each for each in choices if each.get("type") == "string"]
    return (texts or choices)[0]


def _form(item: _Schema, part: _Schema) -> Form:
    if part.get("unit") == "bytes" or item.get("unit") == "bytes":
        return Form.BYTES
    if _is_secret(item):
        return Form.SECRET
    if item.get("format") in ("path", "file-path", "directory-path"):
        return Form.PATH
    if item.get("type") == "object":
        return Form.JSON if "properties" in item else Form.PAIR
    forms = {"boolean": Form.FLAG, "integer": Form.WHOLE, "number": Form.NUMBER}
    return forms.get(str(item.get("type")), Form.TEXT)


def _is_secret(item: _Schema) -> bool:
    return item.get("format") == "password" or bool(item.get("writeOnly"))


def _value(given: Given) -> Any:
    setting, option, text = given.setting, given.option, given.value or ""
    if setting.form is Form.FLAG:
        return option == setting.option
    if setting.form is Form.SECRET:
        return _asked(option) if option == setting.option else _from_stdin(option)
    if setting.form is Form.JSON:
        return _json(setting, text)
    if setting.form in _READERS:
        return _READERS[setting.form](option, text)
    return _chosen(setting, text)


def _chosen(setting: Setting, text: str) -> str:
    if setting.choices and text not in setting.choices:
        raise Invalid(f"{setting.option}: {text!r} is not one of {', '.join(setting.choices)}")
    return text


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{option}: {text[:80]!r} is not a whole number") from None


def _number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Invalid(f"{option}: {text[:80]!r} is not a number")
    return number


def _bytes(option: str, text: str) -> int:
    return parse_memory(text, field=option)


def _pair(option: str, text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Invalid(f"{option} {text[:80]!r} is not K=V")
    return {name: value}


def _json(setting: Setting, text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return text  # a short form, where the kind has one
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{setting.option}: this is not JSON: {error}") from None
    for name in setting.secrets:
        if value.get(name) is not None:
            raise Invalid(
                f"{setting.option}: others could read its {name} here; give it from Python, "
                "with workspace.targets.attach"
            )
    return value


def _asked(option: str) -> str:
    if not sys.stdin.isatty():
        raise Invalid(f"{option} asks for it on a terminal; from elsewhere use {option}-stdin")
    from getpass import getpass

    try:
        given = getpass(f"{option[2:]}: ")
    except EOFError:
        given = ""
    if not given:
        raise Invalid(f"{option}: nothing was given")
    return given


def _from_stdin(option: str) -> str:
    plain = option.removesuffix("-stdin")
    if sys.stdin.isatty():
        raise Invalid(f"{option} reads what is piped to it; on a terminal use {plain}")
    try:
        given = sys.stdin.read(_LARGEST).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Invalid(f"{option}: what came is not text") from None
    if not given:
        raise Invalid(f"{option}: nothing came")
    return given


def _text_of(option: str, path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name, or not text
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise Invalid(f"{option}: cannot read {path}: {why}") from None
    if len(text) > _LARGEST:
        raise Invalid(f"{option}: {path} is too large")
    if not text.strip():
        raise Invalid(f"{option}: {path} is empty")
    if text.startswith(_PUBLIC):
        private = path.removesuffix(".pub")
        hint = f", perhaps {private}" if private != path else ""
        raise Invalid(f"{option}: {path} is a public key; name the private one{hint}")
    return text


_READERS: dict[Form, Callable[[str, str], Any]] = {
    Form.FILE: _text_of,
    Form.BYTES: _bytes,
    Form.WHOLE: _whole,
    Form.NUMBER: _number,
    Form.PAIR: _pair,
}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, cast(list[Any], value))) if isinstance(value, list) else str(value)
