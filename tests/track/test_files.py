"""Artifacts: files, folders and images, as they were at the call."""

import struct
import zlib

import pytest

from tests.track.conftest import Desk

# Just enough of an array: numpy has these, and no job needs numpy for track.
_ARRAY = """
class Kind:
    def __init__(self, kind): self.kind = kind
    def __str__(self): return self.kind
class Array:
    def __init__(self, shape, values, kind='u'):
        self.shape, self.values, self.dtype = shape, list(values), Kind(kind)
    def _map(self, change, kind): return Array(self.shape, map(change, self.values), kind)
    def clip(self, low, high): return self._map(lambda v: min(max(v, low), high), 'f')
    def astype(self, kind): return self._map(int, 'u')
    def __mul__(self, by): return self._map(lambda v: v * by, self.dtype.kind)
    def __add__(self, by): return self._map(lambda v: v + by, self.dtype.kind)
    def min(self): return min(self.values)
    def max(self): return max(self.values)
    def tobytes(self): return bytes(self.values)
"""


def test_a_file_is_kept_as_it_was_at_the_call(desk: Desk) -> None:
    desk.run(
        "open('model', 'w').write('first'); track.artifact('model')\n"
        "open('model', 'w').write('second'); track.artifact('model', name='best/model.bin')\n"
        "import pathlib; track.artifact(pathlib.Path('model'), 'by-path')"
    )
    assert desk.artifact("model") == b"first"
    assert desk.artifact("best/model.bin") == desk.artifact("by-path") == b"second"
    assert sorted(path.name for path in desk.track.iterdir() if path.is_file()) == [
        path.name for path in desk.track.glob("*.jsonl")
    ]


def test_an_artifact_that_is_kept_again_replaces_the_first(present: Desk) -> None:
    present.run("for n in range(3): open('f', 'w').write(str(n)); track.artifact('f')")
    assert present.artifact("f") == b"2"


def test_a_folder_is_kept_with_all_below_it(desk: Desk) -> None:
    desk.run(
        "import os\n"
        "os.makedirs('plots/deep'); open('plots/a', 'w').write('a')\n"
        "open('plots/deep/b', 'w').write('b'); os.symlink('a', 'plots/link')\n"
        "os.mkfifo('plots/pipe'); os.symlink('/', 'plots/all')\n"
        "track.artifacts('plots'); track.artifacts('plots/deep', 'other'); "
        "track.artifacts('plots/deep', '')"
    )
    root = desk.track / "artifacts"
    kept = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert kept == {"plots/a", "plots/deep/b", "plots/link", "other/b", "b"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("track.artifact('nothing')", "path: there is no file nothing"),
        ("track.artifact('.')", "use track.artifacts"),
        ("track.artifacts('nothing')", "folder: there is no folder"),
    ],
)
def test_what_is_not_there_is_said_at_the_call(present: Desk, call: str, said: str) -> None:
    present.run(
        f"try: {call}\nexcept OSError as error: assert {said!r} in str(error), error\n"
        "else: raise SystemExit('it went well')"
    )


def test_images_come_from_paths_bytes_and_objects(desk: Desk) -> None:
    desk.run(
        "open('photo.jpeg', 'wb').write(b'jpeg')\n"
        "track.image('path', 'photo.jpeg', step=7); track.image('gif', b'GIF89a', step=0)\n"
        "class Figure:\n"
        "    def savefig(self, path, format): open(path, 'w').write(format)\n"
        "class Picture:\n"
        "    def save(self, path, format): open(path, 'w').write(format)\n"
        "track.image('val/figure', Figure()); track.image('picture', Picture(), step=3)"
    )
    assert desk.artifact("images/path/7.jpeg") == b"jpeg"
    assert desk.artifact("images/gif/0.gif") == b"GIF89a"
    assert desk.artifact("images/val/figure.png") == b"png"
    assert desk.artifact("images/picture/3.png") == b"PNG"


def test_arrays_become_png_files(desk: Desk) -> None:
    desk.run(
        _ARRAY + "track.image('grey', Array((2, 3), range(6)))\n"
        "track.image('rgb', Array((1, 2, 3), [1, 2, 3, 253, 254, 255]))\n"
        "track.image('rgba', Array((1, 1, 4), [9, 8, 7, 6]))\n"
        "track.image('floats', Array((1, 4), [-1.0, 0.0, 0.5, 2.0], 'f'))\n"
        "track.image('mask', Array((1, 2), [True, False], 'b'))\n"
        "track.image('ints', Array((1, 2), [0, 255], 'i'))"
    )
    assert _pixels(desk.artifact("images/grey.png")) == ((3, 2, 0), bytes(range(6)))
    assert _pixels(desk.artifact("images/rgb.png"))[0] == (2, 1, 2)
    assert _pixels(desk.artifact("images/rgba.png")) == ((1, 1, 6), bytes([9, 8, 7, 6]))
    assert _pixels(desk.artifact("images/floats.png"))[1] == bytes([0, 0, 128, 255])
    assert _pixels(desk.artifact("images/mask.png"))[1] == bytes([255, 0])
    assert _pixels(desk.artifact("images/ints.png"))[1] == bytes([0, 255])


@pytest.mark.parametrize("array", ["(1, 2), [0, 256], 'i'", "(1, 2), [-1, 0], 'i'"])
def test_numbers_that_are_no_bytes_are_refused(present: Desk, array: str) -> None:
    code = f"{_ARRAY}\ntry: track.image('a', Array({array}))\nexcept ValueError: pass\n"
    present.run(code + "else: raise SystemExit('it went well')")


@pytest.mark.parametrize("shape", ["(2,)", "(1, 1, 5)", "(0, 3)", "(1, 1, 1, 1)"])
def test_shapes_that_are_no_image_are_refused(present: Desk, shape: str) -> None:
    code = f"{_ARRAY}\ntry: track.image('a', Array({shape}, [1]))\nexcept TypeError: pass\n"
    present.run(code + "else: raise SystemExit('it went well')")


def _pixels(content: bytes) -> tuple[tuple[int, int, int], bytes]:
    """Return width, height and kind of colour of a PNG file, and its bytes."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    parts: dict[bytes, bytes] = {}
    at = 8
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        name, inside = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", content, at + 8 + size) == (zlib.crc32(name + inside),)
        parts[name] = inside
        at += 12 + size
    assert list(parts) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour = struct.unpack_from(">IIBB", parts[b"IHDR"])
    assert depth == 8
    lines = zlib.decompress(parts[b"IDAT"])
    row = len(lines) // height
    assert all(lines[at] == 0 for at in range(0, len(lines), row))
    pixels = b"".join(lines[at + 1 : at + row] for at in range(0, len(lines), row))
    return (width, height, colour), pixels
