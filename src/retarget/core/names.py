"""Rules for names, and generated readable names for jobs without one."""

import hashlib
import random
import re
import secrets

from retarget.core.errors import Invalid

PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_RULE = re.compile(PATTERN)
_ID = re.compile(r"[0-9a-f]{32}")  # the format of `new_id`
_FIRST_WORDS = """
able amber ample bold brave breezy brisk bright calm candid clear clever cosy crisp curious
daring deft eager early easy fair fleet fond fresh gentle glad golden grand green happy hardy
humble ideal jolly keen kind late light lively lucid lucky merry mild neat nimble noble patient
placid plucky polite proud quick quiet rapid ready rosy round sage serene sharp shiny silent
silver sincere sleek smart snug solid steady sunny swift tidy tranquil true upbeat vivid warm
wise witty young zesty
"""
_SECOND_WORDS = """
acorn alder aspen badger beacon beech birch bison brook cedar cliff clover cobalt comet coral
crane delta dune eagle ember falcon fern finch fjord flint forest fox garnet glade grove gull
harbor hare hawk hazel heron hill iris island jay juniper kestrel kite lake lark laurel leaf
lichen lily linden lotus lynx maple marsh meadow mesa moss oak ocean olive orchid osprey otter
owl pebble pine plover pond poplar prairie quail quartz raven reed ridge river robin rowan sage
sparrow spruce stone swan thistle tide topaz trout tulip valley violet walnut wave willow wren
"""

_FIRST = tuple(_FIRST_WORDS.split())
_SECOND = tuple(_SECOND_WORDS.split())


def check_name(name: str, *, field: str = "name") -> str:
    """Return `name` if it is allowed, or raise Invalid with the rule."""
    if not _RULE.fullmatch(name):
        shown = ascii(name if len(name) <= 70 else name[:67] + "...")
        raise Invalid(
            f"{field}: {shown} is not a valid name; use 1 to 63 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit",
            field=field,
        )
    if _ID.fullmatch(name):
        raise Invalid(f"{field}: {name!r} looks like a job id; choose another name", field=field)
    return name


def suggest_name(rng: random.Random, *, tries: int = 0) -> str:
    """Generate a readable name. From the second try on it has a number, to find a free one."""
    name = f"{rng.choice(_FIRST)}-{rng.choice(_SECOND)}"
    return f"{name}-{rng.randrange(10 ** (tries + 1))}" if tries else name


def new_id(now: float) -> str:
    """Return 32 hex digits that sort by time, so that a table of jobs grows at its end."""
    return f"{int(now * 1000):012x}{secrets.token_hex(10)}"


def attempt_key(job_id: str, number: int) -> str:
    """Return the key of an attempt.

    It is always the same. If the database has lost an attempt in a power cut, the target finds the
    launch again, and the script is not started a second time.
    """
    digest = hashlib.sha256(f"{job_id}/{number}".encode()).hexdigest()
    return f"{job_id[:12]}{number:04x}{digest[:16]}"  # sorts by time, as a job's id does
