"""What a snapshot excludes is counted, bounded and explained."""

import os
import time
from pathlib import Path

import pytest

from retarget.core.errors import Invalid
from retarget.core.exclusions import MAX_EXCLUSIONS, Excluded, describe_exclusions
from retarget.sdk.exclusions import count_exclusions, counted_exclusions
from retarget.sdk.include import resolve_include
from retarget.sdk.snapshot import scan


def fill(folder: Path, *paths: str, size: int = 1) -> None:
    for name in paths:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_excluded_paths_are_counted_at_the_top_the_largest_first(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("data/\n*.log\n")
    fill(tmp_path, "data/a/b", "data/c", "main.py", ".env")
    fill(tmp_path, "x.log", size=10)
    assert counted_exclusions(scan(tmp_path)) == [
        Excluded("x.log", ".gitignore", 1, 10),
        Excluded("data/", ".gitignore", 2, 2),
        Excluded(".env", "default", 1, 1),
    ]


def test_what_is_always_excluded_is_not_counted_at_submit(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text(".venv/\n")
    fill(tmp_path, ".venv/pyvenv.cfg", ".venv/lib/x", "__pycache__/a", "sub/__pycache__/b", "a.pyc")
    result = scan(tmp_path)
    rows = {row.path: row for row in counted_exclusions(result)}
    assert rows.keys() == {".venv/", "**/__pycache__/", "a.pyc"}
    assert {row.rule for row in rows.values()} == {"always"}
    assert rows["**/__pycache__/"].at_least
    complete = {row.path: row for row in count_exclusions(result.folder, result.excluded)}
    assert complete[".venv/"] == Excluded(".venv/", "always", 2, 2)
    assert complete["**/__pycache__/"] == Excluded("**/__pycache__/", "always", 2, 2)
    assert describe_exclusions(rows.values()) == []


def test_a_huge_folder_costs_a_submit_almost_nothing(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("huge/\ndata/\n")
    for number in range(200):
        fill(tmp_path, *(f"huge/{number}/{name}" for name in range(100)))
    fill(tmp_path, "data/x", size=7)
    result = scan(tmp_path)
    started = time.monotonic()
    rows = {row.path: row for row in count_exclusions(tmp_path, result.excluded, seconds=0.01)}
    assert time.monotonic() - started < 1.0  # usually 0.011
    assert rows["data/"] == Excluded("data/", ".gitignore", 1, 7)
    assert rows["huge/"].at_least or rows["huge/"].files == 20_000
    assert count_exclusions(tmp_path, result.excluded)[0].files == 20_000


def test_a_job_gets_a_bounded_list_that_sums_up_the_rest(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    for number in range(MAX_EXCLUSIONS + 20):
        fill(tmp_path, f"{number}.log", size=number + 1)
    rows = counted_exclusions(scan(tmp_path))
    assert len(rows) == MAX_EXCLUSIONS
    assert rows[-1] == Excluded("*", ".gitignore", 21, sum(range(1, 22)))
    assert rows[0].size == MAX_EXCLUSIONS + 20


def test_names_that_are_not_utf8_and_unreadable_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("bad*\n")
    with open(os.fsencode(tmp_path) + b"/bad\xff", "wb"):
        pass
    [row] = counted_exclusions(scan(tmp_path))
    assert row.path == "bad\\xff"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../x", "is not in"),
        ("/etc", "is not in"),
        ("missing", "does not exist"),
        ("", "does not exist"),
        ("link/a", "leads through a link"),
    ],
)
def test_only_paths_of_the_folder_can_be_included(tmp_path: Path, path: str, message: str) -> None:
    fill(tmp_path, "real/a")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(Invalid, match=message):
        resolve_include(tmp_path, [path])


def test_included_paths_are_relative_to_the_folder(tmp_path: Path) -> None:
    fill(tmp_path, "data/a")
    paths = ["data/", "./data/a", str(tmp_path / "data"), "."]
    assert resolve_include(tmp_path, paths).paths == {b"data", b"data/a", b""}
    with pytest.raises(Invalid, match="a list of paths"):
        resolve_include(tmp_path, "data/")


def test_a_line_names_the_rule_and_the_largest_paths() -> None:
    rows = [
        Excluded("data/", ".gitignore", 1, 21 * 1024),
        Excluded(".env", "default", 1, 12),
        Excluded("huge/", "sub/.gitignore", 5000, 10**9, at_least=True),
        Excluded("empty/", ".gitignore"),
        Excluded(".git/", "always", 3, 3),
    ]
    assert describe_exclusions(rows) == [
        "excluded by .gitignore: data/ (1 file, 21.0 KiB), "
        "huge/ (at least 5,000 files, 953.7 MiB), empty/",
        "excluded by default: .env (12 B)",
    ]
    many = [Excluded(f"{number}/", ".gitignore", 1, 1) for number in range(7)]
    assert describe_exclusions(many)[0].endswith("4/ (1 file, 1 B) and 2 more")
