"""What `retarget run` keeps of files outside of outputs/, and what it says about them."""

import json
from pathlib import Path

import pytest

from retarget import Workspace
from retarget.core.errors import Invalid
from tests.conftest import Cli

SCRIPT = """
import os, sys
os.makedirs("checkpoints", exist_ok=True)
open("checkpoints/m.pt", "wb").write(bytes(1000))
open("model.pkl", "wb").write(bytes(100))
open("settings.txt", "a").write("more")
open("outputs/metrics.txt", "w").write("1")
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "settings.txt").write_text("first")
    return folder


def test_a_run_says_what_it_kept_and_so_do_show_and_json(retarget: Cli, code: Path) -> None:
    ran = retarget("run", "--name", "one", "train.py", cwd=code)
    line = "also kept 3 files written outside outputs/: checkpoints/m.pt, model.pkl, settings.txt"
    assert line in ran.stderr.splitlines()
    shown = " ".join(retarget("job", "show", "one").stdout.split())
    assert line.replace("also kept", "kept") in shown
    kept = json.loads(retarget("job", "show", "one", "--json").stdout)["kept"]
    assert (kept["files"], kept["size"], kept["missed"]) == (3, 1109, [])
    assert kept["paths"] == ["checkpoints/m.pt", "model.pkl", "settings.txt"]


def test_results_outside_the_code_folder_are_named(retarget: Cli, code: Path) -> None:
    script = "import os; os.makedirs('../results'); open('../results/m.json', 'w').write('{}')"
    (code / "fit.py").write_text(script)
    ran = retarget("run", "--name", "one", "fit.py", cwd=code)
    line = "not kept: ../results/ (1 file, 2 B): outside the code folder; write results to outputs/"
    assert ran.returncode == 0
    assert f"{line}, or send the folder above with --code" in ran.stderr.splitlines()
    assert "../results/" in retarget("job", "show", "one").stdout


def test_kept_files_are_listed_and_downloaded(retarget: Cli, code: Path, tmp_path: Path) -> None:
    retarget("run", "--name", "one", "train.py", cwd=code)
    downloaded = retarget("job", "outputs", "one", "--download", tmp_path / "results")
    assert downloaded.returncode == 0, downloaded.stderr
    assert (tmp_path / "results/workdir/settings.txt").read_text() == "firstmore"
    assert (tmp_path / "results/outputs/metrics.txt").read_text() == "1"
    rows = json.loads(retarget("job", "outputs", "one", "workdir", "--json").stdout)
    paths = ["workdir/checkpoints/m.pt", "workdir/model.pkl", "workdir/settings.txt"]
    assert [row["path"] for row in rows] == paths


def test_options_choose_what_is_kept(retarget: Cli, code: Path) -> None:
    ran = retarget("run", "--keep", "*.pt", "--keep", "runs/", "train.py", cwd=code)
    assert "also kept 1 file written outside outputs/: checkpoints/m.pt" in ran.stderr
    assert "--keep runs/: the script wrote no such file" in ran.stderr
    ran = retarget("run", "--keep", "none", "train.py", cwd=code)
    assert (ran.returncode, "kept" in ran.stderr) == (0, False)
    wrong = retarget("run", "--keep", "none", "--keep", "*.pt", "train.py", cwd=code)
    assert (wrong.returncode, "'none' cannot be combined" in wrong.stderr) == (2, True)


def test_a_project_chooses_and_an_option_wins(retarget: Cli, code: Path) -> None:
    (code / "retarget.toml").write_text('keep = "none"\n')
    assert "kept" not in retarget("run", "train.py", cwd=code).stderr
    assert "also kept 1 file" in retarget("run", "--keep", "*.pkl", "train.py", cwd=code).stderr
    (code / "retarget.toml").write_text('keep = ["*.pkl", 3]\n')
    assert "also kept 1 file" in retarget("run", "train.py", cwd=code).stderr
    (code / "retarget.toml").write_text("keep = 3\n")
    wrong = retarget("run", "train.py", cwd=code)
    assert (wrong.returncode, "keep: 3 is not 'none', 'all'" in wrong.stderr) == (2, True)


def test_what_is_over_the_limit_of_the_server_is_named(
    retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retarget("config", "set", "keep_limit", "1k")
    ran = retarget("run", "--name", "one", "train.py", cwd=code)
    assert "also kept 2 files written outside outputs/: model.pkl, settings.txt" in ran.stderr
    missed = "not kept: checkpoints/m.pt (1000 B): over the limit of 1.0 KiB; use --keep PATTERN"
    assert missed in ran.stderr
    kept = json.loads(retarget("job", "show", "one", "--json").stdout)["kept"]
    assert kept["limit"] == 1024
    assert kept["missed"] == [
        {"path": "checkpoints/m.pt", "files": 1, "size": 1000, "reason": "over the limit"}
    ]


def test_the_last_attempt_is_the_one_whose_files_are_kept(retarget: Cli, code: Path) -> None:
    (code / "twice.py").write_text(
        "import os, sys\n"
        "key = os.environ['RETARGET_LAUNCH']\n"
        "open('attempt.txt', 'w').write(key); open(f'{key}.txt', 'w').close(); print(key)\n"
        "sys.exit(1)"
    )
    ran = retarget("run", "--name", "two", "--retries", "1", "twice.py", cwd=code)
    last = ran.stdout.split()[-1]
    assert ran.stderr.count("also kept") == 1
    assert f"also kept 2 files written outside outputs/: {last}.txt, attempt.txt" in ran.stderr


def test_the_sdk_chooses_and_tells(
    retarget: Cli, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retarget("server", "status")
    monkeypatch.chdir(code)
    workspace = Workspace()
    job = workspace.submit("train.py", keep="*.pt")
    job.wait()
    assert job.kept is not None
    assert (job.kept.paths, job.kept.missed, job.kept.unmatched) == (["checkpoints/m.pt"], [], [])
    assert job.to_json()["keep"] == ["*.pt"]
    nothing = workspace.submit(["python", "-c", "pass"])
    nothing.wait()
    assert nothing.kept is None
    again = job.rerun()
    again.wait()
    assert again.kept == job.kept
    for keep in (3, ["none", "x"], {"x": 1}, "", "../x"):
        with pytest.raises(Invalid, match="keep"):
            workspace.submit("train.py", keep=keep)  # type: ignore[arg-type]
