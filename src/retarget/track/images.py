"""Turns images of any kind into files that a browser can show."""

from __future__ import annotations

import os
import struct
import zlib

from retarget.track.files import keep_file
from retarget.track.writer import Writer

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

_SIGNATURES = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"<svg": ".svg",
}
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # those of PNG, by the number of channels


def keep_image(writer: Writer, name: str, image: Any, step: int | None) -> None:
    stem = f"images/{name}" if step is None else f"images/{name}/{step}"
    if isinstance(image, str) or hasattr(image, "__fspath__"):
        path = str(image)
        keep_file(writer, path, stem + (os.path.splitext(path)[1] or ".png"))
    elif isinstance(image, (bytes, bytearray)):
        content = bytes(image)
        suffixes = (suffix for start, suffix in _SIGNATURES.items() if content.startswith(start))
        writer.keep(stem + next(suffixes, ".png"), lambda part: _write(part, content))
    elif hasattr(image, "savefig"):
        writer.keep(f"{stem}.png", lambda part: image.savefig(part, format="png"))
    elif hasattr(image, "save"):
        writer.keep(f"{stem}.png", lambda part: image.save(part, format="PNG"))
    else:
        content = png(image)
        writer.keep(f"{stem}.png", lambda part: _write(part, content))


def png(image: Any) -> bytes:
    """Return an array of bytes, or of floats from 0 to 1, as a PNG file."""
    if hasattr(image, "detach"):  # a tensor
        image = image.detach().cpu().numpy()
    shape = _shape_of(image)
    channels = shape[2] if len(shape) == 3 else 1
    if len(shape) not in (2, 3) or channels not in _COLOUR_TYPES or 0 in shape:
        raise TypeError(
            "image: pass a path, bytes, a PIL image, a matplotlib figure, or an array of "
            f"H x W or H x W x 1 to 4, got {type(image).__name__} {shape or ''}".rstrip()
        )
    height, width = shape[:2]
    pixels, stride = _bytes_of(image), width * channels
    rows = (pixels[start : start + stride] for start in range(0, len(pixels), stride))
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _shape_of(image: Any) -> tuple[int, ...]:
    return tuple(getattr(image, "shape", ()))


def _bytes_of(image: Any) -> bytes:
    kind = image.dtype.kind
    if kind == "f":
        image = image.clip(0, 1) * 255 + 0.5
    elif kind == "b":
        image = image.astype("uint8") * 255
    elif kind not in "iu" or image.min() < 0 or image.max() > 255:
        raise ValueError(f"image: {image.dtype} must be bytes or floats from 0 to 1")
    return image.astype("uint8").tobytes()


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
