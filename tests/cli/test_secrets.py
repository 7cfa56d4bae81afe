"""`retarget secret`, `--secret`, and variables that are handled as secrets."""

import json
from pathlib import Path

from tests.cli.test_interrupt import Terminal
from tests.conftest import Cli

VALUE = "correct-horse"
MASKED = "*" * len(VALUE)


def test_a_secret_is_set_from_stdin_listed_used_and_deleted(retarget: Cli) -> None:
    assert "no secrets; `retarget secret set NAME` stores one" in retarget("secret", "list").stderr
    stored = retarget("secret", "set", "HF_TOKEN", input=f"{VALUE}\n")
    assert (stored.returncode, stored.stdout) == (0, "")
    assert stored.stderr == "stored HF_TOKEN; use it with `retarget run --secret HF_TOKEN …`\n"
    assert retarget("secret", "list").stdout.split()[:4] == [
        "NAME",
        "CREATED",
        "UPDATED",
        "HF_TOKEN",
    ]
    (listed,) = json.loads(retarget("secret", "list", "--json").stdout)
    assert sorted(listed) == ["created_at", "name", "updated_at"]
    script = 'test "$HF_TOKEN" = correct-horse && echo "it is $HF_TOKEN"'
    ran = retarget("run", "--secret", "HF_TOKEN", "--name", "a", "--", "sh", "-c", script)
    assert (ran.returncode, ran.stdout) == (0, f"it is {MASKED}\n"), ran.stderr
    assert "secrets      HF_TOKEN" in retarget("job", "show", "a").stdout
    assert retarget("secret", "delete", "HF_TOKEN").stderr == "deleted HF_TOKEN\n"
    refused = retarget("run", "--secret", "HF_TOKEN", "--", "true")
    assert refused.returncode == 2
    assert (
        "no secret named 'HF_TOKEN'; store it with `retarget secret set HF_TOKEN`" in refused.stderr
    )


def test_a_bad_secret_is_refused(retarget: Cli) -> None:
    for value in ("short", "", "x" * 70_000):
        refused = retarget("secret", "set", "A", input=value)
        assert refused.returncode == 2
        assert "a secret must have" in refused.stderr
    refused = retarget("secret", "set", "not-a-name", input=VALUE)
    assert "is not a valid name for a secret" in refused.stderr
    assert retarget("secret", "list", "--json").stdout == "[]\n"


def test_a_terminal_is_asked_twice_and_shows_nothing(retarget: Cli, tmp_path: Path) -> None:
    for second, code in ((VALUE, 0), ("battery-staple", 2)):
        terminal = Terminal(["secret", "set", "HF_TOKEN"], tmp_path)
        terminal.wait_for("HF_TOKEN: ")
        terminal.type(f"{VALUE}\n".encode())
        terminal.wait_for("HF_TOKEN again: ")
        terminal.type(f"{second}\n".encode())
        assert terminal.exit_code() == code
        assert VALUE not in terminal.shown
    assert "the two values differ; nothing was stored" in terminal.shown
    ran = retarget("run", "--secret", "HF_TOKEN", "--", "sh", "-c", "echo $HF_TOKEN")
    assert ran.stdout == f"{MASKED}\n"


def test_a_variable_that_looks_secret_is_handled_as_one(retarget: Cli, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A_KEY=abc\n")
    options = ("--env", "DB_PASSWORD", "--env", "LEVEL=3", "--env-file", ".env")
    run = ("run", *options, "--name", "a", "--", "sh", "-c", "echo $DB_PASSWORD $A_KEY $LEVEL")
    ran = retarget(*run, env={"DB_PASSWORD": VALUE})
    assert (ran.returncode, ran.stdout) == (0, f"{MASKED} abc 3\n"), ran.stderr
    line = (
        "A_KEY, DB_PASSWORD: handled as secrets of this job, encrypted and masked in logs; too "
        "short to be masked: A_KEY; to store it for all jobs: retarget secret set A_KEY\n"
    )
    assert ran.stderr.count(line) == 1
    shown = retarget("job", "show", "a")
    assert "variables    LEVEL=3" in shown.stdout
    assert "secrets      A_KEY, DB_PASSWORD" in shown.stdout
    for command in (("job", "show", "a", "--json"), ("job", "list", "--json")):
        assert VALUE not in retarget(*command).stdout
    planned = retarget("run", "--dry-run", "--json", *run[1:], env={"DB_PASSWORD": VALUE})
    assert planned.returncode == 0
    assert VALUE not in planned.stdout
    again = retarget("job", "rerun", "a")
    assert (again.returncode, again.stdout) == (0, f"{MASKED} abc 3\n"), again.stderr
