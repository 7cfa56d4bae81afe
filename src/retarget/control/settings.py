"""The settings of a target as its kind understands them, or the sentence that says what is wrong.

No sentence repeats what was given: it may be a secret, or one in the wrong place.
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

_WORDS = {
    "missing": "is needed",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
_SHOWN = 60


def validated(kind: str, given: Mapping[str, Any]) -> BaseModel:
    """Return the settings with every default filled in; Invalid names the field to mend."""
    config = drivers.load(kind).Config
    _check_numbers(given, "config")
    if config.model_config.get("extra") != "allow":
        _check_known(given, config)
    try:
        found = config.model_validate(given)
        _check_numbers(found.model_dump(), "config")  # "inf" is text until it is read
        _check_texts(found.model_dump(), "config")
        return found
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    field = ".".join(["config", *_path(first["loc"], config)])
    raise Invalid(f"{field}: {_sentence(first, config)}", field=field)


def known_settings(kind: str) -> set[str]:
    """Name the settings that a target of this kind has."""
    return set(drivers.load(kind).Config.model_fields)


def _check_numbers(given: Any, field: str) -> None:
    """Raise Invalid for a number that JSON cannot hold: what is kept is shown again."""
    for where, each in _each(given, field):
        if isinstance(each, float) and not math.isfinite(each):
            raise Invalid(f"{where}: must be a finite number", field=where)


def _check_texts(given: Any, field: str) -> None:
    for where, each in _each(given, field):
        text = each.get_secret_value() if isinstance(each, SecretStr) else each
        if isinstance(text, str) and not _is_text(text):
            raise Invalid(f"{where}: has characters that are no text", field=where)


def _each(given: Any, field: str) -> Iterator[tuple[str, Any]]:
    """Go through all that a value has in it, names too, each with where it is."""
    yield field, given
    if isinstance(given, Mapping):
        for name, each in cast(Mapping[str, Any], given).items():
            yield field, name
            yield from _each(each, f"{field}.{_short(name)}")
    elif isinstance(given, list | tuple):
        for index, each in enumerate(cast("Sequence[Any]", given)):
            yield from _each(each, f"{field}.{index}")


def _is_text(given: str) -> bool:
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in given


def _check_known(given: Iterable[str], config: type[BaseModel]) -> None:
    known = {field.alias or name for name, field in config.model_fields.items()}
    known |= set(config.model_fields)
    for name in given:
        if name not in known:
            field = f"config.{_short(name)}"
            raise Invalid(f"{field}: {_unknown(name, known)}", field=field)


def _unknown(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known, 1)
    there = ", ".join(sorted(known)) or "none"
    meant = f"; did you mean {close[0]}?" if close else ";"
    return f"there is no such setting{meant} there are: {there}"


def _path(place: Iterable[int | str], config: type[BaseModel]) -> list[str]:
    """Return where the fault is, without what pydantic calls the branches of a union."""
    names = set(re.findall(r'"(\w+)":', json.dumps(config.model_json_schema())))
    return [str(part) for part in place if isinstance(part, int) or part in names]


def _sentence(fault: Mapping[str, Any], config: type[BaseModel]) -> str:
    kind, said = str(fault["type"]), str(fault["msg"])
    if kind == "missing":
        field = config.model_fields.get(str(fault["loc"][0])) if len(fault["loc"]) == 1 else None
        about = field.description if field is not None else None
        return f"is needed ({about})" if about else "is needed"
    if kind == "extra_forbidden":
        return f"there is no such setting: {_short(str(fault['loc'][-1]))}"
    if kind in _WORDS:
        return _WORDS[kind]
    return said.removeprefix("Value error, ").replace("Input should", "must")


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
