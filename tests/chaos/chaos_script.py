"""The script of this suite's jobs: `python chaos_script.py KIND`. It records what it did.

Standard library only. The folder in CHAOS is outside of the work folder: `starts` has a line for
every start with its time, `finished` has one for every script that ended by itself, and a file for
every launch and rank has the bytes that were written to stdout afterwards. A file
`track.LAUNCH.RANK` has a byte for every call of `track.log` that has returned.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

STEP = 1 << 20  # the most bytes that are written at once
BURST = 50 << 20
OUTPUTS = {
    "outputs/empty": 0,
    "outputs/small.txt": 100,
    "outputs/deep/er/model.bin": 3_000_000,
    **{f"outputs/many/{number}": 1000 + number for number in range(30)},
}
WRITES = ("outputs", "late")
TRACKS = ("tracks", "tracking")
POINTS = 4000
ARTIFACT = "best/model"
CHILD_SECONDS = 60.0  # how long a child that is left behind would live


def content(path: str) -> bytes:
    """Return the content of the output file `path`."""
    return random.Random(path).randbytes(OUTPUTS[path])


def main(kind: str) -> int:
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("starts")
    if kind == "children":
        _start_children()
    if kind in TRACKS:
        _track(kind)
    for piece in _pieces(kind):
        write_output(piece)
    if kind in WRITES:
        _write_outputs()
    code = _exit_code(kind)
    note("finished")
    return code


def note(name: str) -> None:
    """Add a line about this launch and rank."""
    words = (os.environ[name] for name in ("RETARGET_LAUNCH", "RANK", "RETARGET_JOB"))
    _append(_records() / name, f"{' '.join(words)} {time.time():.3f}\n".encode())


def write_output(piece: bytes) -> None:
    """Write to the record and then to stdout."""
    assert len(piece) <= STEP
    _append(_records() / f"{os.environ['RETARGET_LAUNCH']}.{os.environ['RANK']}", piece)
    while piece:
        piece = piece[os.write(1, piece) :]


def _track(kind: str) -> None:
    """Log points, thousands per second: a fixed number, or until the gate is open."""
    from retarget import track

    launch, rank = os.environ["RETARGET_LAUNCH"], os.environ["RANK"]
    gate = _records() / f"gate.{os.environ['RETARGET_JOB']}"
    returned = os.open(_records() / f"track.{launch}.{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    step = 0
    while not gate.exists() if kind == "tracking" else step < POINTS:
        track.log({f"{launch}/{rank}": step}, step=step)
        os.write(returned, b".")
        step += 1
        time.sleep(0.01 if step % 100 == 0 else 0)
    track.artifact(__file__, ARTIFACT)


def _pieces(kind: str) -> Iterator[bytes]:
    source = random.Random(os.environ["RETARGET_LAUNCH"])
    if kind == "burst":
        yield from (source.randbytes(STEP) for _ in range(BURST // STEP))
    elif kind == "bar":
        for percent in range(0, 101, 2):
            yield f"\r{percent:3}% {'#' * (percent // 4)}".encode()
            time.sleep(0.02)
    elif kind == "binary":
        yield bytes(range(256)) + b"\xff\xfe\x00\r\n\x1b[31m\xc3"
        yield source.randbytes(10_000)
    elif kind in ("hold", "late", "deaf"):
        yield from _ticks(_records() / f"gate.{os.environ['RETARGET_JOB']}")
    else:
        for number in range(source.randrange(1, 20)):
            yield f"line {number} of {kind}\n".encode()
            time.sleep(0.005)
        yield b"the end, without a newline"


def _ticks(gate: Path) -> Iterator[bytes]:
    number = 0
    while not gate.exists():
        yield f"tick {number}\n".encode()
        number += 1
        time.sleep(0.02)


def _exit_code(kind: str) -> int:
    if kind == "fails":
        return 3
    starts = started_launches(_records(), os.environ["RETARGET_JOB"])
    return 3 if kind == "flaky" and len(starts) == 1 else 0


def started_launches(records: Path, job: str) -> list[str]:
    """Return the launch of each start of the script of a job of one process."""
    path = records / "starts"
    lines = path.read_text().splitlines() if path.exists() else []
    starts = [line.split() for line in lines]
    return [launch for launch, _, name, _ in starts if name == job]


def _start_children() -> None:
    """Leave a child, a child that ignores TERM, and a daemon in its own session."""
    # If this process is killed first, `stubborn` gets a broken pipe and would print that. But the
    # log is compared with a record that lacks the output of children.
    script, silent = [sys.executable, "-S", __file__], subprocess.DEVNULL
    subprocess.Popen([*script, "child"], stderr=silent)
    ready = subprocess.Popen([*script, "stubborn"], stdout=subprocess.PIPE, stderr=silent).stdout
    assert ready is not None
    ready.read(1)
    subprocess.run([*script, "daemon"], stderr=silent, check=False)


def _run_child(kind: str) -> None:
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b"!")
    if kind == "daemon":
        if os.fork():
            return
        os.setsid()
        if os.fork():
            return
    time.sleep(CHILD_SECONDS)


def _write_outputs() -> None:
    for path in OUTPUTS:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content(path))
    Path("logs/train.log").write_bytes(b"epoch 1\nepoch 2")


def _append(path: Path, piece: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while piece:
        piece = piece[os.write(file, piece) :]
    os.close(file)


def _records() -> Path:
    return Path(os.environ["CHAOS"])


if __name__ == "__main__":
    if sys.argv[1] in ("child", "stubborn", "daemon"):
        _run_child(sys.argv[1])
    else:
        sys.exit(main(sys.argv[1]))
