"""Which values of a metric are the best: the smallest of a loss, an error or a time."""

import math
import re
from collections.abc import Sequence
from typing import Any

_LESS_IS_BETTER = re.compile(
    r"loss|err|mse|mae|mape|rmse|perplex|ppl|nll|entropy|time|latency|seconds|duration|wer|fid",
    re.I,
)
_METRIC = re.compile(r"metrics?\.(.+)")
_DIRECTION = re.compile(r"\s(asc|desc)$", re.I)


def less_is_better(key: str) -> bool:
    """Return whether the name of a metric suggests that smaller values are better."""
    return bool(_LESS_IS_BETTER.search(key))


def best(key: str, values: Sequence[Any]) -> set[int]:
    """Return the indexes of the best values; none if all values are equal."""
    numbers = {
        index: value
        for index, value in enumerate(values)
        if value is not None and not math.isnan(value)
    }
    if len(numbers) < 2 or len(set(numbers.values())) == 1:
        return set()
    top = min(numbers.values()) if less_is_better(key) else max(numbers.values())
    return {index for index, value in numbers.items() if value == top}


def best_first(sort: str) -> str | None:
    """Return the order that puts the best values of a metric first; None if `sort` is not a metric.

    An order that states its direction is returned unchanged.
    """
    match = _METRIC.fullmatch(sort.strip())
    if match is None or _DIRECTION.search(sort.strip()):
        return None
    return sort.strip() if less_is_better(match[1]) else f"-{sort.strip()}"
