"""Draws docs/terminal.svg: runs real commands on a real server and records the terminal."""

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
WIDTH = 96
COMMANDS = """
retarget run train.py -- --lr 0.1
retarget run --detach --name big --cpus 2 -- sleep 600
retarget run --detach --name night train.py -- --lr 0.3
retarget job why night
retarget job cancel big
retarget job wait night
retarget job outputs night
retarget run --cpus 1000 train.py
retarget job list
"""
_CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r?\n)|(\r)")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "code")
        code.mkdir()
        readme = (HERE.parent / "README.md").read_text()
        script = readme.partition("```python file=train.py\n")[2].partition("```")[0]
        (code / "train.py").write_text(script)
        variables = _variables(Path(folder, "home"))
        subprocess.run(
            ["retarget", "server", "start"], env=variables, check=True, capture_output=True
        )
        recordings = [
            (line, _record(line, code, variables)) for line in COMMANDS.split("\n") if line
        ]
        subprocess.run(
            ["retarget", "server", "stop"], env=variables, check=True, capture_output=True
        )
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command, output in recordings:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(output))
    picture = console.export_svg(title="retarget")
    # Self-contained: uses the reader's fonts and loads nothing from the network.
    picture = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", picture, flags=re.DOTALL)
    (HERE / "terminal.svg").write_text(re.sub(r"\n\s*\n", "\n", picture))


def _variables(home: Path) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return os.environ | {
        "RETARGET_HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
    }


def _record(command: str, folder: Path, variables: dict[str, str]) -> str:
    """Run a command in a terminal and return what the screen shows when it has ended."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        command.split(), cwd=folder, env=variables, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    received = b""
    while True:
        try:
            received += os.read(controller, 65536)
        except OSError:  # the last process with this terminal has ended
            break
    os.close(controller)
    process.wait()
    return _screen(received.decode()).rstrip("\n")


def _screen(text: str) -> str:
    """Return what remains on the screen: a spinner erases its line again."""
    lines, row, end = [""], 0, 0
    for match in _CODE.finditer(text):
        lines[row] += text[end : match.start()]
        end = match.end()
        if match[3]:
            row += 1
            lines += [""] * (row == len(lines))
        elif match[2] == "A":
            row = max(0, row - int(match[1] or 1))
        elif match[2] == "K":
            lines[row] = ""
        elif match[2] == "m":
            lines[row] += match[0]
    lines[row] += text[end:]
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    main()
