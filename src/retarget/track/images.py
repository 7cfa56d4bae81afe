"""Images of any kind, as files that a browser shows."""

from __future__ import annotations

import os
import struct
import zlib

from retarget.track.files import keep_file
from retarget.track.place import Place

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

_BEGINNINGS = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"<svg": ".svg",
}
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # PNG's number for so many channels


def keep_image(place: Place, name: str, image: Any, step: int | None) -> None:
    stem = f"images/{name}" if step is None else f"images/{name}/{step}"
    if isinstance(image, str) or hasattr(image, "__fspath__"):
        path = str(image)
        keep_file(place, path, stem + (os.path.splitext(path)[1] or ".png"))
    elif isinstance(image, (bytes, bytearray)):
        content = bytes(image)
        kinds = (kind for begin, kind in _BEGINNINGS.items() if content.startswith(begin))
        place.keep(stem + next(kinds, ".png"), lambda part: _write(part, content))
    elif hasattr(image, "savefig"):
        place.keep(f"{stem}.png", lambda part: image.savefig(part, format="png"))
    elif hasattr(image, "save"):
        place.keep(f"{stem}.png", lambda part: image.save(part, format="PNG"))
    else:
        content = png(image)
        place.keep(f"{stem}.png", lambda part: _write(part, content))


def png(image: Any) -> bytes:
    """Return an array of bytes, or of floats from 0 to 1, as a PNG file."""
    if hasattr(image, "detach"):  # a tensor
        image = image.detach().cpu().numpy()
    shape = _shape_of(image)
    channels = shape[2] if len(shape) == 3 else 1
    if len(shape) not in (2, 3) or channels not in _COLOURS or 0 in shape:
        raise TypeError(
            "image: give a path, bytes, a PIL image, a matplotlib figure, or an array of "
            f"H x W or H x W x 1 to 4; this is {type(image).__name__} {shape or ''}".rstrip()
        )
    height, width = shape[:2]
    pixels, row = _bytes_of(image), width * channels
    lines = b"".join(b"\0" + pixels[at : at + row] for at in range(0, len(pixels), row))
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    parts = (_part(b"IHDR", head), _part(b"IDAT", zlib.compress(lines, 6)), _part(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _shape_of(image: Any) -> tuple[int, ...]:
    return tuple(getattr(image, "shape", ()))


def _bytes_of(image: Any) -> bytes:
    kind = image.dtype.kind
    if kind == "f":
        image = image.clip(0, 1) * 255 + 0.5
    elif kind == "b":
        image = image.astype("uint8") * 255
    elif kind not in "iu" or image.min() < 0 or image.max() > 255:
        raise ValueError(f"image: {image.dtype} must be bytes, or floats from 0 to 1")
    return image.astype("uint8").tobytes()


def _part(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
