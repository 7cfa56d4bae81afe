"""The variables that make uv use this machine's certificates and the user's settings of pip.

As a program, it runs a command with these variables: `uv_settings.py uv pip install …`.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from typing import Iterator, Mapping

# both names: uv renamed the option, and a host may have an older uv
_SYSTEM_CERTIFICATES = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# the settings of pip that say where packages come from; for each, the variable that every uv reads,
# and what separates its values
_INDEX_SETTINGS = {
    "index-url": ("UV_INDEX_URL", " "),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
_INDEX_VARIABLES = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS",
)  # fmt: skip
_INDEX_IN_UV_TOML = re.compile(
    r"^\s*(?:(?:extra-)?index-url|find-links|index|no-index)\s*=|^\s*\[\[(?:pip\.)?index\]\]", re.M
)
_CACHE_IN_UV_TOML = re.compile(r"^\s*cache-dir\s*=", re.M)


def uv_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add for uv. What the user has set for uv stays."""
    settings = _pip_settings(environ)
    variables = _certificates(environ, settings)
    if not _has_uv_index(environ):
        for name, (variable, separator) in _INDEX_SETTINGS.items():
            if settings.get(name):
                variables[variable] = separator.join(settings[name].split())
        if "UV_EXTRA_INDEX_URL" in variables:  # as pip does: the best version of all indexes
            variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in variables.items() if name not in environ}


def cache_variables(environ: Mapping[str, str], root: str) -> dict[str, str]:
    """Return the variable that puts uv's cache into a folder, unless the user chose another."""
    if "UV_CACHE_DIR" in environ or any(
        _CACHE_IN_UV_TOML.search(_read(path)) for path in _uv_files(environ)
    ):
        return {}
    return {"UV_CACHE_DIR": os.path.join(root, "uv")}


def certificate_bundle(environ: Mapping[str, str]) -> str | None:
    """Return the file with the certificates that this machine trusts."""
    for path in (environ.get("SSL_CERT_FILE"), *_BUNDLES):
        if path and os.path.isfile(path):
            return path
    return None


def certificate_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make uv use the certificates of this machine."""
    # a machine without its own store, such as a small image, needs the certificates that uv has
    if sys.platform != "linux" or certificate_bundle(environ) or environ.get("SSL_CERT_DIR"):
        return dict.fromkeys(_SYSTEM_CERTIFICATES, "1")
    return {}


def _certificates(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    variables = certificate_variables(environ)
    own = settings.get("cert", "")
    if os.path.isfile(own):
        variables["SSL_CERT_FILE"] = own
    return variables


def _has_uv_index(environ: Mapping[str, str]) -> bool:
    """Return whether the user configured uv itself: then pip's settings are not for uv."""
    if any(environ.get(name) for name in _INDEX_VARIABLES):
        return True
    return any(_INDEX_IN_UV_TOML.search(_read(path)) for path in _uv_files(environ))


def _uv_files(environ: Mapping[str, str]) -> Iterator[str]:
    if environ.get("UV_NO_CONFIG"):
        return
    if environ.get("UV_CONFIG_FILE"):
        yield environ["UV_CONFIG_FILE"]
        return
    yield os.path.join(_user_folder(environ), "uv", "uv.toml")
    yield "/etc/xdg/uv/uv.toml"
    yield "/etc/uv/uv.toml"


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of pip: of its files, where later ones win, and of its variables."""
    settings: dict[str, str] = {}
    for path in _pip_files(environ):
        settings.update(_read_pip_file(path))
    for name, value in environ.items():
        if name.startswith("PIP_") and value.strip():
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def _pip_files(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of pip in the order in which it reads them."""
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen != os.devnull:
        yield "/etc/xdg/pip/pip.conf"
        yield "/etc/pip.conf"
        yield os.path.join(environ.get("HOME", "/"), ".pip", "pip.conf")
        yield os.path.join(_user_folder(environ), "pip", "pip.conf")
    if chosen:
        yield chosen


def _read_pip_file(path: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_read(path))
    except configparser.Error:
        return {}  # pip itself reports it to the user
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            values = parser.items(section)
            settings.update({name.replace("_", "-"): value for name, value in values})
    return settings


def _user_folder(environ: Mapping[str, str]) -> str:
    default = os.path.join(environ.get("HOME", "/"), ".config")
    return environ.get("XDG_CONFIG_HOME") or default


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    os.environ.update(uv_variables(os.environ))
    os.execvp(sys.argv[1], sys.argv[1:])
