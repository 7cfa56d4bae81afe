"""`retarget run` with options that are wrong: exit code 2, one sentence, nothing submitted."""

import os
from pathlib import Path

import pytest

from tests.bad_input.conftest import Cli, unchanged
from tests.server.conftest import Api

LONG = "x" * 300
NINES = "9" * 30
NO_DURATION = "is not a duration; write 90s, 15m or 1h30m"
NO_MEMORY = "is not an amount of memory; write 512m, 2g or 1.5GiB"
NO_NAME = "is not a name; use 1 to 63 letters"


@pytest.mark.parametrize(
    ("option", "values", "sentence"),
    [
        ("--cpus", ["-1", "0"], "cpus: must be greater than 0, not "),
        ("--cpus", ["nan", "inf", "1e400"], "cpus: must be a finite number"),
        ("--cpus", ["10000"], "cpus: the job asks for 10000 on each node; target 'local' has "),
        ("--cpus", [NINES], "cpus: the job asks for 1e+30"),
        ("--memory", ["3x", "-1", "nan", "0", "", "1e5", f"{NINES}g", "0.1"], NO_MEMORY),
        ("--memory", ["900t"], "memory: the job asks for 900.0 TiB on each node; target"),
        ("--gpus", ["-1"], "gpus: must be greater than or equal to 0, not -1"),
        ("--gpus", ["64"], "gpus: the job asks for 64; target 'local' has "),
        ("--gpus", [NINES], "gpus: that number is too large; give a whole number"),
        ("--nodes", ["-1", "0"], "nodes: must be greater than or equal to 1"),
        ("--nodes", ["2"], "nodes: the job asks for 2; target 'local' has 1"),
        ("--processes-per-node", ["0"], "processes_per_node: must be greater than or equal"),
        ("--processes-per-node", ["1025"], "processes_per_node: must be less than or equal"),
        ("--retries", ["-1"], "retries: must be greater than or equal to 0"),
        ("--retries", ["101"], "retries: must be less than or equal to 100"),
        ("--priority", ["1001"], "priority: must be less than or equal to 1000"),
        ("--timeout", ["-1", "0", "nan", "soon", "1h-5", f"{NINES}d", "", "1e5"], NO_DURATION),
        ("--timeout", ["9" * 400], NO_DURATION),
        ("--name", ["a/b", "a\nb", "\x1b[31m", LONG, "", " ", "ü", "-x", ".."], NO_NAME),
        ("--experiment", ["", " "], "experiment: an experiment has a name of 1 to 500 char"),
        ("--experiment", ["a\nb", "\x1b[31m"], "has characters that cannot be shown"),
        ("--target", ["mars"], "target: no target named 'mars'; this server has local"),
        ("--target", ["", "a/b", "\x1b"], NO_NAME),
        ("--env", ["nope", "\x1b[31m"], "is neither a file here nor a registered environment"),
        ("--env", [""], "the name of an environment is empty"),
        ("--env", ["a/b", "none.yml"], "there is no environment file"),
        ("--set-env", ["A", "=x", ""], "is not K=V"),
        ("--set-env", [f"A={'x' * 140_000}"], "env.A: 140,000 bytes are too long"),
        ("--set-env", ["RETARGET_JOB=x", "AZUREML_RUN_ID=x"], "tells a script about its own job"),
        ("--cpu", ["2"], "has no option '--cpu=2'; did you mean --cpus?"),
        ("--pip", ["", "a b", "a\nb", "numpy=>1"], "is not a requirement"),
        ("--pip", ["./x", "/x"], "is a path on this machine, which the target cannot see"),
        ("--python", ["/nope/python", f"/{LONG}"], "python: there is no /"),
        ("--python", [f"/{'x' * 5000}"], "python: there is no /"),
        ("--python", ["python3", "./x", " x", "\x1b"], "python: "),
        ("--python", ["3.11"], "is a version, which goes with packages"),
        ("--python", ["/etc", "/etc/passwd"], "is not an executable file"),
        ("--python", ["/bin/true", "/bin/ls"], "does not answer like a Python interpreter"),
    ],
)
def test_a_wrong_option_is_named(
    api: Api, retarget: Cli, code: Path, option: str, values: list[str], sentence: str
) -> None:
    with unchanged(api, code=False):
        for value in values:
            done = retarget("run", f"{option}={value}", "hello.py")
            assert sentence in done.sentence()
            assert done.code == 2


def test_much_is_not_sent_for_a_job_that_is_refused(api: Api, retarget: Cli, code: Path) -> None:
    (code / "data").write_bytes(os.urandom(5 * 2**20))
    with unchanged(api):
        for option in ("--cpus=-1", "--target=mars", "--python=/nope"):
            assert retarget("run", option, "hello.py").sentence()


@pytest.mark.parametrize("option", ["--gpus", "--nodes", "--retries", "--priority", "--cpus"])
@pytest.mark.parametrize("value", ["x", "", "1,5", "0x10", "²"])
def test_what_is_no_number_is_told_with_its_option(
    retarget: Cli, code: Path, option: str, value: str
) -> None:
    done = retarget("run", option, value, "hello.py")
    assert (done.code, done.out) == (2, b"")
    assert f"Invalid value for '{option}': '{value}' is not a" in done.err
    assert "Traceback" not in done.err


POSING = {
    "old": ("#!/bin/sh\nprintf '3 6'\n", "is Python 3.6; 3.8 or newer is needed"),
    "other": ("#!/bin/sh\necho I am Ruby\n", "does not answer like a Python interpreter"),
    "failing": ("#!/bin/sh\nexit 3\n", "does not answer like a Python interpreter"),
    "raw": ("#!/bin/sh\nprintf '\\377'\n", "does not answer like a Python interpreter"),
    "broken": ("#!/no/such/interpreter\n", "does not answer like a Python interpreter"),
}


@pytest.mark.parametrize("kind", POSING)
def test_what_poses_as_python_is_found_out(api: Api, retarget: Cli, code: Path, kind: str) -> None:
    text, sentence = POSING[kind]
    (code / "python").write_text(text)
    (code / "python").chmod(0o755)
    with unchanged(api, code=False):
        said = retarget("run", "--python", code / "python", "hello.py").sentence()
    assert f"python: {code / 'python'} {sentence}" in said


FILES: list[tuple[str, bytes, str]] = [
    ("c.yml", b"dependencies:\n - [a\n", "c.yml line 3: is not YAML: "),
    ("c.yml", b"dependencies: {a: 1}\n", "c.yml: dependencies: must be a list, not a table"),
    ("c.yml", b"- a\n", "c.yml: must be a table of names and values, not a list"),
    ("c.yml", b"\xff\xfe", "c.yml: is not UTF-8 text"),
    ("c.yml", b"", "c.yml: is empty"),
    ("c.yml", b"a: &a [*a]\n", "c.yml: 'a': is not known"),
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
    ("r.txt", b"--zzz\n", "r.txt line 1: the option --zzz is not known"),
    ("r.txt", b"a\0b\n", r"r.txt line 1: 'a\x00b' is not a requirement"),
    ("r.txt", b"numpy \x1b[31m\n", r"r.txt line 1: 'numpy \x1b[31m' is not a requirement"),
    ("x.json", b"{}", "x.json: what is it? name a conda file .yml"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), FILES)
def test_a_malformed_environment_file_is_told_by_file_and_line(
    api: Api, retarget: Cli, code: Path, name: str, content: bytes, sentence: str
) -> None:
    (code / name).write_bytes(content)
    with unchanged(api, code=False):
        assert sentence in retarget("run", "--env", name, "hello.py").sentence()


def test_a_name_that_is_taken_is_told(api: Api, retarget: Cli, code: Path) -> None:
    api.submit("true", name="taken")
    api.wait("taken")
    said = retarget("run", "--name", "taken", "--", "true").sentence()
    assert "a job named 'taken' exists already; choose another name or delete it" in said


@pytest.mark.parametrize("name", ["\x1b[31m", "", " ", "a/b", LONG, "..", "%00", "?x=1", "#", "ü"])
@pytest.mark.parametrize("noun", ["job", "experiment", "model", "env", "target"])
def test_a_name_that_nothing_has_is_told(retarget: Cli, noun: str, name: str) -> None:
    assert "name" in retarget(noun, "show", name).sentence()
