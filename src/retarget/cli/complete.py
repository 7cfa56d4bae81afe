"""Names for the shell's completion: from a server that is up, quickly, or none at all."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import typer

_PATIENCE = 0.5


def complete_job(incomplete: str) -> list[str]:
    return _names("/api/jobs?limit=100", incomplete)


def complete_target(incomplete: str) -> list[str]:
    return _names("/api/targets", incomplete)


def complete_kind(incomplete: str) -> list[str]:
    return _names("/api/targets/kinds", incomplete, field="kind")


def complete_environment(incomplete: str) -> list[str]:
    return _names("/api/environments", incomplete)


def complete_experiment(incomplete: str) -> list[str]:
    return _names("/api/experiments", incomplete)


def complete_model(incomplete: str) -> list[str]:
    return _names("/api/models", incomplete)


def complete_metric(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the metrics of the job that stands before them."""
    from urllib.parse import quote

    job = quote(str(ctx.params.get("name")), safe="", errors="replace")
    return _names(f"/api/jobs/{job}/tracking", incomplete, lambda told: told["metrics"], "key")


def complete_state(incomplete: str) -> list[str]:
    from retarget.core.states import JobState

    return _beginning((state.value for state in JobState), incomplete)


def _names(
    path: str,
    incomplete: str,
    rows_of: Callable[[Any], Any] = lambda told: told,
    field: str = "name",
) -> list[str]:
    from retarget.core.errors import RetargetError

    try:
        rows = rows_of(_running()(path))
        return _beginning((row[field] for row in rows), incomplete)
    except (RetargetError, OSError, KeyError, TypeError, AttributeError):
        return []  # Tab is not the place for an error


def _running() -> Callable[[str], Any]:
    from retarget.core.errors import ServerUnreachable
    from retarget.core.home import home_from
    from retarget.sdk.background import read_token, running
    from retarget.sdk.http import Address, Connection, Elsewhere

    address = Address(os.environ.get("RETARGET_URL", ""), os.environ.get("RETARGET_TOKEN", ""))
    if not address.url:
        home = home_from(os.environ)
        found = running(home)
        if found is None:
            raise ServerUnreachable("none is running")
        address = Address(found.url, read_token(home))
    return Connection(Elsewhere(address), timeout=_PATIENCE).get


def _beginning(names: Iterable[str | None], incomplete: str) -> list[str]:
    return [name for name in names if name and name.startswith(incomplete)]
