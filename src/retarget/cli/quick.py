"""Typer in our way: no pydantic for option values (90 ms a command), no Python types in help."""

from collections.abc import Callable
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption

_WORDS = {int: "a whole number", float: "a number"}


def make_quick() -> None:
    """Have Typer read texts, numbers and flags in our way, for this whole process.

    A Typer that does not choose its readers in the way known here keeps its own.
    """
    for kind in (TyperOption, TyperArgument):
        choose = getattr(kind, "get_runtime_param", None)
        if choose is not None:
            setattr(kind, "get_runtime_param", _chooser(choose))  # noqa: B010  it has no such type
    for method, ours in (("_usage_display_name", _in_usage), ("display_type_rich", _no_type)):
        if hasattr(TyperArgument, method):
            setattr(TyperArgument, method, ours)


def _in_usage(argument: Any) -> str:
    """Write NAME or [NAME], where some Typers write {NAME}."""
    return argument.metavar if argument.required else f"[{argument.metavar}]"


def _no_type(argument: Any, ctx: Any) -> None:
    """Leave Python's name of a type out of the help."""


def _chooser(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def chosen(param: Any) -> Any:
        read = _reader(param.type_descriptor.annotation)
        return choose(param) if read is None else _Reader(read)

    return chosen


class _Reader:
    """Stands where Typer would have put its own."""

    def __init__(self, read: Callable[[Any, Any, Any], Any]) -> None:
        self._read = read

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        return self._read(value, param, ctx)


def _reader(annotation: Any) -> Callable[[Any, Any, Any], Any] | None:
    if annotation is str or annotation is bool:  # a flag is True or False already
        return lambda value, param, ctx: value
    if annotation is int or annotation is float:
        return lambda value, param, ctx: _number(annotation, value, param, ctx)
    if get_origin(annotation) is list and get_args(annotation) == (str,):
        return lambda value, param, ctx: list(value)
    return None


def _number(kind: Any, text: Any, param: Any, ctx: Any) -> Any:
    try:
        number = kind(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not {_WORDS[kind]}.", ctx=ctx, param=param) from None
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if (least is not None and number < least) or (most is not None and number > most):
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise typer.BadParameter(f"{text} is not {limit}.", ctx=ctx, param=param)
    return number
