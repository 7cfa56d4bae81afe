"""Rewrites errors of the command-line parser like all others: one sentence that says what to do."""

import re
from collections.abc import Collection
from typing import Any

from retarget.cli.terminal import append_clause

_UNKNOWN_COMMAND = re.compile(r"No such command '(.+?)'")
_EXTRA_ARGUMENTS = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.+)\)")
# commands of other tools, and the commands of our groups that do the same
_SYNONYMS = {
    **dict.fromkeys(("ls", "ps", "all"), "list"),
    **dict.fromkeys(("rm", "remove", "del"), "delete"),
    **dict.fromkeys(("stop", "kill", "abort"), "cancel"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("describe", "get", "info"), "show"),
    **dict.fromkeys(("download", "files", "artifacts"), "outputs"),
    **dict.fromkeys(("add", "register"), "attach"),
    **dict.fromkeys(("gc", "clean"), "prune"),
    "restart": "rerun",
}


def is_usage_error(error: BaseException) -> bool:
    """Whether the parser raised it. Versions of Typer have their own copies of these classes."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def is_missing_command(error: BaseException) -> bool:
    """Whether a group was called without a command: its help is the answer."""
    return type(error).__name__ == "NoArgsIsHelpError"


def describe_usage_error(error: Any) -> str:
    """Return the sentence for an error of the parser."""
    text = _sentence(error.format_message())
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    path = context.command_path
    unknown = _UNKNOWN_COMMAND.match(error.format_message())
    if unknown is not None:
        text = f"unknown command {unknown[1]!r}"
        if command := _closest_command(unknown[1], getattr(context.command, "commands", {})):
            return f"{text}; did you mean `{path} {command}`?"
    if option := getattr(error, "option_name", None):
        text = f"unknown option {option}"
        params = context.command.params
        takes_args = any("-- ARGS" in (getattr(param, "metavar", "") or "") for param in params)
        if similar := _most_similar(option, error.possibilities or (), 0.8 if takes_args else 0.6):
            return f"{text}; did you mean {similar}?"
        if takes_args:
            return f"{text}; arguments of the script go after `--`: {path} … -- {option}"
    return append_clause(text, f"see `{path} --help`")


def _closest_command(name: str, commands: Collection[str]) -> str | None:
    """Return the command with the same meaning, or else the one with the most similar name."""
    synonym = _SYNONYMS.get(name, name)
    if synonym in commands:
        return synonym
    if synonym == "delete" and "detach" in commands:
        return "detach"
    return _most_similar(name, commands)


def _most_similar(name: str, names: Collection[str], cutoff: float = 0.6) -> str | None:
    from difflib import get_close_matches  # imported only for an error: imports take time

    return next(iter(get_close_matches(name, names, 1, cutoff)), None)


def _sentence(text: str) -> str:
    plain = _EXTRA_ARGUMENTS.sub(r"unexpected argument \1", " ".join(text.split()).rstrip("."))
    return plain[:1].lower() + plain[1:]
