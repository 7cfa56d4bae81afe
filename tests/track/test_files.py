"""Artifacts are files, folders and images in their state at the call."""

import struct
import zlib

import pytest

from tests.track.conftest import TrackHarness

# The part of numpy's interface that `track` uses. No job needs numpy for it.
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


def test_an_artifact_is_the_file_at_the_time_of_the_call(harness: TrackHarness) -> None:
    harness.run(
        "open('model', 'w').write('first'); track.artifact('model')\n"
        "open('model', 'w').write('second'); track.artifact('model', name='best/model.bin')\n"
        "import pathlib; track.artifact(pathlib.Path('model'), 'by-path')"
    )
    assert harness.artifact("model") == b"first"
    assert harness.artifact("best/model.bin") == harness.artifact("by-path") == b"second"
    assert sorted(path.name for path in harness.track.iterdir() if path.is_file()) == [
        path.name for path in harness.track.glob("*.jsonl")
    ]


def test_a_second_artifact_of_the_same_name_replaces_the_first(
    current_harness: TrackHarness,
) -> None:
    current_harness.run("for n in range(3): open('f', 'w').write(str(n)); track.artifact('f')")
    assert current_harness.artifact("f") == b"2"


def test_a_folder_is_logged_with_all_files_below_it(harness: TrackHarness) -> None:
    harness.run(
        "import os\n"
        "os.makedirs('plots/deep'); open('plots/a', 'w').write('a')\n"
        "open('plots/deep/b', 'w').write('b'); os.symlink('a', 'plots/link')\n"
        "os.mkfifo('plots/pipe'); os.symlink('/', 'plots/all')\n"
        "track.artifacts('plots'); track.artifacts('plots/deep', 'other'); "
        "track.artifacts('plots/deep', '')"
    )
    root = harness.track / "artifacts"
    kept = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert kept == {"plots/a", "plots/deep/b", "plots/link", "other/b", "b"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("track.artifact('nothing')", "path: not found: nothing"),
        ("track.artifact('.')", "use track.artifacts"),
        ("track.artifacts('nothing')", "folder: not found: /"),
    ],
)
def test_missing_files_are_refused_at_the_call(
    current_harness: TrackHarness, call: str, message: str
) -> None:
    current_harness.run(
        f"try: {call}\nexcept OSError as error: assert {message!r} in str(error), error\n"
        "else: raise SystemExit('no error')"
    )


def test_images_come_from_paths_bytes_and_objects(harness: TrackHarness) -> None:
    harness.run(
        "open('photo.jpeg', 'wb').write(b'jpeg')\n"
        "track.image('path', 'photo.jpeg', step=7); track.image('gif', b'GIF89a', step=0)\n"
        "class Figure:\n"
        "    def savefig(self, path, format): open(path, 'w').write(format)\n"
        "class Picture:\n"
        "    def save(self, path, format): open(path, 'w').write(format)\n"
        "track.image('val/figure', Figure()); track.image('picture', Picture(), step=3)"
    )
    assert harness.artifact("images/path/7.jpeg") == b"jpeg"
    assert harness.artifact("images/gif/0.gif") == b"GIF89a"
    assert harness.artifact("images/val/figure.png") == b"png"
    assert harness.artifact("images/picture/3.png") == b"PNG"


def test_arrays_become_png_files(harness: TrackHarness) -> None:
    harness.run(
        _ARRAY + "track.image('grey', Array((2, 3), range(6)))\n"
        "track.image('rgb', Array((1, 2, 3), [1, 2, 3, 253, 254, 255]))\n"
        "track.image('rgba', Array((1, 1, 4), [9, 8, 7, 6]))\n"
        "track.image('floats', Array((1, 4), [-1.0, 0.0, 0.5, 2.0], 'f'))\n"
        "track.image('mask', Array((1, 2), [True, False], 'b'))\n"
        "track.image('ints', Array((1, 2), [0, 255], 'i'))"
    )
    assert _pixels(harness.artifact("images/grey.png")) == ((3, 2, 0), bytes(range(6)))
    assert _pixels(harness.artifact("images/rgb.png"))[0] == (2, 1, 2)
    assert _pixels(harness.artifact("images/rgba.png")) == ((1, 1, 6), bytes([9, 8, 7, 6]))
    assert _pixels(harness.artifact("images/floats.png"))[1] == bytes([0, 0, 128, 255])
    assert _pixels(harness.artifact("images/mask.png"))[1] == bytes([255, 0])
    assert _pixels(harness.artifact("images/ints.png"))[1] == bytes([0, 255])


@pytest.mark.parametrize("array", ["(1, 2), [0, 256], 'i'", "(1, 2), [-1, 0], 'i'"])
def test_numbers_that_are_not_bytes_are_refused(current_harness: TrackHarness, array: str) -> None:
    code = f"{_ARRAY}\ntry: track.image('a', Array({array}))\nexcept ValueError: pass\n"
    current_harness.run(code + "else: raise SystemExit('no error')")


@pytest.mark.parametrize("shape", ["(2,)", "(1, 1, 5)", "(0, 3)", "(1, 1, 1, 1)"])
def test_shapes_that_are_not_an_image_are_refused(
    current_harness: TrackHarness, shape: str
) -> None:
    code = f"{_ARRAY}\ntry: track.image('a', Array({shape}, [1]))\nexcept TypeError: pass\n"
    current_harness.run(code + "else: raise SystemExit('no error')")


def _pixels(content: bytes) -> tuple[tuple[int, int, int], bytes]:
    """Return the width, height and colour type of a PNG file, and its pixels."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    chunks: dict[bytes, bytes] = {}
    offset = 8
    while offset < len(content):
        (size,) = struct.unpack_from(">I", content, offset)
        start = offset + 8
        name, data = content[offset + 4 : start], content[start : start + size]
        assert struct.unpack_from(">I", content, start + size) == (zlib.crc32(name + data),)
        chunks[name] = data
        offset += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert depth == 8
    data = zlib.decompress(chunks[b"IDAT"])
    stride = len(data) // height
    rows = [data[start : start + stride] for start in range(0, len(data), stride)]
    assert all(row[0] == 0 for row in rows)
    return (width, height, colour), b"".join(row[1:] for row in rows)
