"""Parses the documentation: pages, fenced blocks, sections, tables and anchors."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCED_BLOCK = re.compile(r"^(`{3,})(.*?)\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: "```python file=train.py" has a language and one option."""

    language: str
    options: dict[str, str]
    text: str
    line: int


def pages() -> list[Path]:
    """Return every page, the README first."""
    top = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    return [*(ROOT / name for name in top), *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _FENCED_BLOCK.finditer(text):
        words = shlex.split(match[2])
        options = dict(word.split("=", 1) for word in words[1:])
        line = text.count("\n", 0, match.start()) + 1
        yield Block(words[0] if words else "", options, match[3], line)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _FENCED_BLOCK.sub("", page.read_text())


def section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of any level."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert match is not None, f"there is no section {heading!r}"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of every row of the tables in a text, without headings and rules."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    is_rule = [all(re.fullmatch(r":?-+:?", cell) for cell in row) for row in cells]
    headings = {index - 1 for index, rule in enumerate(is_rule) if rule}
    return [row for i, row in enumerate(cells) if not is_rule[i] and i not in headings]


def quoted(text: str) -> list[str]:
    """Return everything in backticks in a text."""
    return re.findall(r"`([^`\n]+)`", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}
