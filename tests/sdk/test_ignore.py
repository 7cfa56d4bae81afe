"""Which files a snapshot excludes, compared with git itself."""

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
from retarget.sdk.include import resolve_include

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


def refuse(path: bytes, error: OSError) -> None:
    raise AssertionError(path) from error


def kept(folder: Path, *include: str) -> set[str]:
    files = walk(os.fsencode(folder), refuse, include=resolve_include(folder, include))
    return {os.fsdecode(path) for path, _ in files}


def excluded(folder: Path, *include: str) -> dict[str, str]:
    """Return the rule of each path that is excluded."""
    rules: dict[str, str] = {}
    files = walk(
        os.fsencode(folder),
        refuse,
        lambda path, rule: rules.update({os.fsdecode(path): rule}),
        resolve_include(folder, include),
    )
    for _ in files:
        pass
    return rules


def git(*arguments: str | Path, cwd: Path) -> bytes:
    command = ["git", "-c", "core.excludesFile=/dev/null", *map(str, arguments)]
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
def test_every_kind_of_pattern_matches_as_in_git(repository: Path, lines: list[str]) -> None:
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
        st.lists(_NAMES, max_size=2).map(lambda names: "/".join([*names, ".gitignore"])),
        _IGNORE_FILES,
        min_size=1,
        max_size=3,
    ),
    exclude=st.one_of(st.just(""), _IGNORE_FILES),
)
@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
def test_any_tree_with_any_rules_matches_git(
    shared_repository: Path, paths: set[str], ignores: dict[str, str], exclude: str
) -> None:
    empty(shared_repository)
    (shared_repository / ".git/info/exclude").write_text(exclude)
    for path in sorted(paths, key=len, reverse=True):
        if not (shared_repository / path).is_dir():
            write_unless_blocked(shared_repository, path, "")
    for path, content in ignores.items():
        write_unless_blocked(shared_repository, path, content)
    assert kept(shared_repository) == kept_by_git(shared_repository)


def empty(repository: Path) -> None:
    for child in repository.iterdir():
        if child.is_dir() and child.name != ".git":
            shutil.rmtree(child)
        elif child.is_file():
            child.unlink()


def write_unless_blocked(folder: Path, path: str, content: str) -> None:
    try:
        write(folder, {path: content})
    except (NotADirectoryError, FileExistsError):
        return  # a parent of the path is a file


def test_rules_of_parents_apply_up_to_the_repository(repository: Path) -> None:
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


def test_parent_rules_that_exclude_the_folder_itself_are_ignored(repository: Path) -> None:
    write(repository, {".gitignore": "*\n!.gitignore\n", "work/train.py": "", "work/x.log": ""})
    write(repository, {"work/.gitignore": "*.log\n"})
    assert kept(repository / "work") == {".gitignore", "train.py"}


def test_a_parent_file_without_a_repository_is_ignored(tmp_path: Path) -> None:
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
    excluded = [
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
    included = {
        "envs/readme",
        "vendored/a.py",
        "submodule/b.py",
        "b.pyc/c",
    }
    write(repository, dict.fromkeys([*excluded, *included], ""))
    write(repository, {".gitignore": "!.venv\n!a.pyc\n!.git\n"})
    assert kept(repository) == included | {".gitignore"}


def test_names_that_may_hold_secrets_and_folders_of_tools_are_excluded_by_default(
    tmp_path: Path,
) -> None:
    secret = [".env", "a/.env.local", "key.pem", "id_rsa", "id_rsa.pub", "id_ed25519", ".netrc"]
    folders = [".aws/x", "credentials.json", "node_modules/x.js", "wandb/x", "a/mlruns/x"]
    included = {".env.example", "wandb.py", "mlruns.txt", "environment.yml", "b/lightning_log/x"}
    write(tmp_path, dict.fromkeys([*secret, *folders, "lightning_logs/x", *included], ""))
    assert kept(tmp_path) == included
    assert set(excluded(tmp_path).values()) == {"default"}


@pytest.mark.parametrize(
    ("lines", "path", "is_sent"),
    [
        ("!.env", ".env", True),
        ("!/certs/*.pem", "certs/a.pem", True),
        ("!wandb/", "wandb/x", True),
        ("*\n!*/\n!*.py", "node_modules/a.py", False),
        ("/data/*\n!/data/**", "data/.env", False),
        (".*\n!.*", ".netrc", False),
    ],
)
def test_a_negated_pattern_includes_what_it_names(
    tmp_path: Path, lines: str, path: str, is_sent: bool
) -> None:
    write(tmp_path, {".retargetignore": lines, path: ""})
    assert (path in kept(tmp_path)) == is_sent


def test_the_first_ignore_file_at_the_root_is_the_only_one(repository: Path) -> None:
    write(repository, {".gitignore": "g\n", ".amlignore": "a\n", ".retargetignore": "r\n"})
    write(repository, {"sub/.gitignore": "*\n", "sub/.amlignore": "*\n"})
    write(repository, {"sub/.retargetignore": "s\n", "sub/s": "", "sub/r": "", "sub/x": ""})
    write(repository, dict.fromkeys("gar", ""))
    assert {path for path in kept(repository) if "ignore" not in path} == {"g", "a", "sub/x"}
    rules = {"r": ".retargetignore", "sub/r": ".retargetignore", "sub/s": "sub/.retargetignore"}
    assert {path: rule for path, rule in excluded(repository).items() if rule != "always"} == rules
    (repository / ".retargetignore").unlink()
    assert {"g", "r", "sub/.retargetignore"} & kept(repository) == {"g", "r"}


def test_every_excluded_path_has_the_rule_that_excludes_it(repository: Path) -> None:
    write(repository, {".gitignore": "data/\n", "code/.gitignore": "*.log\n"})
    (repository / ".git/info/exclude").write_text("mine\n")
    write(repository, dict.fromkeys(["code/data/a/b", "code/x.log", "code/mine", "code/a.py"], ""))
    write(repository / "code", dict.fromkeys([".env", ".venv/pyvenv.cfg", "sub/a.pyc"], ""))
    write(repository / "code", {"results/.retarget-download": "", "results/model": ""})
    assert excluded(repository / "code") == {
        "data/": "../.gitignore",
        "x.log": ".gitignore",
        "mine": ".git/info/exclude",
        ".env": "default",
        "results/": "default",
        ".venv/": "always",
        "sub/a.pyc": "always",
    }


def test_an_included_path_is_sent_whatever_the_rules_say(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "data/\n*.csv\n", "data/.gitignore": "*\n"})
    write(tmp_path, dict.fromkeys(["data/a/x.csv", "data/b", "y.csv", "data/.env", ".env"], ""))
    write(tmp_path, dict.fromkeys([".venv/pyvenv.cfg", "node_modules/a/node_modules/b"], ""))
    everything = {"data/a/x.csv", "data/b", "data/.gitignore", ".gitignore"}
    assert kept(tmp_path, "data") == everything
    assert excluded(tmp_path, "data")["data/.env"] == "default"
    assert kept(tmp_path, "data/a") == {"data/a/x.csv", ".gitignore"}
    assert excluded(tmp_path, "data/a")["data/b"] == ".gitignore"
    assert kept(tmp_path, ".env") == {".env", ".gitignore"}
    assert kept(tmp_path, ".venv") == {".venv/pyvenv.cfg", ".gitignore"}
    assert kept(tmp_path, "node_modules") == {"node_modules/a/node_modules/b", ".gitignore"}
    assert kept(tmp_path, ".") >= everything | {"y.csv", "node_modules/a/node_modules/b"}


def test_an_included_pattern_reaches_into_excluded_folders(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "data/\n*.csv\nlogs/\n", "x.csv": "", "data/.gitignore": "*\n"})
    write(tmp_path, dict.fromkeys(["data/a.csv", "data/b.bin", "data/raw/c.csv", "logs/a/b"], ""))
    assert kept(tmp_path, "data/*.csv") == {".gitignore", "data/a.csv"}
    assert kept(tmp_path, "./*.csv") == {".gitignore", "x.csv"}
    everywhere = {".gitignore", "x.csv", "data/a.csv", "data/raw/c.csv"}
    assert kept(tmp_path, "*.csv") == everywhere
    assert kept(tmp_path, f"{tmp_path}/**/*.csv") == everywhere
    assert kept(tmp_path, "d?ta/") == everywhere - {"x.csv"} | {"data/.gitignore", "data/b.bin"}
    assert excluded(tmp_path, "*.csv") == {
        "data/b.bin": ".gitignore",
        "data/.gitignore": ".gitignore",
        "logs/": ".gitignore",  # searched in vain: one path
    }


def test_a_pattern_includes_nothing_that_is_always_excluded(tmp_path: Path) -> None:
    names = ["__pycache__/a", "venv/pyvenv.cfg", "venv/a", ".git/a", "home/a", "data/.tox/a"]
    write(tmp_path, dict.fromkeys([*names, "data/a.pyc", "data/a", "a.py"], ""))
    write(tmp_path, {".gitignore": "venv/\ndata/\nhome\n", "home/server.lock": ""})
    write(tmp_path, {"home/token": ""})
    sent = {".gitignore", "a.py", "data/a"}
    assert kept(tmp_path, "a*") == sent
    assert kept(tmp_path, "*") == kept(tmp_path, "**") == sent
    assert excluded(tmp_path, "a*")["venv/"] == excluded(tmp_path, "*")["venv/"] == "always"


def test_a_pattern_includes_secrets_only_if_its_last_name_has_letters(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(["certs/a.pem", "certs/b", ".aws/credentials", ".env"], ""))
    write(tmp_path, {".gitignore": "certs/\n"})
    assert kept(tmp_path, "certs/*") == kept(tmp_path, "cert?") == {".gitignore", "certs/b"}
    assert kept(tmp_path, "**", "*/*") == {".gitignore", "certs/b"}
    assert kept(tmp_path, "certs/*.pem") == {".gitignore", "certs/a.pem"}
    assert kept(tmp_path, "certs", "*.pem") == {".gitignore", "certs/a.pem", "certs/b"}
    assert kept(tmp_path, ".aw*", ".en?") == {".gitignore", ".aws/credentials", ".env"}


def test_a_path_with_the_signs_of_a_pattern_is_a_path(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.bin\n", "a[1].bin": "", "a1.bin": ""})
    assert kept(tmp_path, "a[1].bin") == {".gitignore", "a[1].bin"}
    assert kept(tmp_path, "a[0-9].bin") == {".gitignore", "a1.bin"}


def test_downloaded_files_are_included_by_a_pattern(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(["results/.retarget-download", "results/a.csv"], ""))
    assert kept(tmp_path) == set()
    assert kept(tmp_path, "*.csv") == {"results/a.csv"}
    assert kept(tmp_path, "res*") == {"results/.retarget-download", "results/a.csv"}


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "__pycache__/a.pyc": ""})
    for pattern in ("*.csv", "*.pyc", "data/**"):
        with pytest.raises(Invalid) as raised:
            kept(tmp_path, "*.py", pattern)
        assert str(raised.value) == f"include: {pattern!r} matches nothing in {tmp_path}"
    with pytest.raises(Invalid, match="is not in"):
        kept(tmp_path, "../*.csv")


def test_a_home_of_retarget_cannot_be_included(tmp_path: Path) -> None:
    write(tmp_path, {"state/server.lock": "", "state/token": "secret", "main.py": ""})
    assert kept(tmp_path) == kept(tmp_path, "*") == {"main.py"}
    for path in ("state", "state/token", "state/server.lock"):
        with pytest.raises(Invalid, match="state/ is a home of Retarget, which holds secrets"):
            kept(tmp_path, path)


@pytest.mark.parametrize("pattern", ["[!a]*", "*[0-9]*", "[a-z]*", "?[]x]*"])
def test_a_set_of_characters_does_not_ask_for_secrets(tmp_path: Path, pattern: str) -> None:
    secrets = (".env", "id_ed25519", "credentials.json")
    write(tmp_path, dict.fromkeys((*secrets, "b]1.py"), ""))
    assert kept(tmp_path, pattern) == {"b]1.py"}
    (tmp_path / ".gitignore").write_text(f"!{pattern}\n")
    assert kept(tmp_path) == {"b]1.py", ".gitignore"}


def test_a_code_folder_that_is_itself_an_environment_is_still_sent(tmp_path: Path) -> None:
    write(tmp_path, {"pyvenv.cfg": "", "main.py": ""})
    assert kept(tmp_path) == {"pyvenv.cfg", "main.py"}


def test_a_home_of_retarget_is_never_sent(tmp_path: Path) -> None:
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
    """Become the user nobody for a while, in a folder of that user: root may read anything."""
    if os.geteuid() != 0:
        yield folder
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)
