"""Finds out why a script failed, from the last bytes of its log.

Pure functions of bytes: whatever a script wrote, they raise nothing, and what they return is short
and printable.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Sequence

TAIL_BYTES = 1 << 16  # how much of the end of a log is searched
MAX_CHARACTERS = 400  # of a cause

_MAX_LINE_CHARACTERS = 4000
_MAX_LINES_AFTER = 50  # non-empty lines: an exception further up is not why the script ended
# it may follow a progress bar on the same line
_HEADER = re.compile(r".*Traceback \(most recent call last\):\s*")
_GROUP_HEADER = re.compile(r"\s+\+ (Exception Group Traceback \(most recent call last\):)\s*")
_GROUP_LINE = re.compile(r"\s+(?:\| ?|\+-.*)")
_SUB_EXCEPTIONS = re.compile(r".*\(\d+ sub-exceptions?\)")
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)(, in .*)?')
_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?::(.*))?")
_SYNTAX_ERROR = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b.*")
_RANK = re.compile(r"\[[A-Za-z_]\w*?(\d+)\]:[ ]?")  # as PyTorch writes: [rank1]: …, [default1]:…
_FAILED_RANK = re.compile(r"\s*rank\s*:\s*(\d+)\b.*")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# how the program that runs notebooks ends: see notebook.py
_CELL = re.compile(r"retarget: (cell \d+ of .+?) failed: (.*)")
# A last line after a traceback that says more about the end than the traceback.
_VERDICT = re.compile(r".*(?:: error: .*|: (?:command )?not found)")
_COMPLAINT = re.compile(
    r".*(?:\berror\b|\bexception\b|\bfatal\b|\bpanic|\bfail(?:ed|ure)\b|\bkilled\b|\baborted\b"
    r"|segmentation fault|core dumped|out of memory|no space left|permission denied|not permitted"
    r"|no such file|not found|no module named|can't |cannot |could not |unable to"
    r"|(?-i:[a-z](?:Error|Exception)\b)).*",
    re.IGNORECASE,
)


class _Line(NamedTuple):
    text: str
    rank: str  # of the process that wrote it; empty unless the line begins with one
    in_group: bool  # it belongs to the traceback of an exception group
    opens_group: bool


class _Raised(NamedTuple):
    """An exception that a log shows."""

    error: str  # its type and message: `ValueError: no data`
    location: str  # the innermost line of the user's code: `train.py:12`
    rank: str
    end: int  # the line of the log with its message

    @property
    def kind(self) -> str:
        return self.error.partition(":")[0].rpartition(".")[2]


def describe_failure(title: str, code: int, cause: str, last_line: str = "") -> str:
    """Return the reason of a failed attempt: `exit code 1: ValueError: no data (train.py:12)`."""
    if not cause:
        end = f"; its last line: {last_line}" if last_line else ""
        return f"{title} ended with exit code {code}{end}"
    process = "" if title == "the script" else f"{title}: "
    return f"{process}exit code {code}: {cause}"


def find_cause(tail: bytes, roots: Sequence[str]) -> str:
    """Return why a script failed; empty if its log does not say so.

    `tail` is the end of the log, `roots` are the paths of the code folder: those below it are
    shown relative to it.
    """
    lines = _lines(tail)
    last = _last_text(lines)
    cell = _CELL.fullmatch(last)
    if cell:
        return _describe(_Raised(cell[2], cell[1], "", len(lines)), roots)
    raised = _last_raised(lines, roots)
    if raised is not None and not _VERDICT.fullmatch(last):
        return _describe(raised, roots)
    return _printable(last, roots) if _COMPLAINT.fullmatch(last) else ""


def find_last_line(tail: bytes, roots: Sequence[str]) -> str:
    """Return the last line with text: what `sys.exit("no data")` writes, or only progress."""
    return _printable(_last_text(_lines(tail)), roots)


def find_last_exception(tail: bytes, roots: Sequence[str]) -> str:
    """Return the exception that a log ends with; empty if it does not end with one."""
    lines = _lines(tail)
    raised = _last_raised(lines, roots)
    if raised is None or any(line.text.strip() for line in lines[raised.end + 1 :]):
        return ""
    return _describe(raised, roots)


def _lines(tail: bytes) -> list[_Line]:
    text = tail[-TAIL_BYTES:].decode("utf-8", "backslashreplace")
    rows = _ESCAPE.sub("", text).split("\n")
    if len(tail) >= TAIL_BYTES:
        del rows[0]  # it may have lost its beginning
    return [_line(row) for row in rows]


def _line(row: str) -> _Line:
    """Parse a row. Of a line that was overwritten with carriage returns, the last text counts."""
    text = row.rstrip("\r").rpartition("\r")[2][:_MAX_LINE_CHARACTERS]
    rank = _RANK.match(text)
    if rank:
        text = text[rank.end() :]
    opens = _GROUP_HEADER.fullmatch(text)
    inside = None if opens else _GROUP_LINE.match(text)
    text = opens[1] if opens else text[inside.end() :] if inside else text
    return _Line(text, rank[1] if rank else "", bool(opens or inside), bool(opens))


def _last_raised(lines: list[_Line], roots: Sequence[str]) -> _Raised | None:
    """Return the last exception of a log, unless too much follows it.

    If that is torchrun's report of a failed process, return the exception of that process.
    """
    starts = [number for number, line in enumerate(lines) if _is_start(line.text)]
    raised = _latest(lines, starts, roots)
    if raised is None or _count_texts(lines[raised.end + 1 :]) > _MAX_LINES_AFTER:
        return None
    if raised.kind != "ChildFailedError":
        return raised
    rank = _failed_rank(lines[raised.end :])
    earlier = [number for number in starts if lines[number].rank == rank != ""] or [
        number for number in starts if not lines[number].rank
    ]
    child = _latest(lines, earlier, roots, exclude="ChildFailedError")
    return raised if child is None else child._replace(rank=rank)


def _latest(
    lines: list[_Line], starts: list[int], roots: Sequence[str], exclude: str = ""
) -> _Raised | None:
    for start in reversed(starts):
        raised = _read_group(lines, start, roots) or _read(lines, start, roots)
        if raised is not None and raised.kind != exclude:
            return raised
    return None


def _is_start(text: str) -> bool:
    """Return whether a traceback begins here. That of a syntax error may be a single frame."""
    if _HEADER.fullmatch(text):
        return True
    frame = _FRAME.fullmatch(text)
    return frame is not None and frame[3] is None


def _read(lines: list[_Line], start: int, roots: Sequence[str]) -> _Raised | None:
    """Read the traceback that begins at `start`; None if it is incomplete."""
    first, location = lines[start], _location(lines[start].text, roots)
    is_header = _HEADER.fullmatch(first.text) is not None
    margin = _indent(first.text) if first.text.lstrip().startswith("Traceback") else 0
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if line.rank != first.rank or not line.text.strip():
            continue  # another process wrote it
        if _indent(line.text) > margin:
            location = _location(line.text, roots) or location
            continue
        text = line.text.strip()
        if not (_ERROR.fullmatch(text) if is_header else _SYNTAX_ERROR.fullmatch(text)):
            return None
        return _Raised(_with_message(lines, number), location, first.rank, number)
    return None


def _read_group(lines: list[_Line], start: int, roots: Sequence[str]) -> _Raised | None:
    """Read the traceback of an exception group around `start`: its title and its first error."""
    if not lines[start].in_group:
        return None
    while start >= 0 and lines[start].in_group and not lines[start].opens_group:
        start -= 1
    if start < 0 or not lines[start].opens_group:
        return None
    title, location, first = "", "", lines[start]
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if not line.in_group:
            break
        text = line.text
        location = _location(text, roots) or location
        is_error = _indent(text) == 0 and _ERROR.fullmatch(text) and not _is_start(text)
        if is_error and (not title or _SUB_EXCEPTIONS.fullmatch(text)):
            title = title or text
        elif is_error:
            end = _end_of_group(lines, number)
            return _Raised(f"{title}: {_with_message(lines, number)}", location, first.rank, end)
    return None


def _end_of_group(lines: list[_Line], number: int) -> int:
    while number + 1 < len(lines) and lines[number + 1].in_group:
        number += 1
    return number


def _with_message(lines: list[_Line], number: int) -> str:
    """Return the line of an exception; if its message begins with a new line, with its text."""
    text = lines[number].text.strip()
    error = _ERROR.fullmatch(text)
    if error is None or error[2] is None or error[2].strip():
        return text
    following = (line.text.strip() for line in lines[number + 1 : number + 5])
    return f"{text} {next((line for line in following if line), '')}".strip()


def _location(text: str, roots: Sequence[str]) -> str:
    """Return `train.py:12` for the line of a frame in the code folder, else an empty string."""
    frame = _FRAME.match(text)
    if frame is None or "/site-packages/" in frame[1]:
        return ""
    for root in roots:
        if frame[1].startswith(f"{root}/"):
            return f"{frame[1][len(root) + 1 :]}:{frame[2]}"
    # before Python 3.9 the path of the script itself is relative
    is_relative = not frame[1].startswith(("/", "<", ".."))
    return f"{frame[1]}:{frame[2]}" if is_relative else ""


def _describe(raised: _Raised, roots: Sequence[str]) -> str:
    rank = f"rank {raised.rank}: " if raised.rank else ""
    location = f" ({_printable(raised.location, ())})" if raised.location else ""
    return f"{rank}{_printable(raised.error.rstrip(': '), roots)}{location}"


def _printable(text: str, roots: Sequence[str]) -> str:
    """Return one short line in which paths of the code folder are relative to it.

    Programs of the layer beside that folder are shown without their path.
    """
    for root in roots:
        text = text.replace(f"{root}/", "").replace(root, ".")
        text = text.replace(f"{root.rpartition('/')[0]}/layer/bin/", "")
    text = " ".join(text.split())
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "replace").decode()
        for char in text
    )
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _failed_rank(lines: list[_Line]) -> str:
    """Return the rank in torchrun's report that failed first: it is named last."""
    ranks = (_FAILED_RANK.fullmatch(line.text) for line in reversed(lines))
    return next((rank[1] for rank in ranks if rank), "")


def _last_text(lines: list[_Line]) -> str:
    return next((line.text for line in reversed(lines) if line.text.strip()), "").strip()


def _count_texts(lines: list[_Line]) -> int:
    return sum(1 for line in lines if line.text.strip())


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
