"""Validates the settings of a target against its kind.

No message repeats a value: it may be a secret, or a secret in the wrong field.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from pydantic import BaseModel, SecretStr, ValidationError

from retarget import drivers
from retarget.core.errors import Invalid

_MESSAGES = {
    "missing": "is required",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
_MAX_NAME_LENGTH = 60  # of a name in a message


def validate_settings(kind: str, settings: Mapping[str, Any]) -> BaseModel:
    """Return the settings with all defaults. Raise Invalid that names the field to fix."""
    config = drivers.load(kind).Config
    _check_numbers(settings, "config")
    if config.model_config.get("extra") != "allow":
        _check_known(settings, config)
    try:
        parsed = config.model_validate(settings)
        _check_numbers(parsed.model_dump(), "config")  # "inf" is a string until it is parsed
        _check_strings(parsed.model_dump(), "config")
        return parsed
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    field = ".".join(["config", *_path(first["loc"], config)])
    raise Invalid(f"{field}: {_message(first, config)}", field=field)


def known_settings(kind: str) -> set[str]:
    """Return the names of the settings of this kind of target."""
    return set(drivers.load(kind).Config.model_fields)


def _check_numbers(settings: Any, field: str) -> None:
    """Raise Invalid for a number that JSON cannot represent: settings are shown as JSON."""
    for path, value in _walk(settings, field):
        if isinstance(value, float) and not math.isfinite(value):
            raise Invalid(f"{path}: must be a finite number", field=path)


def _check_strings(settings: Any, field: str) -> None:
    for path, value in _walk(settings, field):
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if isinstance(text, str) and not _is_text(text):
            raise Invalid(f"{path}: contains characters that are not text", field=path)


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield all nested values and names, each with its path."""
    yield path, value
    if isinstance(value, Mapping):
        for name, item in cast(Mapping[str, Any], value).items():
            yield path, name
            yield from _walk(item, f"{path}.{_short(name)}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            yield from _walk(item, f"{path}.{index}")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _check_known(names: Iterable[str], config: type[BaseModel]) -> None:
    known = {field.alias or name for name, field in config.model_fields.items()}
    known |= set(config.model_fields)
    for name in names:
        if name not in known:
            field = f"config.{_short(name)}"
            raise Invalid(f"{field}: {_unknown(name, known)}", field=field)


def _unknown(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown setting; {hint}known settings: {', '.join(sorted(known)) or 'none'}"


def _path(location: Iterable[int | str], config: type[BaseModel]) -> list[str]:
    """Return the path of an error, without pydantic's names for the branches of a union."""
    names = set(re.findall(r'"(\w+)":', json.dumps(config.model_json_schema())))
    return [str(part) for part in location if isinstance(part, int) or part in names]


def _message(fault: Mapping[str, Any], config: type[BaseModel]) -> str:
    kind, message = str(fault["type"]), str(fault["msg"])
    if kind == "missing":
        field = config.model_fields.get(str(fault["loc"][0])) if len(fault["loc"]) == 1 else None
        description = field.description if field is not None else None
        return f"is required ({description})" if description else "is required"
    if kind == "extra_forbidden":
        return f"unknown setting: {_short(str(fault['loc'][-1]))}"
    if kind in _MESSAGES:
        return _MESSAGES[kind]
    return message.removeprefix("Value error, ").replace("Input should", "must")


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[:_MAX_NAME_LENGTH]}…"
