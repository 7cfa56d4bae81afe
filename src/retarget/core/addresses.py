"""Where a server is: http://host:port, with nothing secret in it."""

from urllib.parse import SplitResult, urlsplit

from retarget.core.errors import Invalid


def parse_address(url: str) -> SplitResult:
    """Return the parts of a server's address, or raise Invalid that says how to write one."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known, parts = False, urlsplit("")
    if "@" in url:  # shown in lists and logs, where a password must not be
        raise Invalid("leave the user and the password out of the address; see RETARGET_TOKEN")
    if not known or not (parts.path.isascii() and url.isprintable()) or " " in url:
        raise Invalid(f"{url!r} is not the address of a server; write http://host:port")
    return parts
