"""Finds credentials in the addresses of package indexes, which must not be stored."""

import re

_HIDDEN = "****"
_USER_INFO = re.compile(r"(?P<scheme>[a-z+]+)://(?P<user>[^\s/@:]*)(?P<password>:[^\s/]*)?@", re.I)
_TOKEN_IN_PATH = re.compile(r"(https?://\S*?/t/)(?!\$\{)[^/\s]+(?=/)")  # Anaconda's channels
_VARIABLES = re.compile(r"(?:\$\{\w+\})*")


def has_credentials(text: str) -> bool:
    """Return whether an address contains a password or a token.

    `${NAME}` does not count: its value is known only where the environment is built. The user of
    an SSH address does not count either.
    """
    return any(_is_secret(match) for match in _USER_INFO.finditer(text)) or bool(
        _TOKEN_IN_PATH.search(text)
    )


def without_credentials(text: str) -> str:
    """Mask the credentials in all addresses of a string."""
    masked = _USER_INFO.sub(
        lambda match: f"{match['scheme']}://{_HIDDEN}@" if _is_secret(match) else match[0], text
    )
    return _TOKEN_IN_PATH.sub(rf"\1{_HIDDEN}", masked)


def credentials_refused(text: str) -> str:
    """Return the sentence that refuses an address, and says where credentials belong."""
    return (
        f"{without_credentials(text)!r} contains credentials, which would be stored with the "
        "environment; put them into the uv.toml, pip.conf or .netrc of the machine that builds it, "
        "or write ${NAME} instead and pass the variable NAME to the job"
    )


def _is_secret(match: re.Match[str]) -> bool:
    password = (match["password"] or "").removeprefix(":")
    if password:
        return not _VARIABLES.fullmatch(password)
    return "ssh" not in match["scheme"] and not _VARIABLES.fullmatch(match["user"])
