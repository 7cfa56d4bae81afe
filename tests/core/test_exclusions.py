"""A missing file is explained if its path was excluded."""

import pytest

from retarget.core.exclusions import Excluded, explain_missing, find_module

_ROWS = [
    Excluded("data/", ".gitignore", 1, 21),
    Excluded("model.bin", ".gitignore", 1, 21),
    Excluded("nb/raw/x.csv", ".gitignore", 1, 21),
    Excluded(".env", "default", 1, 3),
    Excluded("**/__pycache__/", "always"),
]


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'", "data/"),
        ("No such file or directory: './data/train.csv'", "data/"),
        ("No such file or directory: '../data'", "data/"),
        ("No such file or directory: '/x/launches/0a/work/data/a.csv' (train.py:3)", "data/"),
        ("cat: data/train.csv: No such file or directory", "data/"),
        ("No such file or directory: 'x.csv' (cell 2 of nb/raw/a b.ipynb)", "nb/raw/x.csv"),
        ("No such file or directory: '../../data/x.csv' (cell 2 of nb/raw/a b.ipynb)", "data/"),
        ("OSError: model.bin not found.", "model.bin"),
        ("FileNotFoundError: .env", ".env"),
        ("No such file: 'a/__pycache__/b'", "**/__pycache__/"),
    ],
)
def test_a_missing_file_below_an_excluded_path_is_explained(message: str, path: str) -> None:
    explanation = explain_missing(message, _ROWS)
    assert explanation is not None
    assert explanation.startswith(f"{path} was not sent because")


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: data/train.csv has 3 columns",
        "No such file or directory: 'database/train.csv'",
        "No such file or directory: '/usr/share/data/x'",
        "No such file or directory: 'other/data/x'",
        "No such file or directory: 'my-model.bin'",
        "",
    ],
)
def test_other_failures_are_not(message: str) -> None:
    assert explain_missing(message, _ROWS) is None


def test_the_explanation_names_the_rule() -> None:
    message = "No such file or directory: 'data/train.csv'"
    assert explain_missing(message, _ROWS) == ("data/ was not sent because .gitignore excludes it")
    assert explain_missing("FileNotFoundError: .env", _ROWS) == (
        ".env was not sent because the default rules exclude it"
    )


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("flowers.models", "src/flowers/models/"),
        ("flowers.models.tree", "src/flowers/models/"),
        ("flowers.secrets", "src/flowers/secrets.py"),
        ("models", "src/flowers/models/"),
        ("flowers.data", None),
        ("odels", None),
    ],
)
def test_a_module_is_found_among_the_excluded_paths(module: str, path: str | None) -> None:
    exclusions = [
        Excluded("src/flowers/models/", ".gitignore"),
        Excluded("src/flowers/secrets.py", ".gitignore"),
    ]
    exclusion = find_module(module, exclusions)
    assert (exclusion and exclusion.path) == path


def test_a_missing_module_of_an_own_package_is_explained() -> None:
    message = "exit code 1: ModuleNotFoundError: No module named 'flowers.models' (train.py:1)"
    assert explain_missing(message, [Excluded("src/flowers/models/", ".gitignore")]) == (
        "src/flowers/models/ was not sent because .gitignore excludes it"
    )
