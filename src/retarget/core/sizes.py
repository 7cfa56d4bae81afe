"""Sizes of nodes: a catalogue of names, and what a node of each size has."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Amount, Count, Memory
from retarget.core.names import check_name
from retarget.core.targets import NodeType
from retarget.core.toml import parse_toml
from retarget.core.values import Value

_MIN_BYTES = 2**20  # less is a typing error: `28` for `28g`
_MAX_GPUS = 1024
_SIMILAR_SIZES = 3  # how many an error about an unknown name shows
_MAX_SHOWN_CHARACTERS = 70  # of an unknown name
_PYDANTIC_MESSAGES = {"missing": "is required", "extra_forbidden": "is not a field of a size"}


def _check_bytes(value: int) -> int:
    if value < _MIN_BYTES:
        raise ValueError(f"{value} bytes are less than 1 MiB; write 512m or 28g")
    return value


Bytes = Annotated[Memory, AfterValidator(_check_bytes)]
Label = Annotated[str, StringConstraints(max_length=100)]
Switch = Annotated[bool, Field(strict=True)]


class Size(Value):
    """What a node of one size has."""

    name: str
    series: Label = ""  # sizes that differ only in how much they have
    cpus: Annotated[Amount, Field(gt=0)]
    memory: Bytes
    gpus: Annotated[Count, Field(ge=0, le=_MAX_GPUS)] = 0  # how many
    gpu_model: Label = ""
    gpu_memory: Bytes | None = None  # of each GPU
    isolated: Switch = False  # a node of this size has a host of its own
    restricted: Switch = False  # its provider gives it only on approval


class Catalogue:
    """Sizes by name. Upper and lower case are the same; of two with one name, the later counts."""

    def __init__(self, sizes: Iterable[Size]) -> None:
        self._sizes = {size.name.casefold(): size for size in sizes}

    def find(self, name: str) -> Size:
        """Return the size with this name, or raise NotFound with similar names."""
        size = self._sizes.get(name.casefold())
        if size is None:
            raise NotFound(_no_size(name, self._similar(name)))
        return size

    def select(self, *, series: Sequence[str] = (), with_gpus: bool = False) -> list[Size]:
        """Return the sizes of these series, or of all, and only those with GPUs if asked.

        Raise Invalid if there is no size of a series.
        """
        chosen = {name.casefold() for name in series}
        self._check_series(series)
        return [
            size
            for size in self._sizes.values()
            if (not chosen or size.series.casefold() in chosen) and (size.gpus or not with_gpus)
        ]

    def node_type(self, name: str, *, min_nodes: int = 0, max_nodes: int) -> NodeType:
        """Return the node type of a target that has between so many nodes of this size.

        Raise NotFound for an unknown size, and Invalid for numbers that make no sense.
        """
        size = self.find(name)
        _check_numbers(min_nodes, max_nodes)
        return NodeType(
            name=size.name,
            cpus=size.cpus,
            memory=size.memory,
            gpus=size.gpus,
            gpu_name=size.gpu_model,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
        )

    def _similar(self, name: str) -> list[str]:
        keys = get_close_matches(name.casefold(), self._sizes, n=_SIMILAR_SIZES)
        return [self._sizes[key].name for key in keys]

    def _check_series(self, series: Sequence[str]) -> None:
        known = dict.fromkeys(size.series for size in self._sizes.values() if size.series)
        keys = {name.casefold() for name in known}
        for name in series:
            if name.casefold() not in keys:
                shown = name[:_MAX_SHOWN_CHARACTERS]
                raise Invalid(
                    f"series: {shown!a} has no sizes; series are {', '.join(known)}", field="series"
                )


def parse_sizes(content: bytes, path: str) -> list[Size]:
    """Return the sizes of a sizes.toml, or raise Invalid with the file, the size and the field."""
    sizes = [_parse_size(name, raw, path) for name, raw in parse_toml(content, path).items()]
    names: dict[str, str] = {}
    for size in sizes:
        other = names.setdefault(size.name.casefold(), size.name)
        if other != size.name:
            raise Invalid(f"{path}: {other} and {size.name} differ only in upper and lower case")
    return sizes


def _parse_size(name: str, raw: object, path: str) -> Size:
    if not isinstance(raw, dict):
        raise Invalid(f"{path}: {name!a} is not a size; write [{name}] and its fields below it")
    fields = cast("dict[str, Any]", raw)
    if "name" in fields:
        raise Invalid(f"{path}: {name}: the name of a size is that of its table, not a field")
    try:
        return Size(name=check_name(name), **fields)
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        field = str(first["loc"][0])
        raise Invalid(f"{path}: {name}: {field}: {_message(first)}", field=field) from None
    except Invalid as error:
        raise Invalid(f"{path}: {error}", field="name") from None


def _message(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "must")
    return _PYDANTIC_MESSAGES.get(error["type"], message)


def _check_numbers(min_nodes: int, max_nodes: int) -> None:
    if max_nodes < 1:
        raise Invalid(f"max_nodes: must be at least 1, not {max_nodes}", field="max_nodes")
    if not 0 <= min_nodes <= max_nodes:
        raise Invalid(
            f"min_nodes: must be between 0 and max_nodes ({max_nodes}), not {min_nodes}",
            field="min_nodes",
        )


def _no_size(name: str, similar: Sequence[str]) -> str:
    suggestion = f"; similar: {', '.join(similar)}" if similar else ""
    return (
        f"no size named {name[:_MAX_SHOWN_CHARACTERS]!a}{suggestion}; `retarget size list` shows "
        "all, and a file sizes.toml in RETARGET_HOME adds your own"
    )
