"""Tags, read from `--tag K=V`."""

from collections.abc import Sequence

from retarget.core.errors import Invalid


def parse_tags(texts: Sequence[str] | None) -> dict[str, str]:
    """Return tags by key; the last value of a key wins."""
    return dict(_parse_tag(text) for text in texts or ())


def _parse_tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise Invalid(f"--tag {text!r} is not K=V")
    return key, value
