"""What a submission says about the folders around the code."""

import json
from pathlib import Path

from retarget.sdk.surroundings import outside_references, surroundings_of


def _repository(root: Path) -> Path:
    for name in ("a/notebooks", "a/utils", "a/src/churn", "data", "a/__pycache__", ".git", ".x"):
        (root / name).mkdir(parents=True)
    for name in ("tools.py", "README.md", "a/notebooks/prep.py", "a/utils/io.py"):
        (root / name).touch()
    return root / "a" / "notebooks"


def test_the_folders_and_modules_of_the_repository_outside_are_named(tmp_path: Path) -> None:
    assert surroundings_of(_repository(tmp_path)) == {
        "folder": "notebooks",
        "paths": ["../src/", "../src/churn/", "../utils/", "../../data/", "../../tools.py"],
    }


def test_nothing_outside_of_a_repository_is_named(tmp_path: Path) -> None:
    folder = _repository(tmp_path / "repo")
    (tmp_path / "private").mkdir()
    assert not any("private" in path for path in surroundings_of(folder)["paths"])
    assert surroundings_of(tmp_path / "repo")["paths"] == []
    (tmp_path / "repo" / ".git").rmdir()
    assert surroundings_of(folder)["paths"] == []


def test_a_notebook_that_reads_outside_of_the_code_folder_is_named(tmp_path: Path) -> None:
    folder = _repository(tmp_path)
    source = "import sys\nsys.path.append('../utils')\nglob(\"../../data/*.csv\")\nopen('../no')"
    (folder / "a.ipynb").write_text(json.dumps({"cells": [{"source": source}]}))
    assert outside_references(folder, "a.ipynb") == [
        "a.ipynb refers to ../../data, ../utils, which are outside of the code folder notebooks/ "
        "and not sent; to send the folder above it, use --code ../.."
    ]
    assert outside_references(tmp_path, "a/notebooks/a.ipynb") == []


def test_a_script_starts_in_the_code_folder(tmp_path: Path) -> None:
    folder = _repository(tmp_path)
    (folder / "prep.py").write_text("sys.path.append('..')")
    assert outside_references(folder, "prep.py") == [
        "prep.py refers to .., which is outside of the code folder notebooks/ and not sent; to "
        "send the folder above it, use --code .."
    ]
    (folder / "prep.py").write_text("print('...')  # not '../nothing'")
    assert outside_references(folder, "prep.py") == []
    assert outside_references(folder, None) == []
