"""Runs every example in the documentation, page by page, each in its own folder and home."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import Block, blocks, name_of, pages

_LANGUAGES = ("bash", "python")
_MAX_SKIPPED = 12
_OUTPUT_PATH = re.compile(r"""["']outputs(?:/|["']\) */)""")
_CREATE_OUTPUTS = re.compile(r"""["']outputs["']\)\.mkdir\(|makedirs\(["']outputs""")
# Runs the Python blocks of one page in one namespace, as a reader would in one session.
_SESSION = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "<docs>", "exec"), names)
    sys.stdout.flush()
    print("\\0done", flush=True)
"""


def is_run(block: Block) -> bool:
    return block.language in _LANGUAGES and not {"file", "skip"} & set(block.options)


class Reader:
    """Follows the instructions of a page, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        programs = str(Path(sys.executable).parent)
        self._variables = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1"}
        self._python: subprocess.Popen[str] | None = None

    def do(self, block: Block) -> None:
        if "file" in block.options:
            path = self._folder / block.options["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "bash":
            self._bash(block)
        else:
            self._exec(block)

    def close(self) -> None:
        if self._python is not None:
            self._python.communicate(timeout=200)

    def _bash(self, block: Block) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self._folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"line {block.line}:\n{block.text}\n{done.stdout}"

    def _exec(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _SESSION],
                cwd=self._folder,
                env=self._variables | {"PYTHONPATH": str(self._folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(block.text) + "\n")
        self._python.stdin.flush()
        output: list[str] = []
        for line in self._python.stdout:
            if line == "\0done\n":
                return
            output.append(line)
        pytest.fail(f"line {block.line}:\n{block.text}\n{''.join(output)}")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [page for page in pages() if any(map(is_run, blocks(page)))], ids=name_of
)
def test_the_examples_of_a_page_work(page: Path, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    reader = Reader(folder)
    try:
        for block in blocks(page):
            if is_run(block) or "file" in block.options:
                reader.do(block)
    finally:
        reader.close()


def test_few_examples_are_skipped_and_each_has_a_reason() -> None:
    every_block = [block for page in pages() for block in blocks(page)]
    skipped = [block for block in every_block if "skip" in block.options]
    assert all(len(block.options["skip"]) > 10 for block in skipped)
    assert len(skipped) <= _MAX_SKIPPED


def test_every_script_that_writes_to_outputs_creates_the_folder() -> None:
    """So that it also runs with `python`, where no runner has created it."""
    scripts = [
        (name_of(page), block)
        for page in pages()
        for block in blocks(page)
        if block.options.get("file", "").endswith(".py")
    ]
    parts = [(name, block.line, _OUTPUT_PATH.split(block.text, 1)) for name, block in scripts]
    writing = [(name, line, code[0]) for name, line, code in parts if len(code) > 1]
    assert writing
    assert not [
        (name, line) for name, line, before in writing if not _CREATE_OUTPUTS.search(before)
    ]


def test_every_block_has_a_known_language() -> None:
    languages = {"bash", "python", "json", "text", "toml", "yaml", "mermaid"}
    others = [
        (name_of(page), block.line)
        for page in pages()
        for block in blocks(page)
        if block.language not in languages
    ]
    assert not others
