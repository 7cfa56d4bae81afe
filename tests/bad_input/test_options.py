"""`retarget run` with wrong options: exit code 2, one sentence, nothing submitted."""

import os
from pathlib import Path

import pytest

from tests.bad_input.conftest import Cli, unchanged
from tests.server.conftest import Api

LONG = "x" * 300
NINES = "9" * 30
NO_DURATION = "is not a duration; write 90s, 15m or 1h30m"
NO_MEMORY = "is not an amount of memory; write 512m, 2g or 1.5GiB"
NO_NAME = "is not a valid name; use 1 to 63 letters"


@pytest.mark.parametrize(
    ("option", "values", "sentence"),
    [
        ("--cpus", ["-1", "-1.0"], "cpus: must be greater than 0, not -1\n"),
        ("--cpus", ["0"], "cpus: must be greater than 0, not 0\n"),
        ("--cpus", ["nan", "inf", "1e400"], "cpus: must be a finite number"),
        ("--cpus", ["10000"], "cpus: the job requests 10000 per node; target 'local' has "),
        ("--cpus", [NINES], "cpus: the job requests 1e+30"),
        ("--memory", ["3x", "-1", "nan", "0", "", "1e5", f"{NINES}g", "0.1"], NO_MEMORY),
        ("--memory", ["1k", "1000"], "per node; the minimum is 1.0 MiB"),
        ("--memory", ["900t"], "memory: the job requests 900.0 TiB per node; target"),
        ("--gpus", ["-1"], "gpus: must be greater than or equal to 0, not -1"),
        ("--gpus", ["64"], "gpus: the job requests 64 per node; target 'local' has "),
        ("--gpus", [NINES], "gpus: the number is too large; pass an integer"),
        ("--nodes", ["-1", "0"], "nodes: must be greater than or equal to 1"),
        ("--nodes", ["2"], "nodes: the job requests 2; target 'local' has 1"),
        ("--processes-per-node", ["0"], "processes_per_node: must be greater than or equal"),
        ("--processes-per-node", ["1025"], "processes_per_node: must be less than or equal"),
        ("--retries", ["-1"], "retries: must be greater than or equal to 0"),
        ("--retries", ["101"], "retries: must be less than or equal to 100"),
        ("--priority", ["1001"], "priority: must be less than or equal to 1000"),
        ("--timeout", ["-1", "0", "nan", "soon", "1h-5", f"{NINES}d", "", "1e5"], NO_DURATION),
        ("--timeout", ["9" * 400], NO_DURATION),
        ("--name", ["a/b", "a\nb", "\x1b[31m", LONG, "", " ", "ü", "-x", ".."], NO_NAME),
        ("--experiment", ["", " "], "the name of an experiment must have 1 to 500 char"),
        ("--experiment", ["a\nb", "\x1b[31m"], "contains characters that cannot be printed"),
        ("--display-name", ["", " ", "a\nb", "\x1b[31m"], "a display name must have 1 to 500"),
        ("--description", ["x" * 8001], "description: must have at most 8,000 characters"),
        ("--tag", ["", "a", "=b"], "is not K=V"),
        ("--tag", ["a*b=c", "..=x"], "is not a valid key; use 1 to 250 letters"),
        ("--tag", ["mlflow.user=x"], "tags: 'mlflow.user' is a tag of MLflow itself"),
        ("--target", ["mars"], "target: no target named 'mars'; this server has local"),
        ("--target", ["", "a/b", "\x1b"], NO_NAME),
        ("-e", ["nope", "\x1b[31m"], "is neither a file nor a registered environment"),
        ("--environment", [""], "the name of an environment is empty"),
        ("--environment", ["a/b", "none.yml"], "environment file '"),
        ("--env", ["=x", ""], "is not K=V"),
        ("--env", ["UNSET", "\x1b[31m"], "is not set in this shell"),
        ("--env-file", ["none.env", "", ".", LONG], "--env-file: cannot read "),
        ("--env", [f"A={'x' * 140_000}"], "variables.A: too long: 140,000 bytes, at most "),
        ("--env", ["RETARGET_JOB=x", "AZUREML_RUN_ID=x"], "is set by Retarget"),
        ("--cpu", ["2"], "has no option '--cpu=2'; did you mean --cpus?"),
        ("--pip", ["", "a b", "a\nb", "numpy=>1"], "is not a requirement"),
        ("--pip", ["./x", "/x"], "x was not found; name the folder of a package"),
        ("--python", ["/nope/python"], "python: /nope/python does not exist on this machine"),
        ("--python", [f"/{LONG}"], f"python: /{LONG} does not exist on this machine"),
        ("--python", [f"/{'x' * 5000}"], "xxx does not exist on this machine"),
        ("--python", ["python3", "./x", " x", "\x1b"], "python: "),
        ("--python", ["/etc", "/etc/passwd"], "is not an executable file"),
        ("--python", ["/bin/true", "/bin/ls"], "does not behave like a Python interpreter"),
    ],
)
def test_a_wrong_option_is_named(
    api: Api, retarget: Cli, code: Path, option: str, values: list[str], sentence: str
) -> None:
    with unchanged(api, code=False):
        for value in values:
            result = retarget("run", f"{option}={value}", "hello.py")
            assert sentence in result.error_line()
            assert result.code == 2


def test_large_files_are_not_sent_for_a_refused_job(api: Api, retarget: Cli, code: Path) -> None:
    (code / "data").write_bytes(os.urandom(5 * 2**20))
    with unchanged(api):
        for option in ("--cpus=-1", "--target=mars", "--python=/nope"):
            assert retarget("run", option, "hello.py").error_line()


@pytest.mark.parametrize("option", ["--gpus", "--nodes", "--retries", "--priority", "--cpus"])
@pytest.mark.parametrize("value", ["x", "", "1,5", "0x10", "²"])
def test_an_invalid_number_is_reported_with_its_option(
    retarget: Cli, code: Path, option: str, value: str
) -> None:
    result = retarget("run", option, value, "hello.py")
    assert (result.code, result.out) == (2, b"")
    assert f"error: invalid value for '{option}': '{value}' is not a" in result.err
    assert "Traceback" not in result.err


IMPOSTORS = {
    "old": ("#!/bin/sh\nprintf '3 6'\n", "is Python 3.6; 3.8 or newer is needed"),
    "other": ("#!/bin/sh\necho I am Ruby\n", "does not behave like a Python interpreter"),
    "failing": ("#!/bin/sh\nexit 3\n", "does not behave like a Python interpreter"),
    "raw": ("#!/bin/sh\nprintf '\\377'\n", "does not behave like a Python interpreter"),
    "broken": ("#!/no/such/interpreter\n", "does not behave like a Python interpreter"),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_a_program_that_is_not_a_python_interpreter_is_refused(
    api: Api, retarget: Cli, code: Path, kind: str
) -> None:
    text, sentence = IMPOSTORS[kind]
    (code / "python").write_text(text)
    (code / "python").chmod(0o755)
    with unchanged(api, code=False):
        message = retarget("run", "--python", code / "python", "hello.py").error_line()
    assert f"python: {code / 'python'} {sentence}" in message


FILES: list[tuple[str, bytes, str]] = [
    ("c.yml", b"dependencies:\n - [a\n", "c.yml line 3: is not YAML: "),
    ("c.yml", b"dependencies: {a: 1}\n", "c.yml: dependencies: must be a list, not a table"),
    ("c.yml", b"- a\n", "c.yml: must be a table of names and values, not a list"),
    ("c.yml", b"\xff\xfe", "c.yml: is not UTF-8 text"),
    ("c.yml", b"", "c.yml: is empty"),
    ("c.yml", b"a: &a [*a]\n", "c.yml: 'a': is unknown"),
    ("c.yml", b"[" * 5000, "c.yml: is not YAML"),
    ("c.yml", b"dependencies: !!python/object:os.system {}\n", "c.yml line 1: is not YAML"),
    ("c.yml", b"dependencies: [numpy==, 3]\n", "c.yml: dependencies, item "),
    ("p.toml", b"[project\n", "p.toml: is not TOML: "),
    ("p.toml", b'[project]\ndependencies = "x"\n', "project.dependencies: must be a list"),
    ("p.toml", b"[tool]\n", "p.toml: has no [project] table"),
    ("p.toml", b"a = " + b"[" * 5000, "p.toml: is not TOML"),
    ("r.txt", b"numpy=>1\n", "r.txt line 1: 'numpy=>1' is not a requirement"),
    ("r.txt", b"numpy\n-r none.txt\n", "none.txt: cannot be read: No such file"),
    ("r.txt", b"-r r.txt\n", "r.txt: includes itself"),
    ("r.txt", b"--zzz\n", "r.txt line 1: unknown option --zzz"),
    ("r.txt", b"a\0b\n", r"r.txt line 1: 'a\x00b' is not a requirement"),
    ("r.txt", b"numpy \x1b[31m\n", r"r.txt line 1: 'numpy \x1b[31m' is not a requirement"),
    ("x.json", b"{}", "x.json: unknown type of file; name a conda file (.yml"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), FILES)
def test_an_error_in_an_environment_file_names_file_and_line(
    api: Api, retarget: Cli, code: Path, name: str, content: bytes, sentence: str
) -> None:
    (code / name).write_bytes(content)
    with unchanged(api, code=False):
        assert sentence in retarget("run", "-e", name, "hello.py").error_line()


def test_a_name_in_use_is_refused(api: Api, retarget: Cli, code: Path) -> None:
    api.submit("true", name="taken")
    api.wait("taken")
    message = retarget("run", "--name", "taken", "--", "true").error_line()
    assert "a job named 'taken' exists already; choose another name or delete it" in message


@pytest.mark.parametrize("name", ["\x1b[31m", "", " ", "a/b", LONG, "..", "%00", "?x=1", "#", "ü"])
@pytest.mark.parametrize("noun", ["job", "experiment", "model", "environment", "target"])
def test_an_unknown_name_is_reported(retarget: Cli, noun: str, name: str) -> None:
    assert "name" in retarget(noun, "show", name).error_line()
