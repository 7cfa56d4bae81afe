"""Encrypts text with a key of the server, bound to what the text belongs to."""

import base64
import os
from typing import Any

_NONCE_BYTES = 12


class Unsealable(ValueError):
    """The text was sealed with another key or for another owner, or it is damaged."""


class Sealer:
    """Seals with AES-256-GCM. Each purpose has its own key, derived from the server's secret."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._secret = secret
        self._purpose = purpose.encode()

    def seal(self, text: str, *, owner: str) -> str:
        """Encrypt text. Only `unseal` with the same owner returns it."""
        nonce = os.urandom(_NONCE_BYTES)
        encrypted = self._cipher().encrypt(nonce, text.encode("utf-8", "replace"), owner.encode())
        return base64.b64encode(nonce + encrypted).decode()

    def unseal(self, sealed: str, *, owner: str) -> str:
        """Decrypt text, or raise Unsealable."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(sealed, validate=True)
            nonce, encrypted = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
            return self._cipher().decrypt(nonce, encrypted, owner.encode()).decode()
        except (ValueError, InvalidTag):
            raise Unsealable("the text cannot be decrypted") from None

    def _cipher(self) -> Any:
        # imported here because it takes 20 ms, which a server without secrets need not spend
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return AESGCM(HKDF(SHA256(), 32, salt=None, info=self._purpose).derive(self._secret))
