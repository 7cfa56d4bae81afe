"""Logs metrics, params, tags and files of the current job: `from retarget import track`.

Nothing here connects to a server. When a call returns, the operating system has the data, and it
reaches the server whatever is killed then. Outside of a job, data goes to files in
`retarget-track`.
"""

from __future__ import annotations

import time

from retarget.track.checks import as_integer, as_json_number, as_mapping, as_text, check_name
from retarget.track.writer import Writer

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from typing import Any, Union

    AnyPath = Union[str, os.PathLike[str]]

__all__ = ["artifact", "artifacts", "flush", "image", "log", "param", "table", "tag"]

_MAX_METRICS_PER_LINE = 1000
_writer = Writer()
_last_steps: dict[str, int] = {}  # by metric


def log(metrics: Any = None, /, *value: Any, step: Any = None, **more: Any) -> None:
    """Log a value of each metric: `log(loss=0.1, step=3)`, or `log({"val/loss": 0.1}, step=3)`.

    A single metric can also be `log("val/loss", 0.1, step=3)`. A value is anything that `float`
    accepts. Without `step`, every metric counts its own steps: 0, 1, 2, …
    """
    named = {**_one_or_many("log", metrics, value), **more}
    numbers = {check_name(name): as_json_number(name, number) for name, number in named.items()}
    checked_step = None if step is None else as_integer("step", step)
    with _writer.lock:
        _writer.write("".join(_lines(numbers, checked_step, int(time.time() * 1000))))


def param(params: Any = None, /, *value: Any, **more: Any) -> None:
    """Set params: `param(lr=0.1)`, `param("lr", 0.1)` or `param({"opt/lr": 0.1})`.

    A param is set once. A later, different value is refused, with a line in the job's log.
    """
    _write_texts("param", "p", _one_or_many("param", params, value), more)


def tag(tags: Any = None, /, *value: Any, **more: Any) -> None:
    """Set tags: `tag(stage="dev")`, `tag("stage", "dev")` or `tag({"my/stage": "dev"})`.

    A tag keeps its last value.
    """
    _write_texts("tag", "g", _one_or_many("tag", tags, value), more)


def artifact(path: AnyPath, name: str | None = None) -> None:
    """Log a file in its present state as the artifact `name`, which may contain folders."""
    from retarget.track.files import keep_file

    keep_file(_writer, path, name)


def artifacts(folder: AnyPath, name: str | None = None) -> None:
    """Log all files below a folder, in the artifact folder `name` ("" is the top)."""
    from retarget.track.files import keep_folder

    keep_folder(_writer, folder, name)


def image(name: str, image: Any, step: Any = None) -> None:
    """Log an image: a path, the bytes of a file, a PIL image, a matplotlib figure or an array.

    An array is H x W or H x W x 1 to 4, of bytes or of floats from 0 to 1. The image becomes the
    artifact `images/NAME.png`, or `images/NAME/STEP.png`.
    """
    from retarget.track.images import keep_image

    checked_step = None if step is None else as_integer("step", step)
    keep_image(_writer, check_name(name), image, checked_step)


def table(name: str, rows: Any) -> None:
    """Log a table: a list of dicts, a dict of columns, or a data frame.

    It becomes the artifact `NAME.json`, which `mlflow.load_table` reads.
    """
    from retarget.track.tables import keep_table

    keep_table(_writer, name, rows)


def flush() -> None:
    """Wait until everything is on disk. This only matters if the machine itself is lost."""
    _writer.sync()


def __dir__() -> list[str]:
    return list(__all__)


def _lines(numbers: Mapping[str, str], step: int | None, now: int) -> Iterator[str]:
    """Yield lines of metrics that have the same step."""
    by_step: dict[int, list[str]] = {}
    for name, number in numbers.items():
        metric_step = _last_steps.get(name, -1) + 1 if step is None else step
        _last_steps[name] = metric_step
        by_step.setdefault(metric_step, []).append(f'"{name}":{number}')
    for metric_step, points in by_step.items():
        for first in range(0, len(points), _MAX_METRICS_PER_LINE):
            fields = ",".join(points[first : first + _MAX_METRICS_PER_LINE])
            yield f'{{"m":{{{fields}}},"s":{metric_step},"t":{now}}}\n'


def _one_or_many(call: str, first: Any, value: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return the values by name; `first` is a mapping of them, or a name with its `value`."""
    if len(value) == 0:
        return as_mapping(call, first)
    if len(value) == 1 and isinstance(first, str):
        return {first: value[0]}
    raise TypeError(f"track.{call}: pass a name and a value, a dict, or name=value")


def _write_texts(call: str, kind: str, values: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    import json

    named = {check_name(name): value for name, value in {**values, **more}.items()}
    texts = {name: as_text(call, name, value) for name, value in named.items()}
    _writer.write("".join(f"{json.dumps({kind: {name: text}})}\n" for name, text in texts.items()))
