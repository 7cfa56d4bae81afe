"""retarget.toml: where it is found, what it may hold, and which value wins."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retarget.core.errors import Invalid
from retarget.sdk.project import Filled, fill_from_project
from tests.conftest import Cli

FILE = """
target = "gpu"
retries = 2
[resources]
cpus = 2
memory = "1g"
[variables]
LOG = "info"
SEED = 1
[profiles.quick]
timeout = "5m"
resources.cpus = 1
variables.LOG = "debug"
"""


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETARGET_TARGET", "RETARGET_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def fill(folder: Path, target: str | None = None, **options: Any) -> Filled:
    return fill_from_project(folder, target, options)


def test_settings_fill_in_what_the_caller_left_open(tmp_path: Path) -> None:
    (tmp_path / "retarget.toml").write_text(FILE)
    filled = fill(tmp_path, cpus=4, memory=None, variables={"LOG": "mine"})
    assert filled.target == "gpu"
    assert filled.options == {
        **{"cpus": 4, "memory": "1g", "retries": 2},
        "variables": {"LOG": "mine", "SEED": "1"},
    }
    assert filled.project_settings == ("target=gpu", "retries=2", "memory=1g", "variables.SEED")


def test_tags_of_the_file_the_profile_and_the_caller_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "retarget.toml"
    file.write_text(
        '[tags]\nteam = "vision"\nstage = "trial"\nyear = 2026\n'
        '[profiles.p.tags]\nstage = "final"\n'
    )
    filled = fill(tmp_path, profile="p", tags={"team": "audio"})
    assert filled.options["tags"] == {"team": "audio", "stage": "final", "year": "2026"}
    assert filled.project_settings == ("profile=p", "tags.stage", "tags.year")
    assert fill(tmp_path).options["tags"]["stage"] == "trial"
    with pytest.raises(Invalid, match="tags: 3 is not a mapping"):
        fill(tmp_path, tags=3)
    file.write_text("[tags]\nteam = true\n")
    with pytest.raises(Invalid, match=r"tags\.team is not a string or a number"):
        fill(tmp_path)


def test_included_paths_are_relative_to_the_file_and_only_those_in_the_code_folder_count(
    tmp_path: Path,
) -> None:
    for name in (".git", "data/raw", "notebooks/cache"):
        (tmp_path / name).mkdir(parents=True)
    file = tmp_path / "retarget.toml"
    file.write_text('include = ["data/", "notebooks/cache"]')
    assert fill(tmp_path).options["include"].paths == {b"data", b"notebooks/cache"}
    assert fill(tmp_path / "notebooks").options["include"].paths == {b"cache"}
    assert fill(tmp_path / "data" / "raw").options["include"].paths == {b""}
    assert fill(tmp_path).project_settings == ("include=data/, notebooks/cache",)
    for path, problem in (("dta/", "does not exist"), ("../x", "is not")):
        file.write_text(f'include = ["{path}"]')
        with pytest.raises(Invalid) as raised:
            fill(tmp_path / "notebooks")
        assert str(raised.value) == f"{file}: include: '{path}' {problem} in {tmp_path}"


def test_included_patterns_are_relative_to_the_file(tmp_path: Path) -> None:
    for name in (".git", "data/raw"):
        (tmp_path / name).mkdir(parents=True)
    file = tmp_path / "retarget.toml"
    file.write_text('include = ["data/*.csv", "/*.bin"]')
    assert fill(tmp_path).options["include"].patterns == ("data/*.csv", "/*.bin")
    assert fill(tmp_path / "data").options["include"].patterns == ("/*.csv",)
    assert fill(tmp_path / "data/raw").options["include"].patterns == ()
    file.write_text('include = ["../*.csv"]')
    with pytest.raises(Invalid) as raised:
        fill(tmp_path)
    assert str(raised.value) == f"{file}: include: '../*.csv' is not in {tmp_path}"


def test_the_environment_may_be_the_project_with_extras(tmp_path: Path) -> None:
    (tmp_path / "retarget.toml").write_text('environment = ".[dev]"')
    assert fill(tmp_path).options["environment"].packages == (f"{tmp_path}[dev]",)


def test_a_profile_wins_over_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "retarget.toml").write_text(FILE)
    filled = fill(tmp_path, profile="quick")
    assert (filled.options["cpus"], filled.options["timeout"]) == (1, "5m")
    assert filled.options["variables"] == {"LOG": "debug", "SEED": "1"}
    assert filled.project_settings[0] == "profile=quick"
    monkeypatch.setenv("RETARGET_PROFILE", "quick")
    assert fill(tmp_path) == filled
    with pytest.raises(Invalid, match="unknown profile 'quik'; did you mean 'quick'"):
        fill(tmp_path, profile="quik")
    monkeypatch.setenv("RETARGET_TARGET", "other")
    assert fill(tmp_path).target is None  # the variable wins, and is read later


def test_the_file_is_found_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    inner = tmp_path / "repo/a/b"
    inner.mkdir(parents=True)
    (tmp_path / "retarget.toml").write_text("retries = 1")
    assert fill(inner) == Filled(None, {})
    (tmp_path / "repo/.git").mkdir()
    assert fill(inner) == Filled(None, {})
    (tmp_path / "repo/retarget.toml").write_text("retries = 2")
    assert fill(inner).options == {"retries": 2}
    (inner / "retarget.toml").write_text("retries = 3")
    assert fill(inner).options == {"retries": 3}
    with pytest.raises(Invalid, match=r"has no retarget\.toml"):
        fill(tmp_path / "elsewhere", profile="x")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("taget = 'x'", "unknown key 'taget'; did you mean 'target'?"),
        ("cpus = 2", "unknown key 'cpus'"),
        ("[resources]\ncpu = 2", "resources: unknown key 'cpu'; did you mean 'cpus'?"),
        ("[resources]\ncpus = '2'", "cpus: '2' is not a number"),
        ("resources = 2", "resources is not a table"),
        ("[resources]\nmemory = '2 parsecs'", "memory"),
        ("retries = true", "retries: True is not an integer"),
        ("[variables]\nA = [1]", "variables.A is not a string or a number"),
        ("[profiles.gpu]\nprofiles = {}", "profiles.gpu: unknown key 'profiles'"),
        ("environment = 'missing.yml'", "missing.yml does not exist"),
        ("include = 'data/'", "include: 'data/' is not a list of paths and patterns"),
        ("target =", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_key(
    tmp_path: Path, content: str, sentence: str
) -> None:
    (tmp_path / "retarget.toml").write_text(content)
    with pytest.raises(Invalid) as refused:
        fill(tmp_path)
    assert str(tmp_path / "retarget.toml") in str(refused.value)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_a_regular_file_is_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "retarget.toml")
    with pytest.raises(Invalid, match="is not a regular file"):
        fill(tmp_path)


def test_a_job_runs_with_the_settings_and_shows_them(retarget: Cli, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / ".gitignore").write_text("data/")
    (code / "data").mkdir()
    (code / "data/a.csv").write_text("1")
    settings = 'experiment = "trials"\ninclude = ["data/"]'
    (code / "retarget.toml").write_text(FILE.replace('target = "gpu"', settings))
    (code / "x.py").write_text("import os; print(os.environ['LOG'], os.environ['SEED'])")
    plan = json.loads(retarget("run", "--dry-run", "--json", "x.py", cwd=code).stdout)
    assert "experiment=trials" in plan["project_settings"]
    assert plan["code"]["files"] == 4  # with the ignored folder, which the file includes
    options = ("--cpus", "1", "--name", "a", "--profile", "quick")
    done = retarget("run", *options, "x.py", cwd=code)
    assert (done.returncode, done.stdout) == (0, "debug 1\n"), done.stderr
    job = json.loads(retarget("job", "show", "a", "--json").stdout)
    assert (job["experiment"], job["retries"], job["timeout"]) == ("trials", 2, 300)
    shown = retarget("job", "show", "a").stdout
    assert "from retarget.toml" in shown
    assert "experiment=trials" in " ".join(shown.split())
