"""Links inside the documentation are valid, and every page can be reached from the README."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, anchors, name_of, pages, prose, read

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    for link in _LINK.findall(prose(page)):
        if "://" not in link and not link.startswith("mailto:"):
            path, _, anchor = link.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_are_valid(page: Path) -> None:
    for path, anchor in links(page):
        assert path.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(path), f"{path} has no heading for #{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    pending = [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in seen:
            continue
        seen.add(page)
        pending += [path for path, _ in links(page) if path.suffix == ".md"]
        pending += [
            below for path, _ in links(page) if path.is_dir() for below in path.glob("*.md")
        ]
    assert not {name_of(page) for page in set(pages()) - seen}


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    assert [name[:3] for name in names] == [f"{number:03}" for number in range(1, len(names) + 1)]
    for name in names:
        assert read(f"docs/decisions/{name}").startswith(f"# {name[:3]}: ")
