"""Finds the sentence in the output of a tool that says what is wrong."""

from __future__ import annotations

import re


def resolver_sentence(output: str) -> str:
    """Return the sentence in which uv says what is wrong."""
    match = re.search(
        r"^(?:error:|  \u00d7) (.*?)(?:\n\s*\n|\n\s*(?:hint|help):|\Z)", output, re.DOTALL | re.M
    )
    if match is None:
        return last_line(output)
    causes = [_one_line(cause) for cause in re.split(r"\n\s*(?:cause:|[╰├]─▶) ", match[1])]
    if causes[0].startswith("No solution found") and len(causes) > 1:
        del causes[0]  # the next cause says why
    causes = _without_layers(causes)
    if "[stderr]" in output:
        causes.append(last_line(output.partition("[stderr]")[2].partition("\nhint:")[0]))
    login = re.search(r"An index URL \(\S+\) could not be queried due to .*?\(\d+ [\w ]+\)", output)
    return ": ".join(causes) + (f" {login[0]}" if login else "")


def engine_sentence(output: str) -> str:
    """Return the sentence in which a container engine, or what it ran, says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("Error") and ":" in line:  # the last line of both engines
            return line.partition(":")[2].strip().rstrip(".")
    return resolver_sentence(output)


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _without_layers(causes: list[str]) -> list[str]:
    """Of a failed request, keep what was requested and the innermost cause."""
    request = "error sending request"
    index = next((i for i, cause in enumerate(causes) if cause.startswith(request)), None)
    if index is None:
        return causes
    return [*causes[:index], request, *causes[index + 1 :][-1:]]


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"\n\s*\^+", "", text).replace("│", " ").split())
