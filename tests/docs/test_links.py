"""Links inside the documentation lead somewhere, and every page can be reached."""

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
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        assert path.exists(), f"{path} is not there"
        assert not anchor or anchor in anchors(path), f"{path} has no heading for #{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        todo += [path for path, _ in links(page) if path.suffix == ".md"]
        todo += [each for path, _ in links(page) if path.is_dir() for each in path.glob("*.md")]
    assert not {name_of(page) for page in set(pages()) - seen}


def test_decisions_are_numbered_without_a_gap() -> None:
    names = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    assert [name[:3] for name in names] == [f"{number:03}" for number in range(1, len(names) + 1)]
    for name in names:
        assert read(f"docs/decisions/{name}").startswith(f"# {name[:3]}: ")
