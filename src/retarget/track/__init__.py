"""Metrics, params, tags and files of the job this runs in: `from retarget import track`.

Nothing here talks to a server. A call returns when the operating system has what was logged: from
then on it arrives, whatever is killed. Outside of a job it goes to files in `retarget-track`.
"""

from __future__ import annotations

import time

from retarget.track.checks import check_name, number, pairs, whole, words
from retarget.track.place import Place

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from typing import Any, Union

    AnyPath = Union[str, os.PathLike[str]]

__all__ = ["artifact", "artifacts", "flush", "image", "log", "param", "table", "tag"]

_MOST = 1000  # metrics in one line
_place = Place()
_last: dict[str, int] = {}  # the step each metric had last


def log(given: Any = None, /, *value: Any, step: Any = None, **more: Any) -> None:
    """Log a point of each metric: `log(loss=0.1, step=3)`, or `log({"val/loss": 0.1}, step=3)`.

    Of one alone also `log("val/loss", 0.1, step=3)`. A value is anything `float` takes. Without
    `step` each metric counts for itself: 0, 1, 2, …
    """
    named = {**_one_or_many("log", given, value), **more}
    texts = {check_name(name): number(name, point) for name, point in named.items()}
    at = None if step is None else whole("step", step)
    with _place.lock:
        _place.write("".join(_lines(texts, at, int(time.time() * 1000))))


def param(given: Any = None, /, *value: Any, **more: Any) -> None:
    """Set params: `param(lr=0.1)`, `param("lr", 0.1)` or `param({"opt/lr": 0.1})`.

    A param is set once. A later value that is another is refused, with a line in the job's log.
    """
    _write_words("param", "p", _one_or_many("param", given, value), more)


def tag(given: Any = None, /, *value: Any, **more: Any) -> None:
    """Set tags: `tag(stage="dev")`, `tag("stage", "dev")` or `tag({"my/stage": "dev"})`.

    The last value of a tag stays.
    """
    _write_words("tag", "g", _one_or_many("tag", given, value), more)


def artifact(path: AnyPath, name: str | None = None) -> None:
    """Keep a file as it is now, as the artifact `name`, which may have folders in it."""
    from retarget.track.files import keep_file

    keep_file(_place, path, name)


def artifacts(folder: AnyPath, name: str | None = None) -> None:
    """Keep all files below a folder, in the artifact folder `name` ("" is the top)."""
    from retarget.track.files import keep_folder

    keep_folder(_place, folder, name)


def image(name: str, image: Any, step: Any = None) -> None:
    """Keep an image: a path, the bytes of a file, a PIL image, a matplotlib figure or an array.

    An array is H x W or H x W x 1 to 4, of bytes or of floats from 0 to 1. It becomes the artifact
    `images/NAME.png`, or `images/NAME/STEP.png`.
    """
    from retarget.track.images import keep_image

    keep_image(_place, check_name(name), image, None if step is None else whole("step", step))


def table(name: str, rows: Any) -> None:
    """Keep a table: a list of dicts, a dict of columns, or a data frame.

    It becomes the artifact `NAME.json`, which `mlflow.load_table` reads.
    """
    from retarget.track.tables import keep_table

    keep_table(_place, name, rows)


def flush() -> None:
    """Wait until all is on the disk. Only the loss of the machine itself makes a difference."""
    _place.sync()


def _lines(texts: Mapping[str, str], step: int | None, now: int) -> Iterator[str]:
    """Yield lines of metrics that have a step in common."""
    by_step: dict[int, list[str]] = {}
    for name, text in texts.items():
        at = _last[name] = _last.get(name, -1) + 1 if step is None else step
        by_step.setdefault(at, []).append(f'"{name}":{text}')
    for at, points in by_step.items():
        for first in range(0, len(points), _MOST):
            some = ",".join(points[first : first + _MOST])
            yield f'{{"m":{{{some}}},"s":{at},"t":{now}}}\n'


def _one_or_many(call: str, given: Any, value: tuple[Any, ...]) -> Mapping[str, Any]:
    if len(value) == 0:
        return pairs(call, given)
    if len(value) == 1 and isinstance(given, str):
        return {given: value[0]}
    raise TypeError(f"track.{call}: give a name and a value, a dict, or name=value")


def _write_words(call: str, kind: str, given: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    import json

    named = {check_name(name): value for name, value in {**given, **more}.items()}
    texts = {name: words(call, name, value) for name, value in named.items()}
    _place.write("".join(f"{json.dumps({kind: {name: text}})}\n" for name, text in texts.items()))
