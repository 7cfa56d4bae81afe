"""A failed job explains itself: the reason, the hint, the end of its log, and the user's paths."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.cli.work_paths import WorkPaths

Cli = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).parent / "retarget")
WORK = b"/home/a/.retarget/targets/local/launches/" + b"0" * 32 + b"/work"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "math.py").write_text("def mean(x):\n    return sum(x) / len(x)\n")
    (folder / "train.py").write_text(
        "from lib.math import mean\nfor step in range(20): print('step', step)\nmean([])\n"
    )
    return folder


def on_terminal(*args: str, cwd: Path) -> str:
    """Return what a command shows on a terminal."""
    master, terminal = pty.openpty()
    child = subprocess.Popen(
        [COMMAND, *args], stdin=terminal, stdout=terminal, stderr=terminal, cwd=cwd
    )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux raises it when the other side is closed
        while piece := os.read(master, 65536):
            shown += piece
    os.close(master)
    child.wait(timeout=60)
    return shown.decode().replace("\r\n", "\n")


def test_the_last_line_of_a_run_says_what_failed_and_where(retarget: Cli, code: Path) -> None:
    done = retarget("run", "--name", "a", "train.py", cwd=code)
    assert done.returncode == 1
    expected = "exit code 1: ZeroDivisionError: division by zero (lib/math.py:2)"
    assert f": {expected}; see `retarget job show a`" in done.stderr
    (row,) = json.loads(retarget("job", "list", "--json").stdout)
    assert (row["reason"], row["hint"]) == (expected, None)


def test_a_hint_follows_the_last_line(retarget: Cli, code: Path) -> None:
    (code / "missing.py").write_text("import no_such_module")
    done = retarget("run", "--name", "a", "missing.py", cwd=code)
    hint = "hint: module 'no_such_module' is not in the job's environment"
    assert done.stderr.splitlines()[-1].startswith(hint)
    assert hint in retarget("job", "wait", "a").stderr
    assert hint in retarget("job", "why", "a").stdout
    assert "--pip no-such-module" in retarget("job", "show", "a").stdout


def test_the_hint_about_an_own_module_is_not_to_install_it(retarget: Cli, code: Path) -> None:
    (code / "scripts").mkdir()
    (code / "scripts" / "go.py").write_text("import lib.math\nprint(lib.math.mean([2]))")
    done = retarget("run", "--name", "a", "scripts/go.py", cwd=code)
    hint = done.stderr.splitlines()[-1]
    assert hint.startswith("hint: lib/ was sent, but the code folder is not on the Python path")
    assert "--pip" not in hint
    (row,) = json.loads(retarget("job", "list", "--json").stdout)
    assert f"hint: {row['hint']}" == hint
    assert hint.endswith("retarget run -- python -m scripts.go")
    for follow in (
        ["--", "python", "-m", "scripts.go"],
        ["--env", "PYTHONPATH=.", "scripts/go.py"],
    ):
        assert retarget("run", *follow, cwd=code).stdout == "2.0\n"


def test_the_hint_about_an_own_module_outside_leads_to_it(retarget: Cli, code: Path) -> None:
    (code / ".git").mkdir()
    (code / "notebooks").mkdir()
    prep = "import sys\nsys.path.append('..')\nimport lib.math\nprint(lib.math.mean([2]))"
    (code / "notebooks" / "prep.py").write_text(prep)
    done = retarget("run", "prep.py", cwd=code / "notebooks")
    assert done.stderr.splitlines()[-1] == (
        "hint: ../lib/ is outside of the code folder notebooks/, so it was not sent; "
        "use --code .. --env PYTHONPATH=."
    )
    again = retarget(
        "run", "--code", "..", "--env", "PYTHONPATH=.", "prep.py", cwd=code / "notebooks"
    )
    assert again.stdout == "2.0\n"


def test_job_show_has_the_last_15_lines_of_a_failed_job(retarget: Cli, code: Path) -> None:
    retarget("run", "--name", "a", "train.py", cwd=code)
    shown = retarget("job", "show", "a").stdout
    _, _, rest = shown.partition("end of the log (all: retarget job logs a)\n")
    lines = rest.partition("\n\n")[0].splitlines()
    assert len(lines) == 15
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert '  File "lib/math.py", line 2, in mean' in lines
    assert "/launches/" not in shown


def test_a_job_that_failed_before_its_script_began_shows_the_end_of_its_preparation(
    retarget: Cli, code: Path
) -> None:
    retarget("run", "--name", "a", "--pip", "no-such-package-anywhere==9", "train.py", cwd=code)
    shown = retarget("job", "show", "a").stdout
    assert "no-such-package-anywhere" in shown.partition("end of the log")[2]


def test_of_several_processes_job_show_has_the_log_of_the_one_that_failed(
    retarget: Cli, code: Path
) -> None:
    (code / "ranks.py").write_text(
        "import os, time\nif os.environ['RANK'] == '0': time.sleep(60)\nraise KeyError('rank one')"
    )
    retarget("run", "--name", "a", "--processes-per-node", "2", "ranks.py", cwd=code)
    shown = retarget("job", "show", "a").stdout
    assert "rank 1: exit code 1: KeyError: 'rank one' (ranks.py:3)" in shown
    assert "\nKeyError: 'rank one'\n" in shown


def test_a_pipe_gets_the_bytes_of_the_script_and_a_terminal_the_users_own_paths(
    retarget: Cli, home: Path, code: Path
) -> None:
    shown = on_terminal("run", "--name", "a", "train.py", cwd=code)
    assert '  File "lib/math.py", line 2, in mean' in shown
    assert "/launches/" not in shown
    assert '  File "lib/math.py", line 2, in mean' in on_terminal("job", "logs", "a", cwd=code)
    assert f'File "{home}/targets/local/launches/' in retarget("job", "logs", "a").stdout


def test_a_terminal_shows_the_local_path_of_a_folder_elsewhere(
    home: Path, code: Path, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    shown = on_terminal("run", str(code / "train.py"), cwd=tmp_path / "here")
    assert f'File "{code}/lib/math.py", line 2' in shown


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'File "%s/a.py", line 1', b'File "a.py", line 1'),
        (b'File "/my home%s/a b.py", line 1', b'File "a b.py", line 1'),
        (b"%s/a.py:3: UserWarning", b"a.py:3: UserWarning"),
        (b"now in %s\n", b"now in .\n"),
        (b"path=%s/x, next", b"path=x, next"),
        (b"%s-other/a.py", b"%s-other/a.py"),
        (b"/launches/0/work/a.py", b"/launches/0/work/a.py"),
        (b"50%% 1/2 /usr/bin", b"50% 1/2 /usr/bin"),
    ],
)
def test_only_paths_of_work_folders_are_shortened(content: bytes, shown: bytes) -> None:
    def fill(text: bytes) -> bytes:
        return text.replace(b"%s", WORK).replace(b"%%", b"%")

    assert WorkPaths().shorten(fill(content)) == fill(shown)


@given(st.lists(st.integers(0, 400), max_size=5))
def test_paths_are_shortened_however_the_bytes_arrive(cuts: list[int]) -> None:
    content = b'  File "' + WORK + b'/a.py", line 1\nsee /usr/lib and ' + WORK + b"/b.py: done 1/"
    paths, pieces, last = WorkPaths(), list[bytes](), 0
    for cut in [*sorted(cuts), len(content)]:
        pieces.append(paths.feed(content[last:cut]))
        last = max(last, cut)
    shown = b"".join(pieces) + paths.flush()
    assert shown == b'  File "a.py", line 1\nsee /usr/lib and b.py: done 1/'


def test_a_path_without_an_end_is_held_only_until_it_is_flushed() -> None:
    paths = WorkPaths()
    assert (paths.feed(b"saving to /data/mod"), paths.is_holding) == (b"saving to ", True)
    assert (paths.flush(), paths.is_holding) == (b"/data/mod", False)


def test_a_run_says_what_the_script_refers_to_outside_of_the_code_folder(
    retarget: Cli, code: Path
) -> None:
    (code / "data").mkdir()
    (code / "nb").mkdir()
    (code / "nb" / "a.py").write_text("import glob\nprint(glob.glob('../data/*.csv'))")
    line = (
        "a.py refers to ../data, which is outside of the code folder nb/ and not sent; to send the "
        "folder above it, use --code .."
    )
    assert line in retarget("run", "a.py", cwd=code / "nb").stderr.splitlines()
    assert line in " ".join(retarget("run", "--dry-run", "a.py", cwd=code / "nb").stdout.split())
