"""The credentials of attempts: derived from the server's secret, never stored.

Each attempt has two. Its runner proves with the runner's key that it is the runner, and never sends
it. Its script sends the script's token, which opens tracking and nothing else.
"""

import hashlib
import hmac

_PREFIX = "rtj"


def runner_key(secret: bytes, key: str) -> str:
    """Return the key of the runner of an attempt. The same secret gives the same key."""
    return _derive(secret, f"runner:{key}")


def script_token(secret: bytes, key: str) -> str:
    """Return the token of the script of an attempt. The same secret gives the same token."""
    return f"{_PREFIX}.{key}.{_derive(secret, f'script:{key}')}"


def is_token_for(secret: bytes, token: str, key: str) -> bool:
    """Return whether `token` belongs to the script of the attempt with this key."""
    return hmac.compare_digest(token.encode(), script_token(secret, key).encode())


def is_script_token(token: str) -> bool:
    return token.startswith(f"{_PREFIX}.")


def key_of(token: str) -> str:
    """Return the attempt key that a token claims to belong to. The claim is not verified."""
    return token.removeprefix(f"{_PREFIX}.").rpartition(".")[0]


def _derive(secret: bytes, purpose: str) -> str:
    return hmac.new(secret, purpose.encode(), hashlib.sha256).hexdigest()
