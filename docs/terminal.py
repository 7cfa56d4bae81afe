"""Makes docs/terminal.svg: real commands on a real server, drawn as they looked in a terminal."""

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
        env = _surroundings(Path(folder, "home"))
        subprocess.run(["retarget", "server", "start"], env=env, check=True, capture_output=True)
        shown = [(line, _typed(line, code, env)) for line in COMMANDS.split("\n") if line]
        subprocess.run(["retarget", "server", "stop"], env=env, check=True, capture_output=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command, output in shown:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(output))
    picture = console.export_svg(title="retarget")
    # Self-contained: the reader's own fonts, and nothing fetched from elsewhere.
    picture = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", picture, flags=re.DOTALL)
    (HERE / "terminal.svg").write_text(re.sub(r"\n\s*\n", "\n", picture))


def _surroundings(home: Path) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return os.environ | {
        "RETARGET_HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
    }


def _typed(command: str, folder: Path, env: dict[str, str]) -> str:
    """Run a command in a terminal and return what stands there when it has ended."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command.split(), cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            received += os.read(ours, 65536)
        except OSError:  # the last process that had the terminal is gone
            break
    os.close(ours)
    process.wait()
    return _screen(received.decode()).rstrip("\n")


def _screen(text: str) -> str:
    """Keep what stays on the screen: a spinner draws, and wipes its line again."""
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
