"""Environments from real files."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.core import environments as core
from retarget.core.errors import Invalid
from retarget.sdk.environments import Environment, environment_from


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def conda(folder: Path, text: str) -> dict[str, Any]:
    return Environment.from_file(write(folder, "environment.yml", text)).to_json()


def pip(folder: Path, text: str) -> list[str]:
    return Environment.from_file(write(folder, "requirements.txt", text)).to_json()["pip"]


def refused(environment: Environment) -> str:
    with pytest.raises(Invalid) as caught:
        environment.to_json()
    assert caught.value.field == "environment"
    return str(caught.value)


def test_without_packages_the_interpreter_is_used() -> None:
    assert Environment().to_json() == {"kind": "user", "python": None, "prefer": sys.executable}
    definition = Environment(python=Path("/opt/python3.11/bin/python"), name="mine").to_json()
    assert definition == {
        "kind": "user",
        "python": "/opt/python3.11/bin/python",
        "prefer": sys.executable,
        "name": "mine",
    }
    assert core.Environment.model_validate(definition).digest is None


@pytest.mark.parametrize("version", ["3.11", "3.11.*", "==3.11"])
def test_an_environment_without_packages_is_built_if_a_version_is_named(version: str) -> None:
    empty: dict[str, Any] = {"kind": "system", "channels": [], "conda": [], "pip": [], "name": None}
    assert Environment(python=version).to_json() == empty | {"python": "3.11"}
    assert Environment(python=version, packages=[]).to_json() == empty | {"python": "3.11"}
    assert Environment(packages=[]).to_json() == empty | {"python": None}
    assert "'/bin/x' is not a Python version" in refused(Environment(python="/bin/x", packages=[]))


def test_a_mapping_defines_an_environment() -> None:
    inline = {"python": "3.12", "packages": ["numpy"]}
    assert environment_from(inline) == Environment(python="3.12", packages=["numpy"])
    for wrong, hint in (("package", "did you mean 'packages'?"), ("zzz", "keys are python, ")):
        with pytest.raises(Invalid, match=re.escape(f"unknown key {wrong!r}; {hint}")):
            environment_from({wrong: ["numpy"]})


def test_requirements_are_normalized() -> None:
    definition = Environment(
        packages=["NumPy >= 1.2, <2", "scikit_learn[b,a]", "numpy<2,>=1.2"], python="3.11"
    ).to_json()
    assert definition == {
        "kind": "system",
        "python": "3.11",
        "channels": [],
        "conda": [],
        "pip": ["numpy<2,>=1.2", "scikit-learn[a,b]"],
        "name": None,
    }
    assert core.Environment.model_validate(definition).digest


def test_credentials_are_refused_and_not_repeated(tmp_path: Path) -> None:
    address = "https://alice:s3cret@host/simple"
    file = write(tmp_path, "requirements.txt", f"idna\n--index-url {address}\n")
    channel = write(tmp_path, "conda.yml", f"channels: ['{address}']\ndependencies: [numpy]\n")
    for environment, source in (
        (Environment(requirements=file), "requirements.txt line 2"),
        (Environment(conda=channel), "environment"),
        (Environment(packages=[f"--index-url {address}", "idna"]), "packages"),
    ):
        message = refused(environment)
        assert source in message
        assert "s3cret" not in message
        assert "put them into the uv.toml, pip.conf or .netrc" in message
    line = "--index-url https://__token__:${TOKEN}@host/simple"
    assert pip(tmp_path, f"idna\n{line}\n") == [line, "idna"]


def test_an_environment_is_a_value() -> None:
    assert Environment(packages=["a"]) == Environment(packages=("a",))
    assert hash(Environment(packages=["a"])) == hash(Environment(packages=("a",)))
    with pytest.raises(Invalid, match=r"write packages=\['numpy'\]"):
        Environment(packages="numpy")
    with pytest.raises(Invalid, match="is not a valid name"):
        Environment(name="a b")
    with pytest.raises(Invalid, match=r"unknown type of file; name a conda file"):
        Environment.from_file("environment.json")


@pytest.mark.parametrize("package", ["", "num py", "numpy==", "numpy=1.2", "./x", "x.whl"])
def test_an_invalid_package_is_refused(package: str) -> None:
    assert refused(Environment(packages=["six", package])).startswith("packages: ")
    numbers: Any = [1.26]
    assert "1.26 must be a string" in refused(Environment(packages=numbers))


def test_a_conda_file_is_read(tmp_path: Path) -> None:
    text = """
name: train   # the name is the user's own
channels: [pytorch, conda-forge, nodefaults, pytorch]
dependencies:
  - python=3.11
  - pip=23
  - Scikit-Learn=1.4
  - conda-forge::numpy >=1.2, <2
  - pip:
    - Tqdm
    - -r extra.txt
prefix: /home/me/envs/train
"""
    write(tmp_path, "extra.txt", "--extra-index-url https://host/simple\nrich>=13\n")
    assert conda(tmp_path, text) == {
        "kind": "system",
        "python": "3.11",
        "channels": ["pytorch", "conda-forge"],
        "conda": ["conda-forge::numpy<2,>=1.2", "scikit-learn=1.4"],
        "pip": ["--extra-index-url https://host/simple", "rich>=13", "tqdm"],
        "name": None,
    }


def test_spelling_does_not_change_a_conda_file(tmp_path: Path) -> None:
    one = conda(tmp_path, "dependencies: [b=1, 'A >=1,<2', {pip: [X, y]}, python=3.11]")
    two = conda(
        tmp_path,
        "name: x\nchannels: [conda-forge]\ndependencies:\n- python 3.11.*\n- {pip: [Y, x, y]}\n"
        "- a<2,>=1 # comment\n- B=1.*\n- pip\n",
    )
    assert one == two


def test_channels_matter_only_for_conda_packages(tmp_path: Path) -> None:
    one = conda(tmp_path, "channels: [x]\ndependencies: [python=3.11, {pip: [a]}]")
    assert one["channels"] == []
    assert conda(tmp_path, "dependencies: [numpy]")["channels"] == ["conda-forge"]


@pytest.mark.parametrize(
    ("spec", "python"),
    [
        ("python", None),
        ("python=3.11", "3.11"),
        ("python=3.11.*", "3.11"),
        ("python 3.11.7", "3.11.7"),
        ("python==3.11.7", "3.11.7"),
        ("python>=3.10", ">=3.10"),
        ("python >=3.10, <3.13", "<3.13,>=3.10"),
        ("conda-forge::python=3.12", "3.12"),
        ("python=3.11=*_cpython", "3.11"),
    ],
)
def test_the_python_version_of_a_conda_file_is_extracted(
    tmp_path: Path, spec: str, python: str | None
) -> None:
    definition = conda(tmp_path, f"dependencies: ['{spec}', numpy]")
    assert (definition["python"], definition["conda"]) == (python, ["numpy"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "environment.yml: is empty"),
        ("# only a comment", "must be a table of names and values, not nothing"),
        ("dependencies:\n  - a\n - b", "environment.yml line 3: is not YAML"),
        ("a: [", "is not YAML"),
        ("\0", "is not YAML"),
        ("- a", "not a list"),
        ("just text", "not a string"),
        ("dependencies: numpy", "dependencies: must be a list, not a string"),
        ("name: x", "dependencies: is empty; list packages there"),
        ("dependencies: [3.11]", "item 1: 3.11 is neither a package"),
        ("dependencies: [a, {conda: [b]}]", "item 2: {'conda': ['b']} is neither a package"),
        ("dependencies: [{pip: numpy}]", "item 1: pip: must be a list, not a string"),
        ("dependencies: [{pip: [1]}]", "pip: 1 must be a string, not a int"),
        ("dependencies: [{pip: ['numpy=1']}]", "'numpy=1' is not a requirement"),
        ("dependencies: [{pip: [-e .]}]", "has neither a pyproject.toml nor a setup.py"),
        ("dependencies: ['numpy=']", "item 1: 'numpy=': '=' is not a version"),
        ("dependencies: ['python=3.10|3.11']", "is not a Python version; write 3.11 or >=3.10"),
        ("dependencies: [a]\nchannels: x", "channels: must be a list"),
        ("dependencies: [a]\nchannels: [1]", "channels: 1 must be a string"),
        ("dependencies: [a]\nname: 3", "name: must be a string"),
        ("dependencies: [a]\ndependancies: []", "'dependancies': is unknown; keys are name"),
        ("dependencies: [a]\nvariables: {A: b}", "set them with --env"),
        ("dependencies: [python=3.11, python=3.12]", "requires Python 3.11, but"),
    ],
)
def test_errors_in_a_conda_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "environment.yml", text)
    error = refused(Environment(conda=path))
    assert message in error
    assert str(path) in error


def test_a_requirements_file_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    text = """\
# a comment
--index-url=https://host/simple   # with credentials of its own
-f https://host/wheels
--find-links /shared/wheels
--pre
Numpy == 1.26.0 \\
    --hash=sha256:bbb \\
    --hash sha256:aaa
torch>=2 ; python_version >= "3.8"  # why
Requests[Socks,security] ~= 2.31
pkg @ https://host/pkg-1.0.tar.gz#sha256=abc
git+https://host/x.git@main#egg=x
zope.interface
a\\
b
"""
    assert pip(tmp_path, text) == [
        "--index-url https://host/simple",
        "--find-links https://host/wheels",
        "--find-links /shared/wheels",
        "--pre",
        "ab",
        "git+https://host/x.git@main#egg=x",
        "numpy==1.26.0 --hash=sha256:aaa --hash=sha256:bbb",
        "pkg @ https://host/pkg-1.0.tar.gz#sha256=abc",
        "requests[security,socks]~=2.31",
        'torch>=2 ; python_version >= "3.8"',
        "zope-interface",
    ]


def test_included_files_are_relative_to_the_including_file(tmp_path: Path) -> None:
    write(tmp_path, "sub/more.txt", "-r deep/er.txt\n--constraint=../limits.txt\nscipy\n")
    write(tmp_path, "sub/deep/er.txt", "pandas\r\n")
    write(tmp_path, "limits.txt", "SciPy<2\nnumpy<2\n")
    assert pip(tmp_path, "numpy\n-rsub/more.txt\n") == [
        "numpy", "numpy<2", "pandas", "scipy", "scipy<2",
    ]  # fmt: skip


def test_a_file_may_be_included_twice_but_not_by_itself(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "-r b.txt\nsix")
    write(tmp_path, "b.txt", "six")
    assert pip(tmp_path, "-r a.txt\n-r b.txt") == ["six"]
    write(tmp_path, "b.txt", "-r requirements.txt")
    with pytest.raises(Invalid, match=r"requirements\.txt: includes itself"):
        pip(tmp_path, "-r a.txt")


def test_order_case_blanks_and_comments_do_not_matter(tmp_path: Path) -> None:
    one = pip(tmp_path, "NumPy>=1,<2\npandas\n")
    assert one == pip(tmp_path, "# hi\n\npandas # x\r\n  numpy <2, >=1\nPandas")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("six\nnum py\n", "line 2: 'num py' is not a requirement"),
        ("six\n\na \\\n b\n", "line 3: 'a  b' is not a requirement"),
        ("numpy=1.2", "write numpy, numpy==1.26 or numpy>=1.2"),
        ("-e .", "has neither a pyproject.toml nor a setup.py; name the folder of a package"),
        ("--editable=./x", "/x was not found"),
        ("-e git+https://host/x", "remove the -e"),
        ("./pkg", "/pkg was not found"),
        ("../x.tar.gz", "x.tar.gz was not found"),
        ("wheels/x-1.whl", "wheels/x-1.whl was not found"),
        ("x @ ./y", "/y was not found"),
        ("-f ./wheels", "'./wheels' is a path on this machine"),
        ("--frobnicate x", "unknown option --frobnicate; options are -r, -c"),
        ("--index-url", "--index-url takes a value"),
        ("--pre yes", "--pre takes no value"),
        ("-r nowhere.txt", "nowhere.txt: cannot be read: No such file or directory"),
        ("-r https://host/r.txt", "download it and name the file"),
    ],
)
def test_errors_in_a_requirements_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "requirements.txt", text)
    error = refused(Environment(requirements=path))
    assert message in error
    assert str(tmp_path) in error


def test_a_constraint_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "limits.txt", "# all\nscipy<2\n")
    with pytest.raises(
        Invalid, match=r"limits\.txt line 2: 'scipy<2' constrains a package that is not"
    ):
        pip(tmp_path, "numpy\n-c limits.txt\n")


def test_a_pyproject_gives_dependencies_and_python(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "pyproject.toml",
        '[project]\nname="x"\nrequires-python = ">=3.10, <4"\ndependencies = ["B_c", "a>1"]\n',
    )
    definition = Environment.from_file(path).to_json()
    assert (definition["python"], definition["pip"]) == ("<4,>=3.10", ["a>1", "b-c"])
    assert Environment.from_file(path, python="3.12").to_json()["python"] == "3.12"
    assert "requires Python 3.9, but" in refused(Environment(pyproject=path, python="3.9"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[project", "is not TOML"),
        ("[tool.x]\na=1", "has no [project] table"),
        ("tool = 1", "has no [project] table"),
        ("[tool.poetry]\nname='a'", "`poetry export -o requirements.txt`"),
        ("project = 1", "project: must be a table"),
        ("[project]\ndependencies = 'a'", "project.dependencies: must be a list, not a string"),
        ("[project]\ndependencies = [1]", "project.dependencies: 1 must be a string"),
        ("[project]\ndependencies = ['-r x']", "project.dependencies: '-r x' is not a requirement"),
        ("[project]\ndynamic = ['dependencies']", "are dynamic"),
        ("[project]\nrequires-python = 3.11", "requires-python: 3.11 must be a string"),
        ("[project]\nrequires-python = 'new'", "'new' is not a Python version"),
    ],
)
def test_errors_in_a_pyproject_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "pyproject.toml", text)
    assert message in refused(Environment(pyproject=path))


@pytest.mark.parametrize("name", ["e.yml", "r.txt", "p.toml"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert "cannot be read: No such file" in refused(Environment.from_file(path))
    path.mkdir()
    assert "cannot be read: Is a directory" in refused(Environment.from_file(path))
    path.rmdir()
    path.write_bytes(b"caf\xe9")
    assert "is not UTF-8 text" in refused(Environment.from_file(path))
    path.write_bytes("numpy".encode("utf-16"))
    assert str(path) in refused(Environment.from_file(path))
    os.truncate(path, 1 << 30)
    assert "has more than 10,000,000 bytes" in refused(Environment.from_file(path))


def test_several_sources_add_up(tmp_path: Path) -> None:
    definition = Environment(
        conda=write(tmp_path, "e.yml", "dependencies: [python=3.11, numpy]"),
        requirements=write(tmp_path, "r.txt", "\ufeffrich"),
        pyproject=write(tmp_path, "p.toml", "[project]\nrequires-python='>=3.11.4'"),
        packages=["six"],
        python="3.11.9",
    ).to_json()
    assert (definition["python"], definition["conda"], definition["pip"]) == (
        "3.11.9",
        ["numpy"],
        ["rich", "six"],
    )


def test_a_path_is_not_a_version_of_python() -> None:
    error = refused(Environment(packages=["six"], python="/usr/bin/python3"))
    assert "'/usr/bin/python3' is not a Python version" in error


@given(st.permutations(["numpy>=1", "Pandas", "scikit_learn<2", "rich ; python_version>'3'"]))
def test_the_order_of_packages_does_not_change_the_digest(packages: list[str]) -> None:
    first = Environment(packages=sorted(packages)).to_json()
    assert json.dumps(Environment(packages=packages).to_json()) == json.dumps(first)


@given(content=st.binary(max_size=60), suffix=st.sampled_from([".yml", ".txt", ".toml"]))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(content)
    try:
        definition = Environment.from_file(path).to_json()
    except Invalid as error:
        message = str(error)
    else:
        message = str(path)
        core.Environment.model_validate(definition)
    assert str(path.parent) in message


def test_an_image_is_taken_by_its_name() -> None:
    definition = Environment(image="python:3.12-slim", packages=["IDNA>=3"]).to_json()
    assert (definition["kind"], definition["image"], definition["pip"]) == (
        "image", "python:3.12-slim", ["idna>=3"],
    )  # fmt: skip
    core.Environment.model_validate(definition)


def test_a_dockerfile_includes_its_build_context(tmp_path: Path) -> None:
    write(tmp_path, "docker/Dockerfile", "FROM python\nCOPY src /src\n")
    write(tmp_path, "src/a.py", "")
    environment = Environment(dockerfile=tmp_path / "docker/Dockerfile", context=tmp_path)
    definition = environment.to_json()
    assert (definition["kind"], definition["dockerfile"]) == ("image", "docker/Dockerfile")
    scan = environment.scan_context()
    assert scan is not None
    assert definition["context"] == scan.manifest.digest
    assert sorted(entry.path for entry in scan.manifest.entries) == [
        "docker/Dockerfile", "src/a.py",
    ]  # fmt: skip
    before = core.Environment.model_validate(definition).digest
    write(tmp_path, "src/a.py", "changed")
    assert core.Environment.model_validate(environment.to_json()).digest != before


@pytest.mark.parametrize(
    ("rules", "included"),
    [
        ("", "a.py big/x big/y keep/big/z"),
        ("big\n", "a.py keep/big/z"),
        ("big/\n# a comment\n\n", "a.py keep/big/z"),
        ("**/big\n", "a.py"),
        ("*.py\n", "big/x big/y keep/big/z"),
        ("*\n!big/x\n", "big/x"),
        ("big\n!big/y\n", "a.py big/y keep/big/z"),
        ("/a.py\n./big/x\n", "big/y keep/big/z"),
    ],
)
def test_a_context_follows_the_rules_of_docker(tmp_path: Path, rules: str, included: str) -> None:
    for path in ("a.py", "big/x", "big/y", "keep/big/z"):
        write(tmp_path, path, path)
    write(tmp_path, "Dockerfile", "FROM python\n")
    write(tmp_path, ".dockerignore", rules)
    write(tmp_path, ".gitignore", "*\n")
    scan = Environment(dockerfile=tmp_path / "Dockerfile").scan_context()
    assert scan is not None
    paths = {entry.path for entry in scan.manifest.entries} - {".dockerignore", ".gitignore"}
    assert paths == {"Dockerfile", *included.split()}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "a", "dockerfile": "D"}, "image: cannot be combined with dockerfile"),
        ({"context": "."}, "context: needs a dockerfile"),
        ({"image": " "}, "image: is empty"),
        ({"image": 3}, "image: 3 is not a string"),
        ({"dockerfile": 3}, "dockerfile: 3 is not a path"),
    ],
)
def test_errors_in_an_image_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Environment(**fields)


def test_a_dockerfile_that_is_missing_or_outside_the_context_is_named(tmp_path: Path) -> None:
    assert "file 'nope' not found" in refused(Environment(dockerfile="nope"))
    write(tmp_path, "Dockerfile", "FROM python\n")
    (tmp_path / "inner").mkdir()
    elsewhere = Environment(dockerfile=tmp_path / "Dockerfile", context=tmp_path / "inner")
    assert "is not in the context" in refused(elsewhere)
