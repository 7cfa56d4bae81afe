"""Reads TOML strictly: errors name the file and the key; unknown keys get a suggestion."""

from collections.abc import Collection
from typing import Any

from retarget.core.errors import Invalid


def parse_toml(content: bytes, path: str) -> dict[str, Any]:
    """Return the content of the file at `path`, or raise Invalid."""
    from tomllib import loads  # here, because most submissions read no TOML

    try:
        return loads(content.decode())
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not text in UTF-8") from None
    except ValueError as error:  # TOMLDecodeError, or a number with too many digits
        raise Invalid(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise Invalid(f"{path} is not valid TOML: it is nested too deeply") from None


def check_keys(table: dict[str, Any], known: Collection[str], where: str) -> None:
    """Raise Invalid if the table has an unknown key. `where` names the file and the table."""
    for key in table:
        if key not in known:
            raise Invalid(f"{where}: unknown key {key!r}; {suggest(key, known)}", field=key)


def suggest(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(name, known, n=1)
    return f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(known)}"
