"""Environments as users write them, with real files."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.core import environments as core
from retarget.core.errors import Invalid
from retarget.sdk.environments import Environment


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


def test_without_packages_it_is_the_users_own() -> None:
    assert Environment().to_json() == {"kind": "user", "python": None, "prefer": sys.executable}
    given = Environment(python=Path("/opt/python3.11/bin/python"), name="mine").to_json()
    assert given == {
        "kind": "user",
        "python": "/opt/python3.11/bin/python",
        "prefer": sys.executable,
        "name": "mine",
    }
    assert core.Environment.model_validate(given).digest is None


@pytest.mark.parametrize("version", ["3.11", ">=3.10", "3.11.*", "==3.11"])
def test_a_version_without_packages_is_refused(version: str) -> None:
    assert "is a version, which goes with packages" in refused(Environment(python=version))


def test_packages_are_named_one_way() -> None:
    given = Environment(
        packages=["NumPy >= 1.2, <2", "scikit_learn[b,a]", "numpy<2,>=1.2"], python="3.11"
    ).to_json()
    assert given == {
        "kind": "system",
        "python": "3.11",
        "channels": [],
        "conda": [],
        "pip": ["numpy<2,>=1.2", "scikit-learn[a,b]"],
        "name": None,
    }
    assert core.Environment.model_validate(given).digest


def test_an_environment_is_a_value() -> None:
    assert Environment(packages=["a"]) == Environment(packages=("a",))
    assert hash(Environment(packages=["a"])) == hash(Environment(packages=("a",)))
    with pytest.raises(Invalid, match=r"write packages=\['numpy'\]"):
        Environment(packages="numpy")
    with pytest.raises(Invalid, match="is not a name"):
        Environment(name="a b")
    with pytest.raises(Invalid, match=r"what is it\? name a conda file"):
        Environment.from_file("environment.json")


@pytest.mark.parametrize("package", ["", "num py", "numpy==", "numpy=1.2", "-e .", "./x", "x.whl"])
def test_a_package_that_is_none_is_refused(package: str) -> None:
    assert refused(Environment(packages=["six", package])).startswith("packages: ")
    numbers: Any = [1.26]
    assert "1.26 must be a text" in refused(Environment(packages=numbers))


def test_a_conda_file_is_taken_apart(tmp_path: Path) -> None:
    text = """
name: train   # its name is the user's, not ours
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


def test_channels_count_only_where_conda_packages_come_from_them(tmp_path: Path) -> None:
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
def test_the_python_of_a_conda_file_is_taken_out(
    tmp_path: Path, spec: str, python: str | None
) -> None:
    found = conda(tmp_path, f"dependencies: ['{spec}', numpy]")
    assert (found["python"], found["conda"]) == (python, ["numpy"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "environment.yml: is empty"),
        ("# only a comment", "must be a table of names and values, not nothing"),
        ("dependencies:\n  - a\n - b", "environment.yml line 3: is not YAML"),
        ("a: [", "is not YAML"),
        ("\0", "is not YAML"),
        ("- a", "not a list"),
        ("just text", "not a text"),
        ("dependencies: numpy", "dependencies: must be a list, not a text"),
        ("name: x", "dependencies: is empty; list packages there"),
        ("dependencies: [3.11]", "item 1: 3.11 is neither a package"),
        ("dependencies: [a, {conda: [b]}]", "item 2: {'conda': ['b']} is neither a package"),
        ("dependencies: [{pip: numpy}]", "item 1: pip: must be a list, not a text"),
        ("dependencies: [{pip: [1]}]", "pip: 1 must be a text, not a int"),
        ("dependencies: [{pip: ['numpy=1']}]", "'numpy=1' is not a requirement"),
        ("dependencies: [{pip: [-e .]}]", "is a path on this machine"),
        ("dependencies: ['numpy=']", "item 1: 'numpy=': '=' is not a version"),
        ("dependencies: ['python=3.10|3.11']", "is not a Python version; write 3.11 or >=3.10"),
        ("dependencies: [a]\nchannels: x", "channels: must be a list"),
        ("dependencies: [a]\nchannels: [1]", "channels: 1 must be a text"),
        ("dependencies: [a]\nname: 3", "name: must be a text"),
        ("dependencies: [a]\ndependancies: []", "'dependancies': is not known; known are name"),
        ("dependencies: [a]\nvariables: {A: b}", "set them with --set-env"),
        ("dependencies: [python=3.11, python=3.12]", "asks for Python 3.11, but"),
    ],
)
def test_what_is_wrong_with_a_conda_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "environment.yml", text)
    told = refused(Environment(conda=path))
    assert message in told
    assert str(path) in told


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


def test_included_files_are_followed_from_where_they_are_named(tmp_path: Path) -> None:
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


def test_order_case_blanks_and_comments_do_not_change_what_is_asked(tmp_path: Path) -> None:
    one = pip(tmp_path, "NumPy>=1,<2\npandas\n")
    assert one == pip(tmp_path, "# hi\n\npandas # x\r\n  numpy <2, >=1\nPandas")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("six\nnum py\n", "line 2: 'num py' is not a requirement"),
        ("six\n\na \\\n b\n", "line 3: 'a  b' is not a requirement"),
        ("numpy=1.2", "write numpy, numpy==1.26 or numpy>=1.2"),
        ("-e .", "line 1: '.' is a path on this machine"),
        ("--editable=./x", "is a path on this machine"),
        ("-e git+https://host/x", "write it without -e"),
        ("./pkg", "'./pkg' is a path on this machine"),
        ("../x.tar.gz", "is a path on this machine"),
        ("wheels/x-1.whl", "is a path on this machine"),
        ("x @ ./y", "is a path on this machine"),
        ("-f ./wheels", "'./wheels' is a path on this machine"),
        ("--frobnicate x", "the option --frobnicate is not known; known are -r, -c"),
        ("--index-url", "--index-url takes a value"),
        ("--pre yes", "--pre takes no value"),
        ("-r nowhere.txt", "nowhere.txt: cannot be read: No such file or directory"),
        ("-r https://host/r.txt", "fetch it and name the file"),
    ],
)
def test_what_is_wrong_with_a_requirements_file_is_named(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, "requirements.txt", text)
    told = refused(Environment(requirements=path))
    assert message in told
    assert str(tmp_path) in told


def test_a_constraint_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "limits.txt", "# all\nscipy<2\n")
    with pytest.raises(Invalid, match=r"limits\.txt line 2: 'scipy<2' is about a package that no"):
        pip(tmp_path, "numpy\n-c limits.txt\n")


def test_a_pyproject_gives_dependencies_and_python(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "pyproject.toml",
        '[project]\nname="x"\nrequires-python = ">=3.10, <4"\ndependencies = ["B_c", "a>1"]\n',
    )
    found = Environment.from_file(path).to_json()
    assert (found["python"], found["pip"]) == ("<4,>=3.10", ["a>1", "b-c"])
    assert Environment.from_file(path, python="3.12").to_json()["python"] == "3.12"
    assert "asks for Python 3.9, but" in refused(Environment(pyproject=path, python="3.9"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("[project", "is not TOML"),
        ("[tool.x]\na=1", "has no [project] table"),
        ("project = 1", "project: must be a table"),
        ("[project]\ndependencies = 'a'", "project.dependencies: must be a list, not a text"),
        ("[project]\ndependencies = [1]", "project.dependencies: 1 must be a text"),
        ("[project]\ndependencies = ['-r x']", "project.dependencies: '-r x' is not a requirement"),
        ("[project]\ndynamic = ['dependencies']", "are dynamic"),
        ("[project]\nrequires-python = 3.11", "requires-python: 3.11 must be a text"),
        ("[project]\nrequires-python = 'new'", "'new' is not a Python version"),
    ],
)
def test_what_is_wrong_with_a_pyproject_is_named(tmp_path: Path, text: str, message: str) -> None:
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


def test_several_sources_add_up(tmp_path: Path) -> None:
    found = Environment(
        conda=write(tmp_path, "e.yml", "dependencies: [python=3.11, numpy]"),
        requirements=write(tmp_path, "r.txt", "\ufeffrich"),
        pyproject=write(tmp_path, "p.toml", "[project]\nrequires-python='>=3.11.4'"),
        packages=["six"],
        python="3.11.9",
    ).to_json()
    assert (found["python"], found["conda"], found["pip"]) == ("3.11.9", ["numpy"], ["rich", "six"])


def test_a_path_is_no_version_of_python() -> None:
    told = refused(Environment(packages=["six"], python="/usr/bin/python3"))
    assert "'/usr/bin/python3' is not a Python version" in told


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
        found = Environment.from_file(path).to_json()
    except Invalid as error:
        message = str(error)
    else:
        message = str(path)
        core.Environment.model_validate(found)
    assert str(path.parent) in message


def test_an_image_is_taken_by_its_name() -> None:
    told = Environment(image="python:3.12-slim", packages=["IDNA>=3"]).to_json()
    assert (told["kind"], told["image"], told["pip"]) == (
        "image", "python:3.12-slim", ["idna>=3"],
    )  # fmt: skip
    core.Environment.model_validate(told)


def test_a_dockerfile_comes_with_the_folder_it_is_built_in(tmp_path: Path) -> None:
    write(tmp_path, "docker/Dockerfile", "FROM python\nCOPY src /src\n")
    write(tmp_path, "src/a.py", "")
    environment = Environment(dockerfile=tmp_path / "docker/Dockerfile", context=tmp_path)
    told = environment.to_json()
    assert (told["kind"], told["dockerfile"]) == ("image", "docker/Dockerfile")
    scan = environment.scan_context()
    assert scan is not None
    assert told["context"] == scan.manifest.digest
    assert sorted(entry.path for entry in scan.manifest.entries) == [
        "docker/Dockerfile", "src/a.py",
    ]  # fmt: skip
    before = core.Environment.model_validate(told).digest
    write(tmp_path, "src/a.py", "changed")
    assert core.Environment.model_validate(environment.to_json()).digest != before


@pytest.mark.parametrize(
    ("rules", "left"),
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
def test_a_context_is_left_out_by_dockers_rules(tmp_path: Path, rules: str, left: str) -> None:
    for path in ("a.py", "big/x", "big/y", "keep/big/z"):
        write(tmp_path, path, path)
    write(tmp_path, "Dockerfile", "FROM python\n")
    write(tmp_path, ".dockerignore", rules)
    write(tmp_path, ".gitignore", "*\n")
    scan = Environment(dockerfile=tmp_path / "Dockerfile").scan_context()
    assert scan is not None
    found = {entry.path for entry in scan.manifest.entries} - {".dockerignore", ".gitignore"}
    assert found == {"Dockerfile", *left.split()}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "a", "dockerfile": "D"}, "image: it and dockerfile exclude each other"),
        ({"context": "."}, "context: goes with a dockerfile"),
        ({"image": " "}, "image: is empty"),
        ({"image": 3}, "image: 3 is not a text"),
        ({"dockerfile": 3}, "dockerfile: 3 is not a path"),
    ],
)
def test_what_is_wrong_with_an_image_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Environment(**fields)


def test_a_dockerfile_that_is_not_there_or_elsewhere_is_named(tmp_path: Path) -> None:
    assert "there is no file 'nope'" in refused(Environment(dockerfile="nope"))
    write(tmp_path, "Dockerfile", "FROM python\n")
    (tmp_path / "inner").mkdir()
    elsewhere = Environment(dockerfile=tmp_path / "Dockerfile", context=tmp_path / "inner")
    assert "is not in the context" in refused(elsewhere)
