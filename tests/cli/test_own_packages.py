"""Packages in the code folder are imported by a job, over an environment that is built once."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.runner.harness import wheel

_BACKEND = """
import zipfile

def build_wheel(folder, *_, **__):
    text = open("answer.txt").read().strip()
    info = "compiled-1.0.dist-info"
    files = {
        "compiled.py": f"ANSWER = {text!r}\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: compiled\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(f"{folder}/compiled-1.0-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return "compiled-1.0-py3-none-any.whl"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a src layout, and an index with `tinypkg` and a stranger's `helper`."""
    wheel(tmp_path / "wheels")
    wheel(tmp_path / "wheels", "helper", "9.0")
    folder = tmp_path / "project"
    _write(folder / "src/mine/__init__.py", "VALUE = 1\n")
    _write(folder / "src/mine/cli.py", "import mine\n\ndef main():\n    print(mine.VALUE)\n")
    _write(folder / "train.py", "import mine\nprint(mine.VALUE)\n")
    _pyproject(folder, "mine", scripts='show-mine = "mine.cli:main"')
    options = f"--no-index\n--find-links {tmp_path}/wheels\n"
    _write(folder / "requirements.txt", f"{options}-e .\n")
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _pyproject(
    folder: Path, name: str, requires: str = "", scripts: str = "", more: str = ""
) -> None:
    text = f'[project]\nname = "{name}"\nversion = "0.1"\ndependencies = [{requires}]\n'
    backend = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    _write(folder / "pyproject.toml", f"{text}[project.scripts]\n{scripts}\n{backend}{more}\n")


def test_a_src_layout_is_on_the_path_without_any_option(retarget: Cli, project: Path) -> None:
    done = retarget("run", "train.py", cwd=project)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "src/ is on the Python path, because this project has a src layout" in done.stderr


def test_a_changed_line_of_an_own_package_does_not_rebuild_the_environment(
    retarget: Cli, project: Path
) -> None:
    _pyproject(project, "mine", '"tinypkg"', 'show-mine = "mine.cli:main"')
    command = ("run", "-e", "requirements.txt", "--", "show-mine")
    first = retarget(*command, cwd=project)
    assert first.stdout == "1\n", first.stderr
    assert "building" in first.stderr
    _write(project / "src/mine/__init__.py", "VALUE = 2\n")
    second = retarget("run", "--name", "n", *command[1:], cwd=project)
    assert second.stdout == "2\n"
    assert "building" not in second.stderr
    assert "mine" in retarget("job", "show", "n").stdout


def test_importlib_finds_the_version_of_an_own_package(retarget: Cli, project: Path) -> None:
    script = "import importlib.metadata as m; print(m.version('mine'))"
    done = retarget("run", "-e", "requirements.txt", "--", "python", "-c", script, cwd=project)
    assert done.stdout == "0.1\n", done.stderr


@pytest.mark.parametrize("source", ['{ path = "libs/helper" }', "{ workspace = true }"])
def test_the_index_is_not_asked_for_a_package_of_a_local_source(
    retarget: Cli, project: Path, source: str
) -> None:
    """An index might have a stranger's package of that name."""
    more = f'[tool.uv.sources]\nhelper = {source}\n[tool.uv.workspace]\nmembers = ["libs/*"]\n'
    _pyproject(project, "mine", '"helper"', more=more)
    _pyproject(project / "libs/helper", "helper")
    _write(project / "libs/helper/helper.py", "VERSION = 'own'\n")
    script = "import helper; print(helper.VERSION)"
    done = retarget("run", "-e", "requirements.txt", "--", "python", "-c", script, cwd=project)
    assert done.stdout == "own\n", done.stderr


def test_a_relative_path_is_relative_to_the_file(retarget: Cli, project: Path) -> None:
    _pyproject(project / "libs/helper", "helper", '"tinypkg"')
    _write(project / "libs/helper/helper.py", "VERSION = 'own'\n")
    lines = (project / "requirements.txt").read_text().replace("-e .", "-e ../libs/helper")
    _write(project / "conf/requirements.txt", lines)
    script = "import helper, tinypkg; print(helper.VERSION, tinypkg.VERSION)"
    options = ("--code", ".", "-e", "conf/requirements.txt")
    done = retarget("run", *options, "--", "python", "-c", script, cwd=project)
    assert done.stdout == "own 1.0\n", done.stderr


@pytest.mark.parametrize("environment", [".", "pyproject.toml"])
def test_a_project_is_an_environment(retarget: Cli, project: Path, environment: str) -> None:
    done = retarget("run", "-e", environment, "train.py", cwd=project)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "src layout" not in done.stderr  # it was asked for


def test_a_package_that_must_be_built_is_built_once_per_content(
    retarget: Cli, project: Path
) -> None:
    folder = project / "compiled"
    _write(folder / "backend.py", _BACKEND)
    _write(folder / "answer.txt", "42")
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    _write(folder / "pyproject.toml", f'[project]\nname = "compiled"\nversion = "1.0"\n{build}')
    lines = (project / "requirements.txt").read_text().replace("-e .", "./compiled")
    _write(project / "requirements.txt", lines)
    run = ("run", "-e", "requirements.txt", "--", "python", "-c")
    script = "import compiled; print(compiled.ANSWER)"
    first = retarget(*run, script, cwd=project)
    assert first.stdout == "42\n", first.stderr
    assert "packages compiled: building" in first.stderr
    assert "building" not in retarget(*run, script, cwd=project).stderr
    _write(folder / "answer.txt", "43")
    third = retarget(*run, script, cwd=project)
    assert third.stdout == "43\n"
    assert "environment" not in third.stderr
    assert "packages compiled: building" in third.stderr


def test_the_build_of_a_package_gets_the_secrets_that_requirements_refer_to(
    retarget: Cli, project: Path, tmp_path: Path
) -> None:
    folder = project / "compiled"
    _write(folder / "backend.py", f"import tinypkg\n{_BACKEND}")
    _write(folder / "answer.txt", "42")
    build = 'requires = ["tinypkg"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    text = f'[project]\nname = "compiled"\nversion = "1.0"\n[build-system]\n{build}'
    _write(folder / "pyproject.toml", text)
    lines = "--no-index\n--find-links file://${WHEELS_KEY}\n./compiled\n"
    _write(project / "requirements.txt", lines)
    run = ("run", "-e", "requirements.txt", "--env", f"WHEELS_KEY={tmp_path}/wheels")
    done = retarget(*run, "--", "python", "-c", "import compiled", cwd=project)
    assert done.returncode == 0, done.stderr


def test_a_wheel_in_the_code_is_installed(retarget: Cli, project: Path) -> None:
    built = wheel(project / "vendor", "carried", "3.0")
    lines = (project / "requirements.txt").read_text().replace("-e .", f"vendor/{built.name}")
    _write(project / "requirements.txt", lines)
    script = "import carried; print(carried.VERSION)"
    done = retarget("run", "-e", "requirements.txt", "--", "python", "-c", script, cwd=project)
    assert done.stdout == "3.0\n", done.stderr


def test_a_package_outside_of_the_code_folder_is_refused(retarget: Cli, project: Path) -> None:
    _pyproject(project.parent / "other", "other")
    _write(project / "requirements.txt", "-e ../other\n")
    done = retarget("run", "-e", "requirements.txt", "train.py", cwd=project)
    assert done.returncode == 2
    folder = f"{project.parent}/other is outside of the code folder {project}"
    assert f"{folder}; send a folder that contains both: --code ..\n" in done.stderr


def test_a_registered_environment_cannot_contain_an_own_package(
    retarget: Cli, project: Path
) -> None:
    options = ("--name", "mine", "requirements.txt")
    done = retarget("environment", "build", *options, cwd=project)
    assert done.returncode == 2
    assert "which a registered environment cannot contain" in done.stderr


_IMPORT_HELPER = "import helper; print(helper.VERSION)"


@pytest.fixture
def monorepo(project: Path) -> Path:
    """Two packages in one repository: `mine` requires `helper` by its name alone."""
    options = (project / "requirements.txt").read_text().replace("-e .", "-e packages/mine")
    _write(project / "requirements.txt", options)
    _write(project / ".git/HEAD", "ref: refs/heads/main\n")
    _pyproject(project / "packages/mine", "mine", '"helper"')
    _write(project / "packages/mine/mine.py", "")
    _pyproject(project / "packages/helper", "helper")
    _write(project / "packages/helper/helper.py", "VERSION = 'own'\n")
    return project


def _run_helper(retarget: Cli, folder: Path, requirements: str) -> tuple[str, str]:
    command = ("--", "python", "-c", _IMPORT_HELPER)
    done = retarget("run", "-e", requirements, *command, cwd=folder)
    return done.stdout, done.stderr


def test_the_index_is_not_asked_for_a_package_of_the_repository(
    retarget: Cli, monorepo: Path
) -> None:
    output, messages = _run_helper(retarget, monorepo, "requirements.txt")
    assert output == "own\n", messages
    assert "helper is your own package in packages/helper; it is not downloaded\n" in messages


def test_a_requirements_file_names_a_package_of_the_code_folder(
    retarget: Cli, monorepo: Path
) -> None:
    (monorepo / ".git/HEAD").unlink()
    (monorepo / ".git").rmdir()
    lines = (monorepo / "requirements.txt").read_text().replace("-e packages/mine", "helper>=0")
    _write(monorepo / "requirements.txt", lines)
    output, messages = _run_helper(retarget, monorepo, "requirements.txt")
    assert output == "own\n", messages


def test_a_package_of_the_repository_that_is_not_sent_is_refused(
    retarget: Cli, monorepo: Path
) -> None:
    lines = (monorepo / "requirements.txt").read_text().replace("-e packages/mine", "-e .")
    _write(monorepo / "packages/mine/requirements.txt", lines)
    output, messages = _run_helper(retarget, monorepo / "packages/mine", "requirements.txt")
    assert not output
    assert "packages/helper is outside of the code folder" in messages
    assert "send a folder that contains both: --code .." in messages


def test_a_requirement_that_excludes_the_own_version_is_downloaded(
    retarget: Cli, monorepo: Path
) -> None:
    _pyproject(monorepo / "packages/mine", "mine", '"helper>=9"')
    output, messages = _run_helper(retarget, monorepo, "requirements.txt")
    assert output == "9.0\n", messages
    reason = "because your own package helper in packages/helper has version 0.1"
    assert f"helper>=9 is downloaded, {reason}\n" in messages


@pytest.mark.parametrize(
    "source", ['{ index = "corp" }', '[{ index = "corp", marker = "os_name == \'nt\'" }]']
)
def test_a_source_that_cannot_be_followed_is_named(
    retarget: Cli, project: Path, source: str
) -> None:
    _pyproject(project, "mine", '"helper"', more=f"[tool.uv.sources]\nhelper = {source}\n")
    output, messages = _run_helper(retarget, project, "requirements.txt")
    assert output == "9.0\n", messages
    warning = "helper is downloaded from the default index, because its source ("
    assert warning in messages
    built = retarget("environment", "build", "requirements.txt", cwd=project)
    assert warning in built.stderr


def test_a_package_with_an_address_is_taken_from_there(retarget: Cli, project: Path) -> None:
    wheel(project.parent / "elsewhere", "helper", "3.0")
    [file] = (project.parent / "elsewhere").iterdir()
    _pyproject(
        project, "mine", '"helper>=1"', more=f'[tool.uv.sources]\nhelper.url = "file://{file}"\n'
    )
    output, messages = _run_helper(retarget, project, "requirements.txt")
    assert output == "3.0\n", messages


def test_a_missing_member_of_a_workspace_is_refused(retarget: Cli, project: Path) -> None:
    more = '[tool.uv.sources]\nhelper.workspace = true\n[tool.uv.workspace]\nmembers = ["libs/*"]\n'
    _pyproject(project, "mine", '"helper"', more=more)
    output, messages = _run_helper(retarget, project, "requirements.txt")
    assert not output
    assert "no member is named helper; check `members`" in messages


@pytest.mark.parametrize("name", [".[dev]", "pyproject.toml[dev]"])
def test_a_project_is_installed_with_its_extras(retarget: Cli, project: Path, name: str) -> None:
    more = '[project.optional-dependencies]\ndev = ["tinypkg"]\nplot = []\n'
    _pyproject(project, "mine", '"idna>=3"', more=more)
    shown = retarget("run", "--dry-run", "--pip", "six", "-e", name, "train.py", cwd=project)
    assert " idna>=3, six, tinypkg\n" in shown.stdout, shown.stderr
    done = retarget("run", "-e", ".[plt]", "train.py", cwd=project)
    assert done.stderr == "error: packages: mine has no extra 'plt'; did you mean 'plot'?\n"


def test_a_mistyped_file_is_pointed_out(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / "environment.yml").touch()
    (tmp_path / "a.py").touch()
    done = retarget("run", "-e", "environment.yaml", "a.py", cwd=tmp_path)
    assert "'environment.yaml' not found; did you mean 'environment.yml'?" in done.stderr
