"""The address of a server: http://host:port, without credentials."""

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from retarget.core.errors import Invalid


def parse_address(url: str) -> SplitResult:
    """Split the address of a server, or raise Invalid with the expected format."""
    try:
        address = urlsplit(url)
        is_valid = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        is_valid, address = False, urlsplit("")
    if "@" in url:  # addresses appear in lists and logs, where a password must not be
        raise Invalid("the address must not contain a user or password; set RETARGET_TOKEN instead")
    if not is_valid or not (address.path.isascii() and url.isprintable()) or " " in url:
        raise Invalid(f"{url!r} is not a server address; write http://host:port")
    return address


def format_listener(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def exposure_warning(listener: str, url: str) -> str | None:
    """Return a warning about a server that other machines can reach without encryption.

    None if only this machine can reach `listener`, or if clients use an encrypted `url`.
    """
    host = listener.rpartition(":")[0].strip("[]")
    if not host or _is_loopback(host) or url.startswith("https:"):
        return None
    return (
        f"the server listens on {listener} without encryption: anyone who sees the network traffic "
        "can read the token and run anything here as you; listen on 127.0.0.1 and "
        "connect through SSH, or put a TLS proxy in front and set RETARGET_PUBLIC_URL"
    )


def is_numeric(host: str) -> bool:
    """Whether this is an IP address, and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback if is_numeric(host) else host == "localhost"
