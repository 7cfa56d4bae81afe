"""The one sentence, of all that a tool has said, that tells what is wrong."""

from __future__ import annotations

import re


def resolver_sentence(said: str) -> str:
    """Return the sentence in which uv says what is wrong."""
    match = re.search(
        r"^(?:error:|  \u00d7) (.*?)(?:\n\s*\n|\n\s*(?:hint|help):|\Z)", said, re.DOTALL | re.M
    )
    if match is None:
        return last_line(said)
    links = [_one_line(link) for link in re.split(r"\n\s*(?:cause:|[╰├]─▶) ", match[1])]
    if links[0].startswith("No solution found") and len(links) > 1:
        del links[0]  # the next says why
    if "[stderr]" in said:
        links.append(last_line(said.partition("[stderr]")[2].partition("\nhint:")[0]))
    return ": ".join(links)


def engine_sentence(said: str) -> str:
    """Return the sentence in which a container engine, or what it ran, says what is wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("Error") and ":" in line:  # both engines' last word
            return line.partition(":")[2].strip().rstrip(".")
    return resolver_sentence(said)


def last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"\n\s*\^+", "", text).replace("│", " ").split())
