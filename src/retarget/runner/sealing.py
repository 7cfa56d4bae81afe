"""Encrypts the values of secrets on their way from the server to a runner.

Only the standard library is there at both ends: the keystream is HMAC-SHA256 in counter mode, and a
MAC over the ciphertext is checked first.
"""

from __future__ import annotations

import base64
import hmac
import os

_NONCE_BYTES = 16
_MAC_BYTES = 32


def seal(key: str, content: bytes) -> str:
    """Encrypt bytes under a key derived from the runner's key."""
    nonce = os.urandom(_NONCE_BYTES)
    ciphertext = nonce + _apply_keystream(key, nonce, content)
    return base64.b64encode(ciphertext + _mac(key, ciphertext)).decode()


def unseal(key: str, sealed: str) -> bytes:
    """Decrypt what `seal` returned. ValueError: it was altered, or sealed with another key."""
    content = base64.b64decode(sealed, validate=True)
    ciphertext, mac = content[:-_MAC_BYTES], content[-_MAC_BYTES:]
    if len(ciphertext) < _NONCE_BYTES or not hmac.compare_digest(mac, _mac(key, ciphertext)):
        raise ValueError("the sealed content does not match its key")
    return _apply_keystream(key, ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:])


def _apply_keystream(key: str, nonce: bytes, content: bytes) -> bytes:
    encryption_key = _derive(key, b"seal: encryption")
    stream = b"".join(
        hmac.digest(encryption_key, nonce + counter.to_bytes(8, "big"), "sha256")
        for counter in range((len(content) + 31) // 32)
    )
    size = len(content)
    mixed = int.from_bytes(content, "big") ^ int.from_bytes(stream[:size], "big")
    return mixed.to_bytes(size, "big")


def _mac(key: str, ciphertext: bytes) -> bytes:
    return hmac.digest(_derive(key, b"seal: authentication"), ciphertext, "sha256")


def _derive(key: str, purpose: bytes) -> bytes:
    return hmac.digest(key.encode(), purpose, "sha256")
