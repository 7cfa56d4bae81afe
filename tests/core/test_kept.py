"""The messages about files that were kept outside of outputs/."""

from typing import Any

import pytest

from retarget.core.kept import Kept, Missed, check_keep, combine_nodes, describe_kept
from retarget.runner.keep_patterns import below, matches, reaches


def _report(**change: Any) -> Kept:
    fields: dict[str, Any] = {
        "files": 0,
        "size": 0,
        "paths": [],
        "missed": [],
        "unmatched": [],
        "limit": 2**20,
    }
    return Kept(**fields | change)


def test_a_few_files_are_named() -> None:
    kept = _report(files=2, size=7, paths=["checkpoints/m.pt", "model.pkl"])
    line = "also kept 2 files written outside outputs/: checkpoints/m.pt, model.pkl"
    assert describe_kept(kept) == [line]


def test_many_files_are_counted() -> None:
    kept = _report(files=1200, size=3 << 20, paths=[f"f{n}" for n in range(20)])
    line = (
        "also kept 1,200 files written outside outputs/: "
        "f0, f1, f2, f3, f4 and 1,195 more (3.0 MiB in all)"
    )
    assert describe_kept(kept) == [line]


def test_what_is_not_kept_is_named_with_its_size_and_what_to_do() -> None:
    rows = [
        Missed("big.bin", 1, 3 << 20, "over the limit"),
        Missed("wandb/", 12, 1 << 20, "excluded by default"),
        Missed("*", 7, 1 << 20, "over the limit"),
        Missed("bad\nname", 0, 0, "it cannot be read"),
    ]
    assert describe_kept(_report(missed=rows, unmatched=["*.ckpt"])) == [
        "not kept: big.bin (3.0 MiB) and 7 more (1.0 MiB): over the limit of 1.0 MiB; "
        "use --keep PATTERN, or write to outputs/",
        "not kept: wandb/ (12 files, 1.0 MiB): excluded by default; write results to outputs/",
        r"not kept: bad\nname: it cannot be read",
        "--keep *.ckpt: the script wrote no such file",
    ]


def test_the_reports_of_several_nodes_become_one() -> None:
    first = _report(files=1, size=5, paths=["a"], unmatched=["*.x", "*.y"])
    second = _report(files=2, size=5, paths=["node-1/b", "node-1/c"], unmatched=["*.y"])
    combined = combine_nodes([first, second])
    assert combined == _report(
        files=3, size=10, paths=["a", "node-1/b", "node-1/c"], unmatched=["*.y"]
    )
    assert combine_nodes([]) is None


@pytest.mark.parametrize("keep", [["none", "*.pt"], ["*.pt", "all"], [""], ["/"], ["../x"], ["."]])
def test_patterns_that_cannot_work_are_refused(keep: list[str]) -> None:
    with pytest.raises(ValueError, match=r"names no file|cannot be combined"):
        check_keep(keep)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.pt", "a/b.pt"),
        ("checkpoints", "checkpoints/x"),
        ("checkpoints/", "a/checkpoints/x/y"),
        ("a/*.pt", "a/b.pt"),
        ("a/**/b.pt", "a/b.pt"),
        ("a/**/b.pt", "a/x/y/b.pt"),
        ("/x", "x"),
        ("**", "a/b"),
        ("wandb/", "wandb/"),
    ],
)
def test_a_pattern_matches(pattern: str, path: str) -> None:
    assert matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.pt", "a/b.pth"),
        ("checkpoints/", "checkpoints"),
        ("a/*.pt", "c/a/b.pt"),
        ("a/*.pt", "a/x/b.pt"),
        ("/x", "a/x"),
        ("/".join(["**"] * 30 + ["z"]), "/".join("a" * 100)),
    ],
)
def test_a_pattern_does_not_match(pattern: str, path: str) -> None:
    assert not matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "folder", "expected"),
    [
        ("*.csv", "data", True),
        ("data/*.csv", "data", True),
        ("data/*.csv", "data/raw", False),
        ("data/*.csv", "other", False),
        ("data/**/x", "data/a/b", True),
        ("/*.csv", "data", False),
        ("/data", "data", False),
    ],
)
def test_a_pattern_reaches_into_the_folders_of_what_it_can_name(
    pattern: str, folder: str, *, expected: bool
) -> None:
    assert reaches(pattern, folder) == expected


@pytest.mark.parametrize(
    ("pattern", "folder", "expected"),
    [
        ("data/*.csv", "data", ["/*.csv"]),
        ("data/raw/", "data", ["/raw/"]),
        ("data/*/x", "data/raw", ["/x"]),
        ("data/*", "data/raw", ["/**"]),
        ("data/", "data/raw/new", ["/**"]),
        ("*.csv", "data", ["/**/*.csv", "/*.csv"]),
        ("a/**/b.pt", "a/c", ["/**/b.pt", "/b.pt"]),
        ("/*.csv", "data", []),
        ("raw/*.csv", "data", []),
    ],
)
def test_a_pattern_is_rewritten_for_a_folder(
    pattern: str, folder: str, expected: list[str]
) -> None:
    assert below(pattern, folder) == expected
