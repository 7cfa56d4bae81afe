"""`retarget server …`: the server of this machine."""

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.groups import new_group
from retarget.cli.terminal import say, tell, write_bytes, write_json
from retarget.core.errors import Invalid, RetargetError, ServerUnreachable

if TYPE_CHECKING:
    from retarget.core.home import Home
    from retarget.sdk.background import Found
    from retarget.sdk.http import Connection

app = new_group()

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_PATIENCE = 20.0
_NOT_RUNNING = 3  # what `systemctl status` says too


@app.command()
def start(as_json: AsJson = False) -> None:
    """Start the server in the background, unless it runs already. Commands do so by themselves."""
    from retarget.sdk.background import Background, running

    home = _home()
    Background(home).find()
    found = running(home)
    if found is None:
        raise ServerUnreachable("the server was there and has gone; see `retarget server logs`")
    _show(found, home, as_json=as_json)


@app.command()
def stop() -> None:
    """Stop the server. Jobs go on, and the next server takes them up."""
    from retarget.sdk.background import is_locked, read_server, wait_until_stopped

    home = _home()
    if not is_locked(home.server_lock):
        say("no server is running", "dim")
        return
    found = read_server(home)
    if found is not None:  # else it is on its way out, or not ready yet
        _ask_to_stop(home, found)
    if not wait_until_stopped(home, found, timeout=_PATIENCE):
        raise RetargetError(f"the server has not stopped after {_PATIENCE:.0f} s")
    say("the server has stopped; jobs that ran go on", "dim")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Tell whether the server runs, where, and how many jobs it has.

    Exits with 0 if it does and with 3 if none is running. Starts nothing.
    """
    from retarget.sdk.background import running

    home = _home()
    found = running(home)
    if found is not None:
        _show(found, home, as_json=as_json)
        return
    if as_json:
        write_json({"running": False, "pid": None, "url": None, "version": None})
    else:
        tell(f"no server is running in {home.root}")
    raise typer.Exit(_NOT_RUNNING)


@app.command()
def run(
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", envvar="RETARGET_HOST", help="The address to listen on."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", envvar="RETARGET_PORT", min=0, max=65535, help="By default the last one."
        ),
    ] = None,
) -> None:
    """Run the server here in the foreground, for a service manager. Ctrl-C stops it."""
    home = _home()
    chosen = {} if port is None else {"RETARGET_PORT": str(port)}
    own = {"RETARGET_HOME": str(home.root), "RETARGET_HOST": host}
    command = [sys.executable, "-m", "retarget.server"]
    os.execve(sys.executable, command, os.environ | own | chosen)


@app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many at first.")
    ] = 200,
) -> None:
    """Print what the background server wrote."""
    home = _home()
    try:
        with home.server_log.open("rb") as log:
            write_bytes(b"".join(log.readlines()[-lines:] if lines else []), to=sys.stdout)
            while follow:
                write_bytes(log.read(), to=sys.stdout)
                time.sleep(0.2)
    except FileNotFoundError:
        say(f"no server has written to {home.server_log} yet", "dim")


@app.command()
def collect(
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="Spare what is younger than this.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Remove files of snapshots and outputs that no job refers to any more."""
    from retarget.core.units import parse_duration, show_memory
    from retarget.sdk.workspace import Workspace

    seconds = 0.0 if keep in ("0", "0s") else parse_duration(keep, field="--keep")
    removed = Workspace().collect(keep=seconds)
    if as_json:
        write_json(removed)
    else:
        tell(f"removed {removed['blobs']} files, {show_memory(removed['bytes'])}")


def _home() -> "Home":
    from retarget.core.home import home_from

    if os.environ.get("RETARGET_URL"):
        raise Invalid(
            "RETARGET_URL names a server elsewhere, and these commands are about the one of this "
            "machine; unset it first"
        )
    return home_from(os.environ)


def _connection(home: "Home", found: "Found") -> "Connection":
    from retarget.sdk.background import read_token
    from retarget.sdk.http import Address, Connection, Elsewhere

    return Connection(Elsewhere(Address(found.url, read_token(home))), timeout=10)


def _ask_to_stop(home: "Home", found: "Found") -> None:
    import signal

    from retarget.sdk.background import is_server

    try:
        _connection(home, found).post("/api/server/stop")
    except RetargetError:
        if is_server(found.pid):
            os.kill(found.pid, signal.SIGTERM)


def _show(found: "Found", home: "Home", *, as_json: bool) -> None:
    from retarget.sdk.records import view

    about: dict[str, Any] = {
        "running": True,
        "pid": found.pid,
        "url": found.url,
        "version": found.version,
        "started": found.started,
        "home": str(home.root),
        "jobs": view(_connection(home, found).get("/api/server"), {"jobs": dict[str, int]})["jobs"],
    }
    if as_json:
        write_json(about)
        return
    tell(f"retarget {found.version} at {found.url}, pid {found.pid}, home {home.root}")
    if counts := ", ".join(f"{count} {state}" for state, count in about["jobs"].items() if count):
        tell(f"jobs: {counts}")
