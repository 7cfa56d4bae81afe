"""`retarget run nb.ipynb` runs a notebook and keeps what it showed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import uv

from retarget.runner.uv_settings import uv_variables
from tests.conftest import Cli
from tests.runner.harness import wheel

_CONDA_KERNEL = {"kernelspec": {"name": "conda-env-x", "display_name": "x", "language": "python"}}


def write_notebook(path: Path, *cells: str, metadata: dict[str, Any] | None = None) -> None:
    """Write a notebook of code cells. The first one has the parameters."""
    rows: list[dict[str, Any]] = [
        {
            "id": f"cell-{number}",
            "cell_type": "code",
            "source": source,
            "metadata": {"tags": ["parameters"]} if number == 0 else {},
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(cells)
    ]
    versions = {"nbformat": 4, "nbformat_minor": 5}
    content = {**versions, "metadata": metadata or {}, "cells": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def cells_of(retarget: Cli, job: str, folder: Path) -> list[dict[str, Any]]:
    """Return the code cells of the notebook that a job kept."""
    retarget("job", "outputs", job, "--download", folder / job)
    (path,) = (folder / job / "outputs").iterdir()
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment of the user that has papermill."""
    folder = tmp_path_factory.mktemp("venv") / "v"
    for command in (
        ["venv", "--quiet", "--python", sys.executable, folder],
        ["pip", "install", "-q", "--compile-bytecode", "-p", folder, "papermill", "ipykernel"],
    ):
        environ = {**os.environ, **uv_variables(os.environ)}
        subprocess.run([uv.find_uv_bin(), *command], check=True, env=environ)
    return folder / "bin/python"


def test_papermill_is_added_to_an_environment_without_it_and_changes_nothing_there(
    retarget: Cli, tmp_path: Path
) -> None:
    write_notebook(
        tmp_path / "sub/nb.ipynb",
        "lr = 1",
        "import sys, tqdm\nprint(lr, tqdm.__version__, open('data.csv').read())",
        "sys.prefix.endswith('layer')",
        metadata=_CONDA_KERNEL,
    )
    (tmp_path / "sub/data.csv").write_text("rows")
    (tmp_path / "requirements.txt").write_text("tqdm==4.66.5\n")
    command = ("run", "-e", "requirements.txt", "--name")
    first = retarget(*command, "a", "sub/nb.ipynb", "--", "-p", "lr", "0.1", cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, "0.1 4.66.5 rows\nTrue\n"), first.stderr
    assert "packages papermill, ipykernel: installing" in first.stderr
    built = retarget("job", "show", "a").stdout
    assert "papermill, ipykernel (installed for this job" in built
    assert "versions     Python" in built
    assert "papermill==" not in built
    second = retarget("job", "rerun", "a", "--name", "b", "--", "-p", "lr", "0.2")
    assert (second.returncode, second.stdout) == (0, "0.2 4.66.5 rows\nTrue\n"), second.stderr
    assert "installing" not in second.stderr
    texts = [output["text"] for cell in cells_of(retarget, "b", tmp_path)
             for output in cell["outputs"] if "text" in output]  # fmt: skip
    assert texts == [["0.2 4.66.5 rows\n"]]
    assert "sub/nb.ipynb -p lr 0.2" in retarget("job", "list").stdout


def test_output_goes_where_a_script_would_write_it(
    retarget: Cli, python: Path, tmp_path: Path
) -> None:
    write_notebook(
        tmp_path / "nb.ipynb",
        "import os, sys",
        "print('out')\nprint('err', file=sys.stderr)",
        "os.system('echo child')",
        "!pip --version | cut -c -3",
    )
    done = retarget("run", "--python", python, "--name", "a", "nb.ipynb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = retarget("job", "logs", "a").stdout.splitlines()
    assert sorted(lines) == ["0", "child", "err", "out", "pip"]
    assert {"child", "out"} <= set(done.stdout.splitlines())


def test_pip_in_a_cell_installs_into_the_layer_of_the_job_alone(
    retarget: Cli, python: Path, tmp_path: Path
) -> None:
    wheel(tmp_path / "wheels")
    options = f"-q --disable-pip-version-check --no-index --find-links {tmp_path}/wheels"
    write_notebook(
        tmp_path / "nb.ipynb",
        "import os",
        f"!pip install {options} tinypkg",
        "import tinypkg\nprint(tinypkg.VERSION, os.path.dirname(tinypkg.__file__))",
        "print(os.environ['VIRTUAL_ENV'])",
    )
    prefix = python.parent.parent
    before = _content(prefix)
    done = retarget("run", "--python", python, "nb.ipynb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    package, layer = done.stdout.splitlines()[-2:]
    version, folder = package.split()
    assert (version, Path(folder).is_relative_to(layer)) == ("1.0", True)
    assert not Path(layer).is_relative_to(prefix)
    assert _content(prefix) == before


def _content(folder: Path) -> set[Path]:
    """Return every file, apart from what Python compiles."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_a_failing_cell_fails_the_job_and_the_notebook_is_kept_so_far(
    retarget: Cli, python: Path, tmp_path: Path
) -> None:
    write_notebook(tmp_path / "sub/nb.ipynb", "x = 0", "print(1)", "1 / x", "print('never')")
    done = retarget("run", "--python", python, "--name", "a", "sub/nb.ipynb", cwd=tmp_path)
    assert done.returncode == 1
    cause = "ZeroDivisionError: division by zero (cell 3 of sub/nb.ipynb)"
    assert f"exit code 1: {cause}" in done.stderr
    assert "never" not in done.stdout
    cells = cells_of(retarget, "a", tmp_path)
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in cells]
    assert kinds == [[], ["stream"], ["error"], []]


def test_a_kernel_that_dies_is_named(retarget: Cli, python: Path, tmp_path: Path) -> None:
    write_notebook(tmp_path / "nb.ipynb", "import os", "os.kill(os.getpid(), 11)")
    done = retarget("run", "--python", python, "nb.ipynb", cwd=tmp_path)
    assert done.returncode == 139
    assert "exit code 139: the kernel was killed by SIGSEGV (cell 2 of nb.ipynb)" in done.stderr


def test_a_canceled_notebook_is_kept_so_far(retarget: Cli, python: Path, tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "nb.ipynb", "import time", "print('a')", "print('b'); time.sleep(999)"
    )
    retarget("run", "-d", "--python", python, "--name", "a", "nb.ipynb", cwd=tmp_path)
    deadline = time.monotonic() + 200
    while "b" not in retarget("job", "logs", "a").stdout and time.monotonic() < deadline:
        time.sleep(0.1)
    retarget("job", "cancel", "a")
    retarget("job", "wait", "a")
    cells = cells_of(retarget, "a", tmp_path)
    assert [_text(cell["outputs"]) for cell in cells] == ["", "a\n", "b\n"]


def _text(outputs: Sequence[dict[str, Any]]) -> str:
    return "".join("".join(output.get("text", [])) for output in outputs)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"cells": [], "metadata": {"kernelspec": {"language": "R"}}}, "its language is R; "),
        ({"cells": [], "metadata": {"language_info": {"name": "julia"}}}, "its language is julia;"),
        ({"metadata": {}}, "it is not a notebook: it has no cells"),
        ([], "it is not a notebook: it has no cells"),
    ],
)
def test_what_is_no_notebook_in_python_is_refused(
    retarget: Cli, tmp_path: Path, content: object, reason: str
) -> None:
    (tmp_path / "nb.ipynb").write_text(json.dumps(content))
    done = retarget("run", "nb.ipynb", cwd=tmp_path)
    assert done.returncode == 2
    assert f"cannot run 'nb.ipynb': {reason}" in done.stderr


def test_a_dry_run_says_what_would_be_added(retarget: Cli, tmp_path: Path) -> None:
    write_notebook(tmp_path / "nb.ipynb", "1")
    done = retarget("run", "--dry-run", "nb.ipynb", "--", "-p", "lr", "1", cwd=tmp_path)
    assert "command      python -m retarget_notebook nb.ipynb -p lr 1\n" in done.stdout
    assert "also needs   papermill, ipykernel (" in done.stdout
