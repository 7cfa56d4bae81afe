"""Secrets in the settings of targets: encrypted in the store, masked in views.

A field of a kind's `Config` is a secret if its type is pydantic's `SecretStr`, at any depth.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, SecretStr

from retarget.control.sealing import Sealer, Unsealable
from retarget.core.errors import Invalid, TargetUnreachable

HIDDEN = "********"  # shown instead of a secret; sent back, it keeps the stored secret
_PREFIX = "sealed:1:"  # distinguishes a secret from another setting that is named "secret"
_PURPOSE = "retarget: secrets of targets"

_Path = tuple[str | int, ...]
_Settings = dict[str, Any]


def seal(config: BaseModel, *, secret: bytes, target: str) -> _Settings:
    """Return settings as they are stored: JSON, in which secrets are encrypted with `secret`.

    Raise Invalid for a secret that is only the mask.
    """

    def encrypt(value: SecretStr, path: _Path) -> _Settings:
        text = value.get_secret_value()
        if text == HIDDEN:
            field = ".".join(map(str, ("config", *path)))
            raise Invalid(
                f"{field}: {HIDDEN} only masks a secret; enter the secret itself", field=field
            )
        return {"secret": _PREFIX + Sealer(secret, _PURPOSE).seal(text, owner=target)}

    return _merge_secrets(config.model_dump(mode="json"), config.model_dump(), encrypt, ())


def unseal(stored: Mapping[str, Any], *, secret: bytes, target: str) -> _Settings:
    """Return stored settings with decrypted secrets, or raise TargetUnreachable."""

    def decrypt(token: str, path: _Path) -> str:
        try:
            return Sealer(secret, _PURPOSE).unseal(token.removeprefix(_PREFIX), owner=target)
        except Unsealable:
            name = next((str(part) for part in reversed(path) if isinstance(part, str)), "secret")
            raise TargetUnreachable(
                f"the stored {name.replace('_', ' ')} of target {target!r} cannot be decrypted "
                "because the server's secret has changed; detach the target and attach it again"
            ) from None

    return _replace_secrets(stored, decrypt, ())


def hide(stored: Mapping[str, Any]) -> _Settings:
    """Return stored settings with masked secrets."""
    return _mask(stored)


def restore_hidden(settings: Any, stored: Any) -> Any:
    """Return new settings in which every mask is replaced by the stored secret."""
    if settings == HIDDEN and _token(stored) is not None:
        return stored
    if isinstance(settings, Mapping) and isinstance(stored, Mapping):
        old = cast(Mapping[str, Any], stored)
        return {
            name: restore_hidden(value, old.get(name))
            for name, value in cast(Mapping[str, Any], settings).items()
        }
    if isinstance(settings, list) and isinstance(stored, list):
        return _restore_items(cast(list[Any], settings), cast(list[Any], stored))
    return cast(Any, settings)


def _restore_items(items: list[Any], stored: list[Any]) -> list[Any]:
    # an item that equals a masked stored one is that one, wherever it is in the list now
    masked = [_mask(item) for item in stored]
    indexes = [masked.index(item) if item in masked else index for index, item in enumerate(items)]
    same_length = len(items) == len(stored)
    return [
        restore_hidden(item, stored[index]) if same_length or item in masked else item
        for item, index in zip(items, indexes, strict=True)
    ]


def _mask(stored: Any) -> Any:
    return _replace_secrets(stored, lambda token, path: HIDDEN, ())


def _replace_secrets(stored: Any, on_secret: Callable[[str, _Path], Any], path: _Path) -> Any:
    """Return stored settings in which `on_secret` has replaced every secret."""
    token = _token(stored)
    if token is not None:
        return on_secret(token, path)
    if isinstance(stored, Mapping):
        items = cast(Mapping[str, Any], stored).items()
        return {name: _replace_secrets(value, on_secret, (*path, name)) for name, value in items}
    if isinstance(stored, list):
        items = enumerate(cast(list[Any], stored))
        return [_replace_secrets(value, on_secret, (*path, index)) for index, value in items]
    return stored


def _merge_secrets(
    plain: Any, raw: Any, on_secret: Callable[[SecretStr, _Path], Any], path: _Path
) -> Any:
    """Return `plain` in which `on_secret` has replaced every secret. `raw` shows where they are."""
    if isinstance(raw, SecretStr):
        return on_secret(raw, path)
    if isinstance(plain, dict):
        pairs = zip(
            cast(_Settings, plain).items(), cast(Mapping[Any, Any], raw).values(), strict=True
        )
        return {
            name: _merge_secrets(value, raw_value, on_secret, (*path, name))
            for (name, value), raw_value in pairs
        }
    if isinstance(plain, list) and isinstance(raw, list | tuple):
        pairs = zip(cast(list[Any], plain), cast(Sequence[Any], raw), strict=True)
        return [
            _merge_secrets(*pair, on_secret=on_secret, path=(*path, index))
            for index, pair in enumerate(pairs)
        ]
    return cast(Any, plain)


def _token(stored: Any) -> str | None:
    if not isinstance(stored, Mapping) or list(cast(Mapping[str, Any], stored)) != ["secret"]:
        return None
    token = cast(Mapping[str, Any], stored)["secret"]
    return token if isinstance(token, str) and token.startswith(_PREFIX) else None
