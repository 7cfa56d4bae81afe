"""Secrets in the settings of targets: encrypted where they are kept, hidden where they are shown.

A field of a kind's `Config` is a secret if its type is pydantic's `SecretStr`, at any depth.
"""

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, SecretStr

from retarget.core.errors import Invalid, TargetUnreachable

HIDDEN = "********"  # what is shown of a secret, and what leaves it as it is when it is sent back
_MARK = "sealed:1:"  # a setting of another kind may have a field named "secret", too
_NONCE = 12  # bytes

_Path = tuple[str | int, ...]
_Settings = dict[str, Any]


def seal(config: BaseModel, *, secret: bytes, target: str) -> _Settings:
    """Return settings as they are stored: JSON, and nobody reads a secret in it without `secret`.

    Raise Invalid for a secret that is only what is shown of one.
    """

    def sealed(value: SecretStr, path: _Path) -> _Settings:
        text = value.get_secret_value()
        if text == HIDDEN:
            field = ".".join(map(str, ("config", *path)))
            raise Invalid(f"{field}: {HIDDEN} stands for one that is kept; give it", field=field)
        nonce = os.urandom(_NONCE)
        hidden = _cipher(secret).encrypt(nonce, text.encode("utf-8", "replace"), target.encode())
        return {"secret": _MARK + base64.b64encode(nonce + hidden).decode()}

    return _joined(config.model_dump(mode="json"), config.model_dump(), sealed, ())


def unseal(stored: Mapping[str, Any], *, secret: bytes, target: str) -> _Settings:
    """Return stored settings with their secrets, or raise TargetUnreachable."""

    def opened(token: str, path: _Path) -> str:
        cipher = _cipher(secret)
        try:
            raw = base64.b64decode(token.removeprefix(_MARK), validate=True)
            return cipher.decrypt(raw[:_NONCE], raw[_NONCE:], target.encode()).decode()
        except (ValueError, _wrong_key()):
            name = next((str(part) for part in reversed(path) if isinstance(part, str)), "secret")
            raise TargetUnreachable(
                f"the stored {name.replace('_', ' ')} of target {target!r} cannot be read, as "
                "the server has another secret now; detach the target and attach it again"
            ) from None

    return _mapped(stored, opened, ())


def hide(stored: Mapping[str, Any]) -> _Settings:
    """Return stored settings as they are shown."""
    return _mapped(stored, lambda token, path: HIDDEN, ())


def keep(given: Any, stored: Any) -> Any:
    """Return what was given with what is stored in the place of each secret that is only shown."""
    if given == HIDDEN and _token(stored) is not None:
        return stored
    if isinstance(given, Mapping) and isinstance(stored, Mapping):
        old = cast(Mapping[str, Any], stored)
        return {
            name: keep(value, old.get(name))
            for name, value in cast(Mapping[str, Any], given).items()
        }
    if isinstance(given, list) and isinstance(stored, list):
        return _keep_each(cast(list[Any], given), cast(list[Any], stored))
    return cast(Any, given)


def _keep_each(given: list[Any], stored: list[Any]) -> list[Any]:
    # one that is as it was shown is the same one, wherever it stands now
    shown = [_shown(each) for each in stored]
    places = [shown.index(each) if each in shown else index for index, each in enumerate(given)]
    same = len(given) == len(stored)
    return [
        keep(each, stored[place]) if same or each in shown else each
        for each, place in zip(given, places, strict=True)
    ]


def _shown(stored: Any) -> Any:
    return _mapped(stored, lambda token, path: HIDDEN, ())


def _mapped(stored: Any, on_secret: Callable[[str, _Path], Any], path: _Path) -> Any:
    """Return the same with another value for each secret."""
    token = _token(stored)
    if token is not None:
        return on_secret(token, path)
    if isinstance(stored, Mapping):
        pairs = cast(Mapping[str, Any], stored).items()
        return {name: _mapped(each, on_secret, (*path, name)) for name, each in pairs}
    if isinstance(stored, list):
        each_one = enumerate(cast(list[Any], stored))
        return [_mapped(each, on_secret, (*path, index)) for index, each in each_one]
    return stored


def _joined(plain: Any, raw: Any, on_secret: Callable[[SecretStr, _Path], Any], path: _Path) -> Any:
    """Return `plain`, which is JSON, with another value where `raw`, the same, has a secret."""
    if isinstance(raw, SecretStr):
        return on_secret(raw, path)
    if isinstance(plain, dict):
        pairs = zip(
            cast(_Settings, plain).items(), cast(Mapping[Any, Any], raw).values(), strict=True
        )
        return {
            name: _joined(each, other, on_secret, (*path, name)) for (name, each), other in pairs
        }
    if isinstance(plain, list) and isinstance(raw, list | tuple):
        both = zip(cast(list[Any], plain), cast(Sequence[Any], raw), strict=True)
        return [
            _joined(*pair, on_secret=on_secret, path=(*path, index))
            for index, pair in enumerate(both)
        ]
    return cast(Any, plain)


def _token(stored: Any) -> str | None:
    if not isinstance(stored, Mapping) or list(cast(Mapping[str, Any], stored)) != ["secret"]:
        return None
    token = cast(Mapping[str, Any], stored)["secret"]
    return token if isinstance(token, str) and token.startswith(_MARK) else None


# It comes with the kinds that have secrets, and only they need it.
def _cipher(secret: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ModuleNotFoundError as missing:
        raise Invalid(
            f"a secret cannot be kept without {missing.name}: pip install 'retarget[ssh]'"
        ) from None
    derived = HKDF(SHA256(), 32, salt=None, info=b"retarget: secrets of targets").derive(secret)
    return AESGCM(derived)


def _wrong_key() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
