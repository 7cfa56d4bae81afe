"""Environment variables of a script, read from `--env` and `--env-file`."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from retarget.core.errors import Invalid
from retarget.core.variables import MIN_SECRET_BYTES, looks_secret

_MAX_BYTES = 1_000_000
_NAME = re.compile(r"[^\s='\"#]+")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SINGLE_QUOTED = re.compile(r"'([^']*)'")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}  # any other character stands for itself


def read_variables(options: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Return the variables of all `files`, then of all `options`; the last value of a name wins."""
    variables: dict[str, str] = {}
    for path in files:
        variables |= read_env_file(path)
    return variables | dict(_read_option(text) for text in options)


def describe_secrets(variables: Mapping[str, str]) -> str:
    """Return a line about the variables that the server handles as secrets; empty without any."""
    names = [name for name, value in variables.items() if value and looks_secret(name)]
    if not names:
        return ""
    short = [name for name in names if len(os.fsencode(variables[name])) < MIN_SECRET_BYTES]
    handled = f"handled as {'a secret' if len(names) == 1 else 'secrets'} of this job"
    unmasked = f"; too short to be masked: {', '.join(short)}" if short else ""
    return (
        f"{', '.join(names)}: {handled}, encrypted and masked in logs{unmasked}; "
        f"to store it for all jobs: retarget secret set {names[0]}"
    )


def read_env_file(path: str) -> dict[str, str]:
    """Read lines `K=V`; blank lines, comments, quotes and a leading `export` are allowed."""
    try:
        with open(os.path.expanduser(path), "rb") as file:  # it may be a pipe
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise Invalid(f"--env-file: {path} has more than {_MAX_BYTES:,} bytes")
        lines = re.split("\r\n|\r|\n", content.decode("utf-8-sig"))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or not UTF-8
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise Invalid(f"--env-file: cannot read {path}: {why}") from None
    return _read_lines(path, lines)


def _read_lines(path: str, lines: Iterable[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    errors: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            variables.update(_read_line(line))
        except ValueError as error:
            errors.append(f"line {number}: {error}")
    if errors:
        raise Invalid(f"--env-file: {path} {'; '.join(errors)}")
    return variables


def _read_line(line: str) -> dict[str, str]:
    text = line.strip()
    if not text or text.startswith("#"):
        return {}
    name, equals, value = re.sub(r"^export\s+", "", text).partition("=")
    if not equals:
        raise ValueError("not K=V")  # without the text: it may be a part of a secret
    if not _NAME.fullmatch(name.rstrip()):
        raise ValueError(f"{name[:80]!r} is not the name of a variable")
    return {name.rstrip(): _unquoted(value.strip())}


def _unquoted(value: str) -> str:
    if value[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s)#", value, maxsplit=1)[0].rstrip()
    is_double = value.startswith('"')
    match = (_DOUBLE_QUOTED if is_double else _SINGLE_QUOTED).match(value)
    if match is None:
        raise ValueError("the quote is not closed")
    rest = value[match.end() :].strip()
    if rest and not rest.startswith("#"):
        raise ValueError("only a comment may follow the closing quote")
    if not is_double:
        return match[1]
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[1])


def _read_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals and name:
        return name, value
    if equals or not _NAME.fullmatch(name):
        raise Invalid(f"--env {text[:80]!r} is not K=V, or K to take it from this shell")
    if name in os.environ:
        return name, os.environ[name]
    if os.path.isfile(name) or name.endswith((".yml", ".yaml", ".txt", ".toml")):
        raise Invalid(f"--env sets a variable; for the environment use --environment {name}")
    raise Invalid(f"--env {name}: {name} is not set in this shell; write --env {name}=VALUE")
