"""The tokens of attempts: derived, so that none is stored, and each opens one door only."""

import hashlib
import hmac

_MARK = "rtj"


def attempt_token(secret: bytes, key: str) -> str:
    """Return the token of the attempt with this key. The same secret gives the same token."""
    proof = hmac.new(secret, f"attempt:{key}".encode(), hashlib.sha256).hexdigest()
    return f"{_MARK}.{key}.{proof}"


def opens(secret: bytes, token: str, key: str) -> bool:
    """Tell whether `token` is that of the attempt with this key."""
    return hmac.compare_digest(token.encode(), attempt_token(secret, key).encode())


def is_attempt_token(token: str) -> bool:
    return token.startswith(f"{_MARK}.")


def key_of(token: str) -> str:
    """Return the key of the attempt that a token claims to be for."""
    return token.removeprefix(f"{_MARK}.").rpartition(".")[0]
