"""Shell completion of names: asks a running server, and offers nothing if that takes too long."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import typer

_TIMEOUT_SECONDS = 0.5


def complete_job(incomplete: str) -> list[str]:
    return _names("/api/jobs?limit=100", incomplete)


def complete_target(incomplete: str) -> list[str]:
    return _names("/api/targets", incomplete)


def complete_kind(incomplete: str) -> list[str]:
    return _names("/api/targets/kinds", incomplete, field="kind")


def complete_environment(incomplete: str) -> list[str]:
    return _names("/api/environments", incomplete)


def complete_secret(incomplete: str) -> list[str]:
    return _names("/api/secrets", incomplete)


def complete_experiment(incomplete: str) -> list[str]:
    return _names("/api/experiments", incomplete)


def complete_model(incomplete: str) -> list[str]:
    return _names("/api/models", incomplete)


def complete_metric(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the metrics of the job that the command line names before them."""
    from urllib.parse import quote

    job = quote(str(ctx.params.get("name")), safe="", errors="replace")
    return _names(f"/api/jobs/{job}/tracking", incomplete, lambda view: view["metrics"], "key")


def complete_state(incomplete: str) -> list[str]:
    from retarget.core.states import JobState

    return _matching((state.value for state in JobState), incomplete)


def _names(
    path: str,
    incomplete: str,
    rows_of: Callable[[Any], Any] = lambda answer: answer,
    field: str = "name",
) -> list[str]:
    from retarget.core.errors import RetargetError

    try:
        rows = rows_of(_connect()(path))
        return _matching((row[field] for row in rows), incomplete)
    except (RetargetError, OSError, KeyError, TypeError, AttributeError):
        return []  # an error message would spoil the line that is being typed


def _connect() -> Callable[[str], Any]:
    """Return the GET of a server that runs already; completion starts none."""
    from retarget.core.errors import ServerUnreachable
    from retarget.core.home import home_from
    from retarget.sdk.http import Connection, remote_server
    from retarget.sdk.local_server import read_token, running_server

    url, token = os.environ.get("RETARGET_URL", ""), os.environ.get("RETARGET_TOKEN", "")
    if not url:
        home = home_from(os.environ)
        server = running_server(home)
        if server is None:
            raise ServerUnreachable("no server is running")
        url, token = server.url, read_token(home)
    return Connection(remote_server(url, token), timeout=_TIMEOUT_SECONDS).get


def _matching(names: Iterable[str | None], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name and name.startswith(incomplete)]
