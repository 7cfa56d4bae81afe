"""Patches Typer: no pydantic for option values (90 ms per command), how help looks."""

import sys
from collections.abc import Callable
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption

from retarget.cli.terminal import styled

_NOUNS = {int: "an integer", float: "a number"}
_Read = Callable[[Any, Any, Any], Any]


def patch_typer() -> None:
    """Replace how Typer reads strings, numbers and flags and writes help, for this whole process.

    A version of Typer without the patched methods keeps its own.
    """
    for kind in (TyperOption, TyperArgument):
        choose = getattr(kind, "get_runtime_param", None)
        if choose is not None:
            setattr(kind, "get_runtime_param", _patched(choose))  # noqa: B010  untyped in Typer
    replacements = (("_usage_display_name", _usage_name), ("display_type_rich", _no_type))
    for method, replacement in replacements:
        if hasattr(TyperArgument, method):
            setattr(TyperArgument, method, replacement)
    formatter = getattr(typer.Context, "formatter_class", None)
    if hasattr(formatter, "write_heading"):
        setattr(formatter, "write_heading", _write_heading)  # noqa: B010  untyped in Typer


def _usage_name(argument: Any) -> str:
    """Return NAME or [NAME], where some versions of Typer write {NAME}."""
    return argument.metavar if argument.required else f"[{argument.metavar}]"


def _write_heading(formatter: Any, heading: str) -> None:
    """Write a heading of the help, bold on a terminal."""
    indent = " " * formatter.current_indent
    formatter.write(f"{indent}{styled(f'{heading}:', 'bold', to=sys.stdout)}\n")


def _no_type(argument: Any, ctx: Any) -> None:
    """Exclude the Python type from the help."""


def _patched(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def choose_reader(param: Any) -> Any:
        read = _reader(param.type_descriptor.annotation)
        return choose(param) if read is None else _Reader(read)

    return choose_reader


class _Reader:
    """Replaces Typer's own reader of one parameter."""

    def __init__(self, read: _Read) -> None:
        self._read = read

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        return self._read(value, param, ctx)


def _reader(annotation: Any) -> _Read | None:
    if annotation is str or annotation is bool:  # click has made a flag True or False already
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
        raise typer.BadParameter(f"{text!r} is not {_NOUNS[kind]}.", ctx=ctx, param=param) from None
    low, high = getattr(param, "min", None), getattr(param, "max", None)
    if (low is not None and number < low) or (high is not None and number > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise typer.BadParameter(f"{text} is not {limit}.", ctx=ctx, param=param)
    return number
