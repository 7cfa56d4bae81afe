"""Locks: what an environment resolved to, and how to install exactly that again."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Iterable

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")
_BY_PIP = ("uv", "pip")  # in the INSTALLER file of a package


def platform_name() -> str:
    """Return the platform that a lock is for, such as linux-x86_64."""
    machine = os.uname().machine
    return f"{sys.platform}-{machine}" + ("" if _has_usual_libc() else "-musl")


def find_lock(
    locks: Iterable[dict[str, Any]], source: str, python: str | None = None
) -> dict[str, Any] | None:
    """Return the lock for this platform, this source and, unless None, this Python version."""
    platform = platform_name()
    for lock in locks:
        if (lock["platform"], lock["source"]) != (platform, source):
            continue
        if python is None or minor(lock["python"]) == minor(python):
            return lock
    return None


def minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def new_lock(prefix: str, source: str, conda: list[str]) -> dict[str, Any]:
    """Return the lock of what is installed in `prefix`; `conda`: its packages from channels."""
    return {
        "platform": platform_name(),
        "python": python_of(prefix) if source != "conda" else _conda_python(conda),
        "source": source,
        "packages": _installed(prefix, only_by_pip=source == "conda"),
        "conda": conda,
    }


def python_of(prefix: str) -> str:
    """Return the version of the Python of a virtual environment."""
    with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as file:
        match = re.search(r"^version(?:_info)? *= *([\w.]+)", file.read(), re.M)
    return match[1] if match else "0.0"


def locked_lines(lines: list[str], lock: dict[str, Any]) -> list[str]:
    """Return the requirements that install a lock: the options, and every package with its version.

    Lines with hashes name exact files already. A line with a variable may hold credentials, which
    no lock has.
    """
    if any("--hash=" in line for line in lines):
        return lines
    options = [line for line in lines if line.startswith("-")]
    verbatim = [line for line in lines if "${" in line and not line.startswith("-")]
    names = {_normalized(line) for line in verbatim}
    return [*options, *verbatim, *(p for p in lock["packages"] if _normalized(p) not in names)]


def reported_lock(lock: dict[str, Any], known: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a lock for the report: only its id if the server knows it."""
    for other in known:
        if other == {**lock, "id": other["id"]}:
            return {"id": other["id"]}
    return lock


def conda_pin(package: str) -> str:
    """Return the match spec of a locked conda package: `name ==version build`."""
    name, _, rest = package.rpartition("::")[2].partition("==")
    version, _, build = rest.partition("=")
    return f"{name} =={version} {build}"


def referenced(lines: Iterable[str], variables: dict[str, str]) -> dict[str, str]:
    """Return those variables that requirements refer to as `${NAME}`."""
    names = {name for line in lines for name in re.findall(r"\$\{(\w+)\}", line)}
    return {name: value for name, value in variables.items() if name in names}


def without_credentials(text: str) -> str:
    """Mask the user and the password of every address in a string."""
    return _CREDENTIALS.sub("****@", text)


def _has_usual_libc() -> bool:
    """Return whether this is glibc, or not Linux: wheels for musl are other wheels."""
    if sys.platform != "linux":
        return True
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False


def _conda_python(conda: list[str]) -> str:
    versions = [re.search(r"::python==([^=]+)=", package) for package in conda]
    return next((match[1] for match in versions if match), "0.0")


def _installed(prefix: str, *, only_by_pip: bool) -> list[str]:
    packages: dict[str, str] = {}
    for folder in _site_packages(prefix):
        for name in os.listdir(folder):
            info = os.path.join(folder, name)
            if name.endswith(".dist-info") and (not only_by_pip or _is_by_pip(info)):
                line = _package(info)
                packages[_normalized(line)] = line
    return [packages[name] for name in sorted(packages) if name]


def _site_packages(prefix: str) -> list[str]:
    folders: list[str] = []
    for name in ("lib", "lib64"):
        library = os.path.join(prefix, name)
        if os.path.isdir(library) and not os.path.islink(library):
            pythons = (path for path in os.listdir(library) if path.startswith("python"))
            folders += [os.path.join(library, path, "site-packages") for path in pythons]
    return [folder for folder in folders if os.path.isdir(folder)]


def _is_by_pip(info: str) -> bool:
    return _read(os.path.join(info, "INSTALLER")).strip() in _BY_PIP


def _package(info: str) -> str:
    """Return `name==version` of an installed package, or `name @ address` if it has one."""
    metadata = _read(os.path.join(info, "METADATA")).partition("\n\n")[0]
    fields = dict(re.findall(r"^(Name|Version): *(\S+)", metadata, re.M))
    if not fields.get("Name") or not fields.get("Version"):
        return ""
    name = _normalized(fields["Name"])
    address = _address(_read(os.path.join(info, "direct_url.json")))
    return f"{name} @ {address}" if address else f"{name}=={fields['Version']}"


def _address(direct_url: str) -> str:
    """Return the address of a package that was not in an index, with its commit if it has one."""
    if not direct_url:
        return ""
    origin = json.loads(direct_url)
    url = _CREDENTIALS.sub("", str(origin.get("url", "")))
    if "vcs_info" not in origin:
        return url
    vcs = origin["vcs_info"]
    folder = origin.get("subdirectory")
    part = f"#subdirectory={folder}" if folder else ""
    return f"{vcs['vcs']}+{url}@{vcs['commit_id']}{part}"


def _normalized(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", name[0]).lower() if name else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
