"""A job installs packages into its own layer. The environment below it never changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from retarget.core.environments import Environment
from tests.runner.harness import RunnerHarness, packages, wheel

# every way to call pip, on one package: its version in this process and in a child, step by step
_CHANGES = """
import importlib, os, subprocess, sys

def show():
    code = "import tinypkg; print(tinypkg.VERSION)"
    for command in ([sys.executable, "-c", code], ["sh", "-c", f"python -c '{code}'"]):
        child = subprocess.run(command, capture_output=True, text=True)
        print(child.stdout.strip() or "none", flush=True)

def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout

run("pip", "install", "tinypkg==1.0")
importlib.invalidate_caches()
import tinypkg
print(tinypkg.VERSION, flush=True)
run(sys.executable, "-m", "pip", "install", "--upgrade", "tinypkg")
show()
run("python", "-m", "pip", "install", "tinypkg==1.0")
show()
run(f"pip3.{sys.version_info[1]}", "uninstall", "--yes", "tinypkg")
show()
run(os.environ["UV"], "pip", "install", "tinypkg==2.0")
show()
run(os.environ["UV"], "pip", "uninstall", "tinypkg")
show()
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    for version in ("1.0", "1.5", "2.0"):
        wheel(tmp_path / "wheels", version=version)
    return tmp_path / "wheels"


@pytest.fixture
def offline(wheels: Path, tmp_path: Path) -> dict[str, str]:
    """Variables with which pip and uv find only these wheels."""
    empty = tmp_path / "pip.conf"
    empty.touch()
    return {
        "PIP_CONFIG_FILE": str(empty),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "UV_NO_INDEX": "1",
        "UV_NO_CONFIG": "1",
        "UV_FIND_LINKS": str(wheels),
        "UV": uv.find_uv_bin(),
    }


@pytest.fixture
def venv(tmp_path: Path, wheels: Path) -> Path:
    """A virtual environment of the user, with pip and a package."""
    path = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    install = [path / "bin/pip", "install", "-q", "--no-index", wheels / _file("1.5")]
    subprocess.run(install, check=True)
    return path


def _file(version: str) -> str:
    return f"tinypkg-{version}-py3-none-any.whl"


def _user(python: str | Path) -> Environment:
    return Environment(kind="user", python=str(python))


def _content(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the time and size of every file, apart from what Python compiles."""
    stats = {path: path.lstat() for path in folder.rglob("*")}
    return {
        str(path): (status.st_mtime_ns, status.st_size)
        for path, status in stats.items()
        if "__pycache__" not in str(path)
    }


def _steps(below: str) -> list[str]:
    """Return what `_CHANGES` prints over an interpreter that has this version itself."""
    return ["1.0", "2.0", "2.0", "1.0", "1.0", below, below, "2.0", "2.0", below, below]


def test_pip_in_a_built_environment_changes_the_layer_alone(
    harness: RunnerHarness, wheels: Path, offline: dict[str, str]
) -> None:
    """uv puts no pip into the environment: it comes when it is first used."""
    environment = packages(wheels, "tinypkg==1.5")
    harness.run("true", environment=environment)
    [prefix] = harness.root.glob("environments/*/env")
    before = _content(prefix)
    reports = harness.run("python", "-c", _CHANGES, environment=environment, variables=offline)
    assert reports.finished["outcome"] == "succeeded", reports.stream().decode()
    assert reports.stream().decode().split() == _steps("1.5")
    assert _content(prefix) == before


def test_pip_with_an_interpreter_of_the_user_changes_the_layer_alone(
    harness: RunnerHarness, venv: Path, offline: dict[str, str]
) -> None:
    before = _content(venv)
    environment = _user(venv / "bin/python")
    reports = harness.run("python", "-c", _CHANGES, environment=environment, variables=offline)
    assert reports.finished["outcome"] == "succeeded", reports.stream().decode()
    assert reports.stream().decode().split() == _steps("1.5")
    assert _content(venv) == before


def test_a_job_that_uninstalls_pip_does_not_use_that_of_the_host(
    harness: RunnerHarness, wheels: Path, offline: dict[str, str]
) -> None:
    code = """if True:
        import os, shutil, subprocess, sys
        for words in ("install tinypkg==1.0", "uninstall -y pip", "install tinypkg==2.0"):
            subprocess.run(["pip", "-qq", *words.split()], check=True)
        for name in ("pip", "pip3", f"pip3.{sys.version_info[1]}"):
            assert shutil.which(name).startswith(os.environ["VIRTUAL_ENV"]), name
        import tinypkg
        print(tinypkg.VERSION)
    """
    variables = offline | {"PIP_REQUIRE_VIRTUALENV": "1"}  # should this ever fail, nothing changes
    environment = packages(wheels, "tinypkg==1.5")
    reports = harness.run("python", "-c", code, environment=environment, variables=variables)
    assert reports.stream() == b"2.0\n"


def test_uv_in_a_job_uses_the_certificates_of_the_machine(harness: RunnerHarness) -> None:
    code = "import os; print(os.environ.get('UV_SYSTEM_CERTS'))"
    assert harness.run("python", "-c", code).stream() == b"1\n"


@pytest.fixture(params=["/usr/bin/python3", os.path.realpath(sys.executable)])
def installed(request: pytest.FixtureRequest) -> str:
    """An interpreter outside of virtual environments: that of the system, and that of the tests."""
    if not os.path.exists(request.param):
        pytest.skip(f"there is no {request.param}")
    return request.param


def test_pip_with_an_installed_python_changes_the_layer_alone(
    harness: RunnerHarness, installed: str, offline: dict[str, str], tmp_path: Path
) -> None:
    """Also where pip refuses to change the Python of the system, and with `--user`."""
    show = "import sysconfig, site; print(sysconfig.get_path('purelib'), *site.getsitepackages())"
    paths = subprocess.run([installed, "-c", show], capture_output=True, text=True, check=True)
    folders = [Path(path) for path in {*paths.stdout.split()}]
    before = [_content(folder) for folder in folders]
    user = "run('pip', 'install', '--user', 'tinypkg==1.0'); show()"
    variables = offline | {"HOME": str(tmp_path)}
    reports = harness.run(
        "python", "-c", _CHANGES + user, environment=_user(installed), variables=variables
    )
    assert reports.finished["outcome"] == "succeeded", reports.stream().decode()
    assert reports.stream().decode().split() == [*_steps("none"), "1.0", "1.0"]
    assert [_content(folder) for folder in folders] == before
    assert not (tmp_path / ".local").exists()


def test_packages_of_the_user_stay_visible(
    harness: RunnerHarness, installed: str, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != os.geteuid():
        pytest.skip("Python ignores the packages of the user")
    home = harness.root / "user"
    show = "import sys; print(f'python{sys.version_info[0]}.{sys.version_info[1]}')"
    name = subprocess.run([installed, "-c", show], capture_output=True, text=True, check=True)
    folder = home / ".local/lib" / name.stdout.strip() / "site-packages"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("print('mine')")
    monkeypatch.setenv("HOME", str(home))
    assert harness.run("python", "-c", "import mine", environment=_user(installed)).stream() == (
        b"mine\n"
    )


def test_a_console_script_under_the_layer_sees_what_the_job_installs(
    harness: RunnerHarness, venv: Path, offline: dict[str, str]
) -> None:
    for name, first in (("short", f"#!{venv}/bin/python"), ("long", "#!/bin/sh")):
        long = f"'''exec' \"{venv}/bin/python\" \"$0\" \"$@\"\n' '''\n" if name == "long" else ""
        script = f"{first}\n{long}import sys, tinypkg\nprint(tinypkg.VERSION, sys.argv[1:])\n"
        (venv / "bin" / name).write_text(script)
        (venv / "bin" / name).chmod(0o755)
    command = "short a; pip install -q tinypkg==2.0; short 'b c'; long; which python"
    reports = harness.run(
        "sh", "-c", command, environment=_user(venv / "bin/python"), variables=offline
    )
    lines = reports.stream().decode().splitlines()
    assert lines[:3] == ["1.5 ['a']", "2.0 ['b c']", "2.0 []"]
    assert lines[3].endswith("/layer/bin/python")


def test_a_layer_is_used_again_unless_the_job_changed_it(
    harness: RunnerHarness, venv: Path, offline: dict[str, str]
) -> None:
    environment = _user(venv / "bin/python")
    show = "import os, sys; print(os.stat(sys.prefix).st_ino)"
    inodes = [harness.run("python", "-c", show, environment=environment).stream() for _ in "ab"]
    assert inodes[0] == inodes[1]
    change = "pip install -q tinypkg==2.0"
    harness.run("sh", "-c", change, environment=environment, variables=offline)
    version = "import tinypkg; print(tinypkg.VERSION)"
    assert harness.run("python", "-c", version, environment=environment).stream() == b"1.5\n"


def test_all_ranks_share_a_layer(
    harness: RunnerHarness, wheels: Path, offline: dict[str, str]
) -> None:
    """They may need pip at the same moment."""
    script = "pip install -q tinypkg==2.0; python -c 'import tinypkg; print(tinypkg.VERSION)'"
    reports = harness.run(
        "sh", "-c", script,
        environment=packages(wheels, "tinypkg==1.5"), variables=offline, processes_per_node=2,
    )  # fmt: skip
    versions = [reports.stream(f"rank-{rank}").decode().splitlines()[-1] for rank in range(2)]
    assert versions == ["2.0", "2.0"]


def test_with_allow_pip_the_interpreter_itself_is_changed(
    harness: RunnerHarness, venv: Path, offline: dict[str, str]
) -> None:
    script = "python -m pip install -q tinypkg==2.0; python -c 'import sys; print(sys.prefix)'"
    reports = harness.run(
        "sh", "-c", script,
        environment=_user(venv / "bin/python"), variables=offline, allow_pip=True,
    )  # fmt: skip
    assert reports.stream().decode().splitlines()[-1] == str(venv)
    assert list(venv.glob("lib/*/site-packages/tinypkg-2.0.dist-info"))


def test_an_interpreter_with_an_unusual_layout_is_named_and_not_changed(
    harness: RunnerHarness, offline: dict[str, str], tmp_path: Path
) -> None:
    """Such as a script that looks for the Python to run."""
    python = tmp_path / "python"
    base = os.path.realpath(sys.executable)
    python.write_text(f'#!/bin/sh\nexec {base} "$@"\n')
    python.chmod(0o755)
    reports = harness.run(
        "python", "-m", "pip", "install", "tinypkg", environment=_user(python), variables=offline
    )
    assert b"has an unusual layout, so this job cannot install packages" in reports.stream(
        "prepare"
    )
    assert reports.finished["outcome"] == "failed"
    assert b"virtualenv" in reports.stream()


def test_a_built_environment_is_compiled(harness: RunnerHarness, wheels: Path) -> None:
    harness.run("true", environment=packages(wheels, "tinypkg==2.0"))
    compiled = list(
        harness.root.glob("environments/*/env/lib/*/site-packages/__pycache__/tinypkg*")
    )
    assert len(compiled) == 1


@pytest.fixture(autouse=True)
def _no_settings_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
