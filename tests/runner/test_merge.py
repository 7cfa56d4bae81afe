"""stdout and stderr as two files, and the log that is merged from them."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from retarget.runner.folder import Folder
from retarget.runner.merge import Merge
from tests.fuzz.mutated import noise
from tests.runner.harness import RunnerHarness

_WRITES = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=20)), max_size=20
)
_BOTH = "import sys; print('one', flush=True); print('two', file=sys.stderr); print('end', end='')"


@contextmanager
def launch_folder() -> Generator[Folder]:
    with tempfile.TemporaryDirectory() as path:
        (Path(path) / "streams").mkdir()
        yield Folder(path)


def write(folder: Folder, stream: str, content: bytes) -> None:
    with (Path(folder.streams) / stream).open("ab") as file:
        file.write(content)


def merged(folder: Folder) -> bytes:
    path = Path(folder.streams) / "output"
    return path.read_bytes() if path.exists() else b""


@given(_WRITES, st.data())
def test_every_byte_is_merged_once_whatever_is_killed(
    writes: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    with launch_folder() as folder:
        merge = Merge(folder)
        for stream, content in writes:
            write(folder, stream, content)
            merge.update(final=False)
            if data.draw(st.booleans()):  # killed before it had copied all
                cut_end(Path(folder.streams) / "output", data.draw(st.integers(0, 30)))
                merge = Merge(folder)
        merge.update(final=True)
        sent = {name: b"".join(part for at, part in writes if at == name) for name, _ in writes}
        assert sorted(merged(folder)) == sorted(b"".join(sent.values()))


def cut_end(path: Path, count: int) -> None:
    if path.exists():
        content = path.read_bytes()
        path.write_bytes(content[: max(0, len(content) - count)])


def test_lines_stay_whole_and_in_the_order_of_writing() -> None:
    with launch_folder() as folder:
        merge = Merge(folder)
        for stream, content in [
            ("stdout", b"one\nbegin"),
            ("stderr", b"warning\n50%\r"),
            ("stdout", b"ning\n"),
            ("stderr", b"no end"),
        ]:
            write(folder, stream, content)
            merge.update(final=False)
        assert merged(folder) == b"one\nwarning\n50%\rbeginning\n"
        merge.update(final=True)
        assert merged(folder) == b"one\nwarning\n50%\rbeginning\nno end"


@given(noise(b"[0, 4]\n[1, 3]\n"))
def test_a_damaged_index_stops_nothing(content: bytes) -> None:
    with launch_folder() as folder:
        Path(folder.file("merge.jsonl")).write_bytes(content)
        write(folder, "stdout", b"one\n")
        merge = Merge(folder)
        merge.update(final=True)


def test_the_script_writes_two_files_and_the_log_has_both(harness: RunnerHarness) -> None:
    reports = harness.run("python", "-c", _BOTH, split_stderr=True)
    assert reports.stream("stdout") == b"one\nend"
    assert reports.stream("stderr") == b"two\n"
    assert sorted(reports.stream("output")) == sorted(b"one\ntwo\nend")


def test_a_runner_that_takes_over_merges_the_rest(harness: RunnerHarness) -> None:
    code = (
        "import os, sys, time\n"
        "print('one', flush=True); print('two', file=sys.stderr)\n"
        "time.sleep(600)"
    )
    launch = harness.launch("python", "-c", code, split_stderr=True).start()
    launch.wait_for_output("output", b"two\n")
    launch.kill()
    launch.start()
    reports = launch.finish()
    assert reports.finished["outcome"] == "lost"
    assert sorted(reports.stream("output").splitlines()) == [b"one", b"two"]


def test_the_reason_quotes_stderr(harness: RunnerHarness) -> None:
    code = "import sys; print('x' * 100_000, flush=True); 1 / 0"
    last = harness.run("python", "-c", code, split_stderr=True).finished
    assert "ZeroDivisionError: division by zero" in last["reason"]
