"""Environments for people."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.text import Text

from retarget.cli.show import describe_lock, new_grid, show_section
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import append_clause, print_status, printable, show
from retarget.cli.times import show_age, utc_now
from retarget.core.conda import to_pypi
from retarget.core.errors import Invalid
from retarget.core.units import show_memory
from retarget.runner.durations import show_duration
from retarget.sdk.records import parse_time

if TYPE_CHECKING:
    from retarget.sdk.records import KnownEnvironment

_DIGEST_CHARACTERS = 12
_MAX_PACKAGES = 1000  # of a lock on the page of an environment


def show_environments(environments: "Sequence[KnownEnvironment]") -> None:
    if not environments:
        hint = "`retarget run -e FILE SCRIPT` builds one for the job"
        print_status(f"no environments; {hint}", "dim")
        return
    titles = ("NAME", "DIGEST", "PYTHON", "BUILT ON", "SIZE", "PACKAGES")
    rows = [_row(environment) for environment in environments]
    optional = ("BUILT ON", "PYTHON", "SIZE")
    show(new_table(titles, rows, flexible="PACKAGES", optional=optional))
    for environment in environments:
        for build in environment.built:
            if build.get("failed"):
                name = environment.label or (environment.digest or "")[:_DIGEST_CHARACTERS]
                print_status(f"{name} on {build['target']}: {_describe_build(build)}")


def show_versions(versions: "Sequence[KnownEnvironment]") -> None:
    """Show the versions of a name: when each was made, and what it was resolved to."""
    now = utc_now()
    rows: list[list[Cell]] = [
        [
            version.label,
            show_age(version.created_at, now) if version.created_at else "",
            (version.digest or "")[:_DIGEST_CHARACTERS],
            _targets(version),
            _packages(version),
            _locked_packages(version),
        ]
        for version in versions
    ]
    titles = ("VERSION", "CREATED", "DIGEST", "BUILT ON", "PACKAGES", "LOCKED")
    show(new_table(titles, rows, flexible="LOCKED", optional=("BUILT ON", "DIGEST")))


def show_environment(environment: "KnownEnvironment") -> None:
    now = utc_now()
    rows: list[tuple[str, str | Text]] = [
        ("environment", environment.label),
        ("digest", environment.digest or ""),
        ("kind", environment.kind),
        ("image", environment.image or ""),
        ("dockerfile", environment.dockerfile or ""),
        ("context", (environment.context or "")[:_DIGEST_CHARACTERS]),
        ("python", environment.python or ""),
        ("channels", ", ".join(environment.channels)),
        ("conda", "\n".join(environment.conda)),
        ("pip", "\n".join(environment.pip)),
        ("conda packages", _describe_conda_source(environment)),
    ]
    if environment.resolution:
        rows.append(("resolved again", f"{environment.resolution} times"))
    if environment.created_at is not None:
        rows.append(("created", show_age(environment.created_at, now)))
    for build in environment.built:
        rows.append((f"on {build['target']}", _describe_build(build)))
    show(new_grid(rows))
    for lock in environment.locks:
        show_section("locked versions", Text(printable(describe_lock(lock, _MAX_PACKAGES))))


def _row(environment: "KnownEnvironment") -> list[Cell]:
    size = max((build["size"] for build in environment.built), default=0)
    return [
        environment.label,
        (environment.digest or "")[:_DIGEST_CHARACTERS],
        environment.python or "",
        _targets(environment),
        show_memory(size) if size else "",
        _packages(environment),
    ]


def _targets(environment: "KnownEnvironment") -> str:
    """Write where it is built, and where that failed."""
    names = [
        f"{build['target']} (failed)" if build.get("failed") else build["target"]
        for build in environment.built
    ]
    return ", ".join(dict.fromkeys(names))


def _describe_build(build: dict[str, Any]) -> str:
    age = show_age(parse_time(build["built_at"]), utc_now())
    if build.get("failed"):
        reason = build["failed"].removeprefix("environment: ")
        return append_clause(f"failed {age}: {reason}", "the next job builds it again")
    size, duration = show_memory(build["size"]), show_duration(build["seconds"])
    return f"{size}, built {age} in {duration} ({build['how']})"


def _locked_packages(environment: "KnownEnvironment") -> str:
    """Write the packages of the newest lock."""
    if not environment.locks:
        return ""
    lock = environment.locks[-1]
    return ", ".join([*(line.rpartition("::")[2] for line in lock["conda"]), *lock["packages"]])


def _packages(environment: "KnownEnvironment") -> str:
    """Write what is installed. What PyPI does not have of a conda file follows, if it was dropped.

    An image is shown first.
    """
    image = environment.image or environment.dockerfile
    installed, dropped = _conda_packages(environment)
    packages = ", ".join([*([image] if image else []), *installed, *environment.pip])
    return f"{packages}; without {', '.join(dropped)}" if dropped else packages


def _conda_packages(environment: "KnownEnvironment") -> tuple[Sequence[str], Sequence[str]]:
    if environment.conda_from_pypi:
        with suppress(Invalid):  # it has a version that PyPI cannot express: it is never built
            mapped = to_pypi(environment.conda)
            return mapped.requirements, mapped.dropped
    return environment.conda, ()


def _describe_conda_source(environment: "KnownEnvironment") -> str:
    if not environment.conda_from_pypi:
        return ""
    _, dropped = _conda_packages(environment)
    without = f"; without {', '.join(dropped)}" if dropped else ""
    return f"from PyPI, as requested{without}"
