"""What is left out of a snapshot, held against git itself."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retarget.core.errors import Invalid
from retarget.sdk.ignore import walk

_GIT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def kept(folder: Path) -> set[str]:
    def refuse(path: bytes, error: OSError) -> None:
        raise AssertionError(path) from error

    return {os.fsdecode(path) for path, _ in walk(os.fsencode(folder), refuse)}


def git(*words: str | Path, cwd: Path) -> bytes:
    command = ["git", "-c", "core.excludesFile=/dev/null", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=_GIT, check=True, capture_output=True).stdout


def kept_by_git(folder: Path) -> set[str]:
    listed = git("ls-files", "-z", "--others", "--exclude-standard", cwd=folder)
    return {os.fsdecode(path) for path in listed.split(b"\0") if path}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git("init", "-q", ".", cwd=tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def shared_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    git("init", "-q", ".", cwd=folder)
    (folder / ".git/info").mkdir(exist_ok=True)
    return folder


_ORDINARY = """a b c ab abc.py x.log src/a src/b.py src/logs/x src/logs/y.log src/deep/er/a
src/deep/er/x.log logs/x logs/keep.txt build/out/a docs/build/a foo/bar foox/y/bar fooba/r 1 é"""
_ODD = ["#c", "!b", "sp ace", "end ", "back\\slash", "br[1]", "br1", "new\nline", "tab\t"]
_TREE = [*_ORDINARY.split(), *_ODD]


@pytest.mark.parametrize(
    "lines",
    [
        ["logs", "!src/"],
        ["logs/", "!logs/keep.txt"],
        ["logs/*", "!logs/keep.txt"],
        ["*", "!*/", "!*.py"],
        ["/a", "src/a"],
        ["/*", "!/src", "/src/*", "!/src/deep"],
        ["**/a"],
        ["src/**"],
        ["src/**/a"],
        ["**"],
        ["**/", "!src/"],
        ["foo**/bar"],
        ["build/"],
        ["[[:digit:]]*", "[!a-z]", "[^a]"],
        ["[]a]", "[a-", "[[:nonsense:]]"],
        ["br[[]1]", "br\\[1\\]", "b[r-]?"],
        ["?", "??"],
        ["\\#c", "\\!b", "#c"],
        ["end\\ ", "end ", "sp ace   "],
        ["back\\\\slash", "back\\", "tab\t"],
        ["new*", "*\\"],
        ["a\r", "x.log\r"],
        ["\ufeffa"],
        ["a\0b"],
        ["", "!", "/", "//", "!/", " "],
    ],
    ids=repr,
)
def test_each_kind_of_pattern_means_what_it_means_to_git(
    repository: Path, lines: list[str]
) -> None:
    write(repository, dict.fromkeys(_TREE, "") | {".gitignore": "\n".join(lines)})
    assert kept(repository) == kept_by_git(repository)


_PLAIN = ["a", "b", "ab", "a.b", "B", "é", "a b", "#a", "!a", "[a]", "a\\", "-", "]", " ", "a\t"]
_ODDER = ["1", "a1", "éa", "a*", "?", "^", "a ", "\u00a0", "日本", "a\r"]
_NAMES = st.sampled_from(_PLAIN + _ODDER)
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_WILD = """a b ab é B . * * ** ** ? [ab] [!a] [^a] [a-c] [b-] []a] [[:alpha:]] [[:upper:]b] [[:x:]]
[a [\\]] [--a] [a-\\c] [/] / / / /**/ **/ /** \\a \\* \\[ \\ \\# # ! - ] a/b ./ //
*** a** **b /**/**/ [[:digit:][:alpha:]] [^[:alnum:]] [[:space:]] [[:punct:]] [![:lower:]] [[:alpha]
[é] [!é] é* 日 [a-é] [!]a] [^]] [] [!] [^-a] [a-a] [c-a] [\\a-\\c] [[a] [*] [?] \\? \\é \\/ ^ 1"""
_PIECES = st.sampled_from([*_WILD.split(), " ", "\\ ", "\t"])
_LINES = st.tuples(
    st.sampled_from(["", "", "", "!", "/", "!/", "\\"]),
    st.lists(_PIECES, min_size=1, max_size=5).map("".join),
    st.sampled_from(["", "", "", "/", " ", "\r"]),
).map("".join)
_IGNORE_FILES = st.lists(st.one_of(_LINES, _PATHS), min_size=1, max_size=6).map("\n".join)


@given(
    paths=st.sets(_PATHS, min_size=1, max_size=12),
    ignores=st.dictionaries(
        st.lists(_NAMES, max_size=2).map(lambda parts: "/".join([*parts, ".gitignore"])),
        _IGNORE_FILES,
        min_size=1,
        max_size=3,
    ),
    exclude=st.one_of(st.just(""), _IGNORE_FILES),
)
@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
def test_any_tree_under_any_rules_is_what_git_lists(
    shared_repository: Path, paths: set[str], ignores: dict[str, str], exclude: str
) -> None:
    empty(shared_repository)
    (shared_repository / ".git/info/exclude").write_text(exclude)
    for path in sorted(paths, key=len, reverse=True):
        if not (shared_repository / path).is_dir():
            write_where_possible(shared_repository, path, "")
    for path, content in ignores.items():
        write_where_possible(shared_repository, path, content)
    assert kept(shared_repository) == kept_by_git(shared_repository)


def empty(repository: Path) -> None:
    for child in repository.iterdir():
        if child.is_dir() and child.name != ".git":
            shutil.rmtree(child)
        elif child.is_file():
            child.unlink()


def write_where_possible(folder: Path, path: str, content: str) -> None:
    try:
        write(folder, {path: content})
    except (NotADirectoryError, FileExistsError):
        return  # a part of the path is a file already


def test_rules_of_the_folders_above_count_up_to_the_repository(repository: Path) -> None:
    code = repository / "projects/one"
    write(
        repository,
        {".gitignore": "*.log\n/projects/one/secret\n**/sub/*\n", "projects/.gitignore": "x\n"},
    )
    write(code, dict.fromkeys(["a.log", "secret", "x", "main.py", "sub/a", "sub/b"], ""))
    write(code, {".gitignore": "!sub/b\n"})
    (repository / ".git/info/exclude").write_text("/projects/one/mine\n")
    write(code, {"mine": ""})
    assert kept(code) == {".gitignore", "main.py", "sub/b"} == kept_by_git(code)


def test_rules_from_above_that_leave_out_the_folder_itself_do_not_count(repository: Path) -> None:
    write(repository, {".gitignore": "*\n!.gitignore\n", "work/train.py": "", "work/x.log": ""})
    write(repository, {"work/.gitignore": "*.log\n"})
    assert kept(repository / "work") == {".gitignore", "train.py"}


def test_a_file_above_without_a_repository_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*\n", "work/train.py": ""})
    assert kept(tmp_path / "work") == {"train.py"}


def test_a_worktree_shares_the_excludes_of_its_repository(tmp_path: Path) -> None:
    main, tree = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    git("init", "-q", ".", cwd=main)
    git(
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "x",
        cwd=main,
    )
    git("worktree", "add", "-q", tree, cwd=main)
    (main / ".git/info/exclude").write_text("*.log\n")
    write(tree, {"a.log": "", "a.py": ""})
    assert kept(tree) == {"a.py"} == kept_by_git(tree)


def test_an_amlignore_file_replaces_gitignore_files_everywhere(repository: Path) -> None:
    write(
        repository, {".gitignore": "*.py\n", "code/.amlignore": "*.csv\n", "code/.gitignore": "*\n"}
    )
    write(repository / "code", {"sub/.amlignore": "!keep.csv\nx\n", "sub/.gitignore": "*\n"})
    write(repository / "code", dict.fromkeys(["a.py", "a.csv", "sub/keep.csv", "sub/x"], ""))
    assert kept(repository / "code") == {
        ".amlignore",
        ".gitignore",
        "a.py",
        "sub/.amlignore",
        "sub/.gitignore",
        "sub/keep.csv",
    }


def test_an_amlignore_file_further_down_alone_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "x\n", "sub/.amlignore": "a\n", "sub/a": "", "sub/x": ""})
    assert kept(tmp_path) == {".gitignore", "sub/.amlignore", "sub/a"}


def test_environments_caches_and_git_itself_are_never_sent(repository: Path) -> None:
    left_out = [
        ".venv/pyvenv.cfg",
        ".venv/lib/x.py",
        "envs/deep/conda-meta/history",
        "envs/deep/bin/python",
        "__pycache__/a.py",
        "sub/__pycache__/a",
        "a.pyc",
        ".pytest_cache/x",
        ".mypy_cache/x",
        ".ruff_cache/x",
        "nb/.ipynb_checkpoints/x",
        ".hypothesis/x",
        ".tox/x",
        ".nox/x",
        ".DS_Store",
        "vendored/.git/HEAD",
        "submodule/.git",
    ]
    wanted = {
        "envs/readme",
        "node_modules/x.js",
        "vendored/a.py",
        "submodule/b.py",
        ".env",
        "b.pyc/c",
    }
    write(repository, dict.fromkeys([*left_out, *wanted], ""))
    write(repository, {".gitignore": "!.venv\n!a.pyc\n!.git\n"})
    assert kept(repository) == wanted | {".gitignore"}


def test_a_code_folder_that_is_itself_an_environment_is_still_sent(tmp_path: Path) -> None:
    write(tmp_path, {"pyvenv.cfg": "", "main.py": ""})
    assert kept(tmp_path) == {"pyvenv.cfg", "main.py"}


def test_a_home_of_ours_is_never_sent(tmp_path: Path) -> None:
    write(tmp_path, {"state/server.lock": "", "state/token": "secret", "state/blobs/x": ""})
    write(tmp_path, {"main.py": "", "other/token": "the user's own"})
    assert kept(tmp_path) == {"main.py", "other/token"}


def test_a_folder_pattern_does_not_match_a_link_to_a_folder(repository: Path) -> None:
    write(repository, {"real/a": "", ".gitignore": "link/\n"})
    (repository / "link").symlink_to("real")
    assert kept(repository) == {".gitignore", "real/a", "link"} == kept_by_git(repository)


def test_an_ignore_file_that_is_a_link_or_a_folder_or_a_fifo_is_not_read(repository: Path) -> None:
    write(repository, {"rules": "*\n", "a/x": "", "b/.gitignore/x": "", "c/x": ""})
    (repository / "a/.gitignore").symlink_to("../rules")
    os.mkfifo(repository / "c/.gitignore")
    assert kept(repository) >= {"rules", "a/x", "b/.gitignore/x", "c/x"}


def test_an_ignore_file_that_may_not_be_read_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as name, as_nobody(Path(name)) as folder:
        write(folder, {".gitignore": "secret\n", "secret": ""})
        (folder / ".gitignore").chmod(0)
        with pytest.raises(Invalid, match=r"\.gitignore cannot be read"):
            kept(folder)


@contextmanager
def as_nobody(folder: Path) -> Generator[Path]:
    """Give up root's rights for a while, in a folder that is nobody's: root may read anything."""
    if os.geteuid() != 0:
        yield folder
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)
