"""Hints about what to do after a failure, from its reason."""

import pytest

from retarget.core.environments import Environment
from retarget.core.hints import hint_for, hint_of, needs_files
from retarget.core.jobs import ExcludedPath, Job, JobSpec, Surroundings
from retarget.core.own_packages import OwnPackage
from retarget.core.states import JobState

_NO_FILE = "exit code 1: FileNotFoundError: [Errno 2] No such file or directory:"

_FETCH = "environment: Request failed after 3 retries: Failed to fetch: https://pypi.org/simple/x/"
_RELEASES = "https://github.com/astral-sh/python-build-standalone/releases"
_DOWNLOAD = f"environment: Failed to download `{_RELEASES}/20261110/cpython-3.12.16.tar.gz"


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        (f"{_FETCH}: error sending request for url", "cannot reach pypi.org; give it access"),
        (f"{_DOWNLOAD}`: error sending request", "does not have this version of Python"),
        ("out of memory: limit 96 MiB", "the job ran out of memory"),
        ("node 1: out of memory: limit 2 GiB", "the job ran out of memory"),
        ("exit code 1: MemoryError (train.py:3)", "the job ran out of memory"),
        ("the script was killed by SIGKILL", "SIGKILL often means"),
        ("exit code 137: job.sh: line 3: 71 Killed python train.py", "SIGKILL often means"),
        ("exit code 1: OSError: [Errno 28] No space left on device", "disk"),
        ("exit code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to", "the GPU"),
        (f"{_NO_FILE} 'data/x.csv' (a.py:1)", "data/x.csv is not among the files that were sent"),
        (f"{_NO_FILE} '/data/x.csv' (a.py:1)", "/data/x.csv does not exist on the machine"),
        ("exit code 2: /usr/bin/python: can't open file 'x.py': [Errno 2] No such file", "x.py is"),
        ("exit code 1: cat: data/x: No such file or directory", "data/x is not among"),
        ("exit code 1: FileNotFoundError: x.npy not found.", "a file is missing"),
        ("'./run' cannot be run: it is not executable", "chmod +x ./run"),
        ("exit code 126: a.sh: line 1: ./b.sh: Permission denied", "chmod +x ./b.sh"),
        ("exit code 1: PermissionError: [Errno 13] Permission denied: '/x/y'", "access /x/y"),
        ("command 'nope' not found on this machine", "install nope on the target"),
        ("exit code 127: a.sh: line 1: foo: command not found", "install foo on the target"),
        ("exit code 1: EOFError: EOF when reading a line (a.py:1)", "a job has no stdin"),
        ("exit code 127: sh: 1: foo: not found", "install foo on the target"),
        ("exit code 128: fatal: not a git repository (or any of", "without its Git history"),
        ("exit code 1: subprocess.CalledProcessError: Command '['git', 'log']'", "Git history"),
    ],
)
def test_a_failure_has_a_hint(reason: str, part: str) -> None:
    hint = hint_for(reason, 1)
    assert hint is not None
    assert part in hint
    assert "\n" not in hint


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        (Environment(), "--pip scikit-learn, or name your requirements file, "),
        (Environment(kind="system", pip=("numpy",)), "add scikit-learn to its requirements"),
        (Environment(kind="system", name="ml"), "add scikit-learn to the environment 'ml'"),
        (Environment(kind="image", image="python"), "add it to the image, or install it on top"),
    ],
)
def test_a_missing_module_names_its_package_and_the_option(
    environment: Environment, part: str
) -> None:
    reason = "exit code 1: ModuleNotFoundError: No module named 'sklearn.linear_model' (train.py:1)"
    hint = hint_for(reason, 1, JobSpec(command=("python",), environment=environment))
    assert hint is not None
    assert hint.startswith("module 'sklearn' is not in the job's environment; ")
    assert part in hint


def test_the_hint_about_memory_says_what_the_option_does() -> None:
    hint = hint_for("the script was killed by SIGKILL", -9) or ""
    assert "waits until that much is free; only in a container is it also a limit" in hint


def test_a_killed_shell_command_is_recognised_by_its_exit_code() -> None:
    assert hint_for("the script ended with exit code 137", 137) is not None
    assert hint_for("the script ended with exit code 3", 3) is None


def test_only_a_failed_job_has_a_hint() -> None:
    assert hint_of(_job(JobState.FAILED, "exit code 1: MemoryError")) is not None
    assert hint_of(_job(JobState.CANCELED, "exit code 1: MemoryError")) is None


def test_the_hint_for_a_missing_file_that_was_excluded_is_to_include_it() -> None:
    excluded = (ExcludedPath(path="data/", rule=".gitignore"),)
    failed = _job(JobState.FAILED, f"{_NO_FILE} 'data/x.csv'")
    assert hint_of(failed) is not None
    spec = failed.spec.model_copy(update={"excluded": excluded})
    hint = hint_of(failed.model_copy(update={"spec": spec}))
    assert hint == "send data/ with --include data/"


def test_a_missing_module_may_be_own_code_that_was_excluded() -> None:
    excluded = (ExcludedPath(path="data/", rule=".gitignore"),)
    failed = _job(JobState.FAILED, "exit code 1: ModuleNotFoundError: No module named 'data'")
    spec = failed.spec.model_copy(update={"excluded": excluded})
    hint = hint_of(failed.model_copy(update={"spec": spec})) or ""
    assert hint == (
        "data/ was not sent because .gitignore excludes it; if the module 'data' is your own code "
        "there, send it with --include data/; if it is a package, add it to the environment of "
        "the job"
    )


def test_a_folder_that_a_tool_writes_is_not_a_module() -> None:
    excluded = (ExcludedPath(path="wandb/", rule="default"),)
    spec = JobSpec(command=("python",), excluded=excluded)
    hint = hint_for("exit code 1: ModuleNotFoundError: No module named 'wandb'", 1, spec)
    assert "--pip wandb" in str(hint)


def test_a_missing_variable_is_passed_by_name_or_with_its_file() -> None:
    reason = "exit code 1: KeyError: 'API_TOKEN' (train.py:3)"
    spec = JobSpec(command=("python",), excluded=(ExcludedPath(path=".env", rule="default"),))
    assert hint_for(reason, 1, spec) == (
        "if API_TOKEN is an environment variable: a job does not get those of your shell; pass it "
        "with --env API_TOKEN, or all of .env with --env-file .env"
    )
    known = JobSpec(command=("python",), variables={"API_TOKEN": "a"})
    assert hint_for(reason, 1, known) is None
    assert hint_for("exit code 1: KeyError: 'lr' (train.py:3)", 1) is None


_CHURN = ("pyproject.toml", "src/churnkit/__init__.py", "src/churnkit/train.py")


@pytest.mark.parametrize(
    ("command", "module", "files", "expected"),
    [
        (
            ("python", "-m", "churnkit.trian"),
            "churnkit.trian",
            _CHURN,
            "there is no module 'trian' in src/churnkit/ of your code; did you mean 'train'?",
        ),
        (
            ("python", "a.py"),
            "'utils.io'",
            ("a.py", "utils/__init__.py", "utils/paths.py"),
            "there is no module 'io' in utils/ of your code",
        ),
        (
            ("python", "scripts/go.py"),
            "'utils'",
            ("scripts/go.py", "utils/__init__.py"),
            "utils/ was sent, but the code folder is not on the Python path of the script; add "
            "--env PYTHONPATH=., or run the script as a module: retarget run -- python -m "
            "scripts.go",
        ),
        (
            ("python", "go.py"),
            "'tools'",
            ("go.py", "lib/tools.py"),
            "lib/tools.py was sent, but lib/ is not on the Python path of the script; add "
            "--env PYTHONPATH=lib",
        ),
        (
            ("python", "go.py"),
            "'redis'",
            ("go.py", "docker/redis/redis.conf"),
            "docker/redis/ was sent, but it has no Python files; if you mean a package with the "
            "name 'redis', add it to the environment of the job",
        ),
    ],
)
def test_a_missing_module_of_the_users_own_code_is_never_to_be_installed(
    command: tuple[str, ...], module: str, files: tuple[str, ...], expected: str
) -> None:
    reason = f"exit code 1: ModuleNotFoundError: No module named {module} (x.py:1)"
    assert needs_files(reason)
    spec = JobSpec(command=command, arguments_index=2)
    assert hint_for(reason, 1, spec, files) == expected


def test_a_notebook_needs_the_path_from_its_own_folder() -> None:
    reason = "exit code 1: cell 1 of nb/a.ipynb: ModuleNotFoundError: No module named 'utils'"
    hint = hint_for(reason, 1, _SPEC, ("nb/a.ipynb", "utils/__init__.py"))
    assert hint is not None
    assert hint.endswith("add --env PYTHONPATH=..")


@pytest.mark.parametrize(
    ("module", "where", "expected"),
    [
        ("utils.io", "", "../utils/ is outside of the code folder notebooks/, so it was not sent; "
         "use --code .. --env PYTHONPATH=."),
        ("tools", "", "../../src/tools.py is outside of the code folder notebooks/, so it was not "
         "sent; use --code ../.. --env PYTHONPATH=src"),
        ("utils", "cell 1 of a.ipynb: ", "../utils/ is outside of the code folder notebooks/, so "
         "it was not sent; use --code .."),
    ],
)  # fmt: skip
def test_a_missing_module_may_be_outside_of_the_code_folder(
    module: str, where: str, expected: str
) -> None:
    reason = f"exit code 1: {where}ModuleNotFoundError: No module named '{module}'"
    around = Surroundings(folder="notebooks", paths=("../utils/", "../../src/tools.py"))
    spec = _SPEC.model_copy(update={"surroundings": around})
    assert hint_for(reason, 1, spec, ("prep.py",)) == expected


@pytest.mark.parametrize(
    ("path", "where", "expected"),
    [
        (
            "../data/train.csv",
            "(prep.py:3)",
            "../data/train.csv is outside of the code folder notebooks/, and only that is sent; "
            "send the folder above it with --code .. and open 'data/train.csv': paths begin at "
            "that folder",
        ),
        (
            "../data/train.csv",
            "(cell 2 of a.ipynb)",
            "../data/train.csv is outside of the code folder notebooks/, and only that is sent; "
            "send the folder above it with --code ..",
        ),
        (
            "conf/base.yaml",
            "(prep.py:3)",
            "conf/base.yaml is not among the files that were sent; did you mean configs/base.yaml?",
        ),
        (
            "confgis.txt",
            "(cell 2 of nb/a.ipynb)",
            "confgis.txt is not among the files that were sent; did you mean nb/configs.txt?",
        ),
        (
            "../x.csv",
            "(cell 2 of nb/a.ipynb)",
            "../x.csv is not among the files that were sent; the notebook starts in its own folder "
            "there, and relative paths begin there",
        ),
        (
            "ffmpeg",
            "(prep.py:3)",
            "ffmpeg is not among the files that were sent; the script starts in a copy of the code "
            "folder, and relative paths begin there; if ffmpeg is a program, install it on the "
            "target",
        ),
    ],
)
def test_a_missing_file_is_looked_for_among_the_files(path: str, where: str, expected: str) -> None:
    spec = _SPEC.model_copy(update={"surroundings": Surroundings(folder="notebooks")})
    reason = f"{_NO_FILE} '{path}' {where}"
    files = ("configs/base.yaml", "configs/base-2.yaml", "nb/configs.txt", "other/base.yaml")
    assert needs_files(reason)
    assert hint_for(reason, 1, spec, files) == expected


def test_a_pattern_without_a_file_is_explained_by_what_was_not_sent() -> None:
    reason = "exit code 1: ValueError: No objects to concatenate (cell 1 of a.ipynb)"
    around = Surroundings(folder="notebooks", paths=("../data/", "../setup.py"))
    spec = _SPEC.model_copy(update={"surroundings": around})
    assert hint_for(reason, 1, spec) == (
        "if a pattern matched no file: only the code folder notebooks/ is sent, not ../data/; to "
        "send the folder above it, use --code .."
    )
    rows = (
        ExcludedPath(path="data/", rule=".gitignore"),
        ExcludedPath(path=".git/", rule="always"),
    )
    assert hint_for(reason, 1, spec.model_copy(update={"excluded": rows})) == (
        "if a pattern matched no file: only the code folder notebooks/ is sent, without data/; to "
        "send a path, use --include PATH"
    )


@pytest.mark.parametrize(
    ("script", "roots", "command"),
    [
        ("src/churnkit/train.py", ("src",), "retarget run -- python -m churnkit.train"),
        (
            "src/churnkit/train.py",
            (),
            "retarget run --env PYTHONPATH=src -- python -m churnkit.train",
        ),
        ("lib/a.py", (), "retarget run -- python -m lib.a"),
    ],
)
def test_a_script_with_relative_imports_is_run_as_a_module(
    script: str, roots: tuple[str, ...], command: str
) -> None:
    package = OwnPackage(path=".", name="churnkit", roots=roots)
    spec = JobSpec(command=("python", script), arguments_index=2, own_packages=(package,))
    reason = "exit code 1: ImportError: attempted relative import with no known parent package"
    assert needs_files(reason)
    assert (hint_for(reason, 1, spec, (*_CHURN, "lib/a.py")) or "").endswith(f": {command}")
    assert "python -m" not in (hint_for(reason, 1, _SPEC, ("prep.py",)) or "")


def test_a_mistyped_script_of_the_project_is_named() -> None:
    points = {"console_scripts": {"churn-train": "churnkit.train:main"}}
    package = OwnPackage(path=".", name="churnkit", entry_points=points)
    spec = JobSpec(command=("churn-tarin",), own_packages=(package,))
    hint = hint_for("command 'churn-tarin' not found on this machine", 127, spec)
    assert hint == "the project declares no script 'churn-tarin'; did you mean 'churn-train'?"


def test_a_package_to_install_comes_with_the_file_that_may_list_it() -> None:
    reason = "exit code 1: ModuleNotFoundError: No module named 'numpy'"
    hint = hint_for(reason, 1, _SPEC, ("train.py", "requirements.txt"))
    assert hint == (
        "module 'numpy' is not in the job's environment; install it with --pip numpy, or all that "
        "requirements.txt lists with --environment requirements.txt"
    )


_SPEC = JobSpec(command=("python", "prep.py"), arguments_index=2)


def _job(state: JobState, reason: str) -> Job:
    return Job(
        id="1",
        name="a",
        state=state,
        reason=reason,
        version=1,
        spec=JobSpec(command=("python", "a.py")),
        created_at=0.0,
        changed_at=0.0,
    )
