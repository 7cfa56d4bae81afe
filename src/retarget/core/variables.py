"""Rules for the environment variables of scripts, and for those that are secrets."""

import re

from retarget.core.errors import Invalid

# variables that the runner sets: a user's value would be overwritten
RESERVED_VARIABLES = frozenset({"AZUREML_RUN_ID"}) | {
    f"RETARGET_{name}" for name in ("JOB", "JOB_ID", "LAUNCH", "TRACK", "CONTAINER", "PYTHON")
}
SECRET_NAME_PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,199}"
MIN_SECRET_BYTES = 6  # masking a shorter value would hide parts of ordinary words and numbers
MAX_SECRET_BYTES = 65_536
_SECRET_NAME = re.compile(SECRET_NAME_PATTERN)
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIALS")
_SECRET_SUFFIXES = tuple(f"_{word}" for word in _SECRET_WORDS)


def check_secret_name(name: str) -> str:
    """Return `name` if a secret may have it, or raise Invalid with the rule."""
    if not _SECRET_NAME.fullmatch(name):
        raise Invalid(
            f"name: {name[:80]!a} is not a valid name for a secret; use letters, digits and "
            "'_', beginning with a letter or '_', as in HF_TOKEN",
            field="name",
        )
    if name in RESERVED_VARIABLES:
        raise Invalid(f"name: {name} is set by Retarget; choose another name", field="name")
    return name


def check_secret_value(value: str) -> str:
    """Return `value` if it can be stored as a secret. The message never repeats the value."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid("value: cannot be encoded as UTF-8", field="value") from None
    if "\0" in value:
        raise Invalid("value: must not contain a NUL character", field="value")
    if not MIN_SECRET_BYTES <= size <= MAX_SECRET_BYTES:
        raise Invalid(
            f"value: a secret must have {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES:,} bytes, "
            f"this one has {size:,}",
            field="value",
        )
    return value


def looks_secret(name: str) -> bool:
    """Return whether the name of a variable says that its value is a secret: HF_TOKEN, api_key."""
    upper = name.upper()
    return upper in _SECRET_WORDS or upper.endswith(_SECRET_SUFFIXES)
