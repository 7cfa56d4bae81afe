"""Writes tables in the format of MLflow's clients."""

from __future__ import annotations

import json
import math

from retarget.track.files import artifact_name
from retarget.track.writer import Writer

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any


def keep_table(writer: Writer, name: str, rows: Any) -> None:
    artifact = artifact_name(name)
    if not artifact.endswith(".json"):
        artifact += ".json"
    content = _to_json(split(rows))

    def fill(part: str) -> None:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(content, file, allow_nan=False)

    writer.keep(artifact, fill)
    writer.write(json.dumps({"a": {"path": artifact, "type": "table"}}) + "\n")


def split(rows: Any) -> dict[str, list[Any]]:
    """Return the columns and the rows of a table in any of its forms."""
    if hasattr(rows, "to_dict"):
        rows = _from_frame(rows)
    if hasattr(rows, "keys"):
        return _from_columns({str(name): list(column) for name, column in rows.items()})
    rows = list(rows) if hasattr(rows, "__iter__") else [rows]
    if not all(hasattr(row, "keys") for row in rows):
        raise TypeError("rows: pass a list of dicts, a dict of columns, or a data frame")
    names = list(dict.fromkeys(name for row in rows for name in row))
    data = [[row.get(name) for name in names] for row in rows]
    return {"columns": [str(name) for name in names], "data": data}


def _from_frame(frame: Any) -> Any:
    try:
        return frame.to_dict("list")
    except TypeError:  # not pandas: only its to_dict takes an orientation
        return frame.to_dict()


def _from_columns(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"rows: the columns differ in length: {lengths}")
    return {"columns": list(columns), "data": [list(row) for row in zip(*columns.values())]}


def _to_json(value: Any) -> Any:
    """Return a value that JSON has. NaN and infinity become None."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "keys"):
        return {str(key): _to_json(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return _to_json(value.tolist())
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value) in (list, tuple):
        return [_to_json(item) for item in value]
    return str(value)
