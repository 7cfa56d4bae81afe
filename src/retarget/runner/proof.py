"""Proofs: how a runner and its server show each other that they know the runner's key.

The key itself is never sent. A request has a fresh nonce and a proof of its head, which contains
the digest of its body; the proof of an answer contains the nonce of its request. So nobody else can
answer, and no answer fits another request. A body that is streamed ends with a trailer instead: a
proof of everything before it.
"""

from __future__ import annotations

import hashlib
import hmac
import os

NONCE_HEADER = "Retarget-Nonce"
PROOF_HEADER = "Retarget-Proof"
DIGEST_HEADER = "Retarget-Digest"
TRAILER = "trailer"  # instead of a digest: the body is followed by a trailer
TRAILER_BYTES = 32


def new_nonce() -> str:
    return os.urandom(16).hex()


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def prove_request(key: str, nonce: str, method: str, target: str, digest: str) -> str:
    """Return the proof of a request. `target`: its path and query, as they are sent."""
    return _sign(key, "request", nonce, method, target, digest).hex()


def prove_answer(key: str, nonce: str, status: int, digest: str) -> str:
    """Return the proof of an answer to the request with this nonce."""
    return _sign(key, "answer", nonce, str(status), digest).hex()


def is_same(proof: str, expected: str) -> bool:
    """Compare two proofs or digests, in a time that does not depend on where they differ."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), expected.encode())


class Trailer:
    """Computes the trailer of a body from its chunks. `side`: "request" or "answer"."""

    def __init__(self, key: str, side: str, nonce: str) -> None:
        self._key = key
        self._labels = (f"{side} trailer", nonce)
        self._digest = hashlib.sha256()

    def add(self, chunk: bytes) -> bytes:
        self._digest.update(chunk)
        return chunk

    def value(self) -> bytes:
        return _sign(self._key, *self._labels, self._digest.hexdigest())


class DigestedBody:
    """A body whose digest is known before it arrives."""

    def __init__(self, digest: str) -> None:
        self._expected = digest
        self._digest = hashlib.sha256()

    def add(self, chunk: bytes) -> bytes:
        self._digest.update(chunk)
        return chunk

    def is_proven(self) -> bool:
        """Return whether the body is complete and unchanged. There are no more chunks."""
        return is_same(self._expected, self._digest.hexdigest())


class TrailedBody:
    """A body with a trailer, as it arrives: its last bytes are held back until it is complete."""

    def __init__(self, trailer: Trailer) -> None:
        self._trailer = trailer
        self._held = b""

    def add(self, chunk: bytes) -> bytes:
        """Return what is certainly before the trailer."""
        content = self._held + chunk
        end = max(0, len(content) - TRAILER_BYTES)
        self._held = content[end:]
        return self._trailer.add(content[:end])

    def is_proven(self) -> bool:
        """Return whether the body is complete and unchanged. There are no more chunks."""
        return hmac.compare_digest(self._held, self._trailer.value())


def _sign(key: str, *parts: str) -> bytes:
    # No part contains a line break: they come from the lines of an HTTP head.
    text = "\n".join(parts).encode("utf-8", "surrogateescape")
    return hmac.digest(key.encode(), text, "sha256")
