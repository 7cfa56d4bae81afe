"""Every example in the documentation is run, page by page, in a folder and a home of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import Block, blocks, name_of, pages

_RUN = ("bash", "python")
_MOST_SKIPPED = 12
# Runs the Python blocks of one page in one namespace, as a reader would in one session.
_SESSION = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "<docs>", "exec"), names)
    sys.stdout.flush()
    print("\\0done", flush=True)
"""


def runs(block: Block) -> bool:
    return block.language in _RUN and not {"file", "skip"} & set(block.options)


class Reader:
    """Does what a page says, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = str(Path(sys.executable).parent)
        self._env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1"}
        self._python: subprocess.Popen[str] | None = None

    def do(self, block: Block) -> None:
        if "file" in block.options:
            (self._folder / block.options["file"]).write_text(block.text)
        elif block.language == "bash":
            self._bash(block)
        else:
            self._exec(block)

    def close(self) -> None:
        if self._python is not None:
            self._python.communicate(timeout=30)

    def _bash(self, block: Block) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, f"line {block.line}:\n{block.text}\n{done.stdout}"

    def _exec(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _SESSION],
                cwd=self._folder,
                env=self._env | {"PYTHONPATH": str(self._folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(block.text) + "\n")
        self._python.stdin.flush()
        said: list[str] = []
        for line in self._python.stdout:
            if line == "\0done\n":
                return
            said.append(line)
        pytest.fail(f"line {block.line}:\n{block.text}\n{''.join(said)}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", [page for page in pages() if any(map(runs, blocks(page)))], ids=name_of
)
def test_the_examples_of_a_page_work(page: Path, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    reader = Reader(folder)
    try:
        for block in blocks(page):
            if runs(block) or "file" in block.options:
                reader.do(block)
    finally:
        reader.close()


def test_an_example_that_is_not_run_says_why_and_few_are() -> None:
    found = [(page, block) for page in pages() for block in blocks(page)]
    skipped = [(page, block) for page, block in found if "skip" in block.options]
    assert all(len(block.options["skip"]) > 10 for _, block in skipped)
    assert len(skipped) <= _MOST_SKIPPED


def test_every_block_says_its_language() -> None:
    known = {"bash", "python", "text", "toml", "yaml", "mermaid"}
    odd = [
        (name_of(page), block.line)
        for page in pages()
        for block in blocks(page)
        if block.language not in known
    ]
    assert not odd
