"""Reads and changes config.toml, the settings of a home. Comments and order stay."""

import fcntl
import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tomllib import TOMLDecodeError, loads

from retarget.core.config import Plain, SettingValue, parse_config, resolve
from retarget.core.errors import Invalid
from retarget.core.home import Home
from retarget.sdk.toml_files import read_settings_file

_HEADER = "# Settings of this home; `retarget config list` shows them all.\n"


def read_config(home: Home) -> dict[str, Plain]:
    """Return the settings in the file; empty if there is no file."""
    return parse_config(read_settings_file(home.config) or b"", str(home.config))


def resolve_config(home: Home, environ: Mapping[str, str]) -> dict[str, SettingValue]:
    """Return every setting, its value, and where the value comes from."""
    return resolve(read_config(home), environ, str(home.config))


def change_config(home: Home, name: str, value: Plain | None) -> None:
    """Set a setting in the file, or remove it with None. Concurrent changes all arrive."""
    with _locked(home):
        content = read_settings_file(home.config) or b""
        before = parse_config(content, str(home.config))
        after = {key: old for key, old in before.items() if key != name}
        if value is not None:
            after[name] = value
        text = edit(content.decode() or _HEADER, name, value)
        if _parsed(text) != after:  # a layout that line by line editing does not understand
            raise Invalid(f"{home.config} cannot be changed safely; edit {name!r} in it yourself")
        _replace(home.config, text)


def edit(text: str, name: str, value: Plain | None) -> str:
    """Return the TOML text with this top-level key set, or without it if the value is None."""
    key = re.compile(rf"""\s*(?:{name}|"{name}"|'{name}')\s*=""")
    lines = text.splitlines(keepends=True)
    index = next((number for number, line in enumerate(lines) if key.match(line)), None)
    if value is None:
        return "".join(line for number, line in enumerate(lines) if number != index)
    if index is not None:
        lines[index] = f"{name} = {_format(value)}{_comment(lines[index])}\n"
        return "".join(lines)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join([*lines, f"{name} = {_format(value)}\n"])


def _format(value: Plain) -> str:
    # the escapes of JSON strings are TOML's too; JSON does not escape DEL, TOML forbids it
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(line: str) -> str:
    """Return the comment at the end of a line with a key, with the spaces before it."""
    for mark in re.finditer(r"\s*#", line):
        if _parsed(line[: mark.start()]) is not None:  # else the mark is part of a string
            return line[mark.start() :].rstrip("\n")
    return ""


def _parsed(text: str) -> dict[str, object] | None:
    try:
        return loads(text)
    except TOMLDecodeError:
        return None


@contextmanager
def _locked(home: Home) -> Generator[None]:
    try:
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(home.config_lock, flags, 0o600)
    except OSError as error:
        raise Invalid(f"cannot use {home.root}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Replace the file as a whole, readable by its owner only: it may hold a password."""
    target = Path(os.path.realpath(path))  # a link to a file elsewhere stays a link
    part = target.with_suffix(".part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        part.rename(target)
    except OSError as error:
        raise Invalid(f"cannot write {target}: {error.strerror}") from None
