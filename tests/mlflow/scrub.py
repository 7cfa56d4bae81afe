"""Replaces values that differ from server to server, for the scripts that MLflow's clients run."""

import json
import math
import re
from typing import Any

_TIME = re.compile(r"\b\d{13}\b")
_LONG = re.compile(r"(.)\1{60,}")
_SET = re.compile(r"'\{'[^{}]*'\}'?")  # the valid values in a message; MLflow lists synonyms, too
_CAUSE = re.compile(r"(already exists\.) Error: \(.*", re.DOTALL)  # the message of the database
_NUMBER = r"(?<=id=){0}\b|(?<=experiment ){0}\b|(?<=/){0}(?=/)"


class Scrubber:
    """Prints values as a line of JSON, with ids and times replaced by placeholders."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names: dict[str, str] = {}
        for value, placeholder in names.items():
            self.name(value, placeholder)

    def name(self, value: str, placeholder: str) -> str:
        pattern = _NUMBER.format(value) if value.isdigit() else re.escape(value)
        self._names[pattern] = f"<{placeholder}>"
        return value

    def show(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.show(str(key)): self.show(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(value, list | tuple):
            return [self.show(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, float):
            return str(value) if not math.isfinite(value) else round(value, 9)
        return self._text(value) if isinstance(value, str) else value

    def print(self, values: dict[str, Any]) -> None:
        print("\n" + json.dumps(self.show(values), sort_keys=True))

    def _text(self, text: str) -> str:
        # the longest first: a value may contain another
        for pattern in sorted(self._names, key=len, reverse=True):
            text = re.sub(pattern, self._names[pattern], text)
        text = _SET.sub("<a set>", text)
        text = _LONG.sub(lambda match: f"{match[1]} {len(match[0])} times", text)
        return _CAUSE.sub(r"\1", _TIME.sub("<time>", text))
