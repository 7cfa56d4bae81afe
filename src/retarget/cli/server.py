"""`retarget server …`: manage the server of this machine."""

import os
import sys
import time
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.groups import new_group
from retarget.cli.lookup import AsJson
from retarget.cli.terminal import print_result, print_status, write_bytes, write_json
from retarget.core.addresses import exposure_warning, is_numeric
from retarget.core.errors import Conflict, Invalid, RetargetError, ServerUnreachable

if TYPE_CHECKING:
    from retarget.core.home import Home
    from retarget.sdk.http import Connection
    from retarget.sdk.local_server import ServerInfo

app = new_group()

_STOP_TIMEOUT_SECONDS = 20.0
_LOG_POLL_SECONDS = 0.2
_EXIT_NOT_RUNNING = 3  # as `systemctl status` does


Host = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        envvar="RETARGET_HOST",
        help="Address to listen on. Default: 127.0.0.1.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        envvar="RETARGET_PORT",
        min=0,
        max=65535,
        help="Port to listen on. Default: the same port as last time.",
    ),
]


ServerId = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="NAME",
        envvar="RETARGET_SERVER_ID",
        help="Which server of this home. Default: main. Several need PostgreSQL.",
    ),
]


@app.command()
def start(
    host: Host = None, port: Port = None, server_id: ServerId = None, as_json: AsJson = False
) -> None:
    """Start the server in the background, unless it is running.

    Other commands start it automatically.
    """
    from retarget.sdk.local_server import LocalServer, running_servers

    home, listener = _home("start"), _listener_variables(host, port)
    LocalServer(home, listener, _checked_id(server_id)).find()
    server = next(iter(running_servers(home, server_id)), None)
    if server is None:
        raise ServerUnreachable("the server started, but stopped again; see `retarget server logs`")
    _check_listener(server, host, port)
    _show(server, home, as_json=as_json)


@app.command()
def stop(server_id: ServerId = None) -> None:
    """Stop the server. Running jobs continue.

    The next server takes over the jobs. Without --id, all servers of this home on this machine
    stop.
    """
    from retarget.sdk.local_server import is_locked, read_server, server_ids

    home, is_running = _home("stop"), False
    for name in server_ids(home) if server_id is None else (_checked_id(server_id) or "",):
        server = read_server(home, name)
        if is_locked(home.server(name).lock) and (server is None or server.is_here):
            is_running = True
            _stop(home, name, server)
    if not is_running:
        print_status("no server is running", "dim")


def _stop(home: "Home", name: str, server: "ServerInfo | None") -> None:
    from retarget.core.home import DEFAULT_SERVER
    from retarget.sdk.local_server import wait_until_stopped

    if server is not None:  # else it is still starting, or stopping already
        _request_stop(home, server)
    if not wait_until_stopped(home.server(name), server, timeout=_STOP_TIMEOUT_SECONDS):
        raise RetargetError(f"the server did not stop within {_STOP_TIMEOUT_SECONDS:.0f} s")
    title = "Server" if name == DEFAULT_SERVER else f"Server {name!r}"
    print_status(f"{title} stopped. Running jobs continue.", "dim")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show whether the server is running, its address, and its jobs.

    If RETARGET_URL is set, this is the server at that address. Exits with 0 if a server is running
    and with 3 if none is. Starts no server.
    """
    from retarget.core.home import home_from
    from retarget.sdk.local_server import running_server

    if os.environ.get("RETARGET_URL"):
        _show_remote(as_json=as_json)
        return
    home = home_from(os.environ)
    server = running_server(home)
    if server is not None:
        _show(server, home, as_json=as_json)
        return
    if as_json:
        write_json({"running": False, "pid": None, "url": None, "version": None})
    else:
        print_result(f"no server is running in {home.root}")
    raise typer.Exit(_EXIT_NOT_RUNNING)


@app.command()
def run(host: Host = None, port: Port = None, server_id: ServerId = None) -> None:
    """Run the server in the foreground, for a service manager.

    Ctrl-C stops it. Running jobs continue. With another --id, it is one more server of this home.
    """
    home = _home("run")
    variables = {"RETARGET_HOME": str(home.root), **_listener_variables(host, port)}
    if _checked_id(server_id):
        variables["RETARGET_SERVER_ID"] = server_id or ""
    command = [sys.executable, "-m", "retarget.server"]
    os.execve(sys.executable, command, os.environ | variables)


@app.command()
def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", metavar="N", min=0, help="Start with the last N lines."),
    ] = 200,
    server_id: ServerId = None,
) -> None:
    """Print the log of the background server."""
    from retarget.core.home import DEFAULT_SERVER

    folder = _home("logs").server(_checked_id(server_id) or DEFAULT_SERVER)
    try:
        with folder.log.open("rb", buffering=0) as log:
            recent = log.readlines()
            if len(recent) < lines and folder.previous_log.exists():
                recent = folder.previous_log.read_bytes().splitlines(keepends=True) + recent
            write_bytes(b"".join(recent[-lines:] if lines else []), to=sys.stdout)
            while follow:
                write_bytes(_new_bytes(log, folder.previous_log), to=sys.stdout)
                time.sleep(_LOG_POLL_SECONDS)
    except FileNotFoundError:
        print_status(f"{folder.log} does not exist; no server has run here yet", "dim")


@app.command()
def prune(
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="Keep files that are newer than this.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Delete files of snapshots and outputs that no job refers to."""
    from retarget.core.units import parse_duration, show_count, show_memory
    from retarget.sdk.workspace import Workspace

    seconds = 0.0 if keep in ("0", "0s") else parse_duration(keep, field="--keep")
    pruned = Workspace().prune(keep_seconds=seconds)
    if as_json:
        write_json(pruned)
    else:
        print_result(
            f"deleted {show_count(pruned['blobs'], 'file')}, {show_memory(pruned['bytes'])}"
        )


def _new_bytes(log: FileIO, previous_log: Path) -> bytes:
    """Return what was added to a log. If it was rotated, a part is in the previous file."""
    position = log.tell()
    if os.fstat(log.fileno()).st_size >= position:
        return log.readall()
    log.seek(0)
    try:
        with previous_log.open("rb") as previous:
            previous.seek(position)
            return previous.read() + log.readall()
    except FileNotFoundError:
        return log.readall()


def _home(command: str) -> "Home":
    from retarget.core.home import home_from

    url = os.environ.get("RETARGET_URL")
    if url:
        raise Invalid(
            f"`retarget server {command}` manages the server of this machine, but RETARGET_URL "
            f"names the server at {url}; run the command on that server's machine, or unset "
            "RETARGET_URL for the server of this machine"
        )
    return home_from(os.environ)


def _checked_id(server_id: str | None) -> str | None:
    from retarget.core.names import check_name

    return server_id and check_name(server_id, field="--id")


def _listener_variables(host: str | None, port: int | None) -> dict[str, str]:
    values = {"RETARGET_HOST": host, "RETARGET_PORT": port}
    return {name: str(value) for name, value in values.items() if value is not None}


def _check_listener(server: "ServerInfo", host: str | None, port: int | None) -> None:
    """Raise Conflict if a server that ran before listens elsewhere than the options say."""
    running_host, _, running_port = server.listen.rpartition(":")
    is_other_host = is_numeric(host or "") and host != running_host.strip("[]")
    is_other_port = port not in (None, 0) and str(port) != running_port
    if server.listen and (is_other_host or is_other_port):
        raise Conflict(
            f"the server is already running and listens on {server.listen}; to change that, "
            "stop it with `retarget server stop` (running jobs continue) and start it again"
        )


def _connection(home: "Home", server: "ServerInfo") -> "Connection":
    from retarget.sdk.http import Address, Connection, RemoteServer
    from retarget.sdk.local_server import read_token

    return Connection(RemoteServer(Address(server.url, read_token(home))), timeout=10)


def _request_stop(home: "Home", server: "ServerInfo") -> None:
    import signal

    from retarget.sdk.local_server import is_server

    try:
        _connection(home, server).post("/api/server/stop")
    except RetargetError:
        if is_server(server.pid):
            os.kill(server.pid, signal.SIGTERM)


def _show_remote(*, as_json: bool) -> None:
    """Show the server at RETARGET_URL. Only a server that cannot be reached is not running."""
    from retarget.sdk.http import Connection, remote_server
    from retarget.sdk.records import view

    server = remote_server(os.environ["RETARGET_URL"], os.environ.get("RETARGET_TOKEN", ""))
    connection = Connection(server, timeout=10, verify=True)
    fields = {
        "version": str,
        "pid": int,
        "home": str,
        "started_at": datetime,
        "jobs": dict[str, int],
        "servers": list[dict[str, Any]],
    }
    try:
        answer = connection.get("/api/server")
    except ServerUnreachable as error:
        if as_json:
            url = server.address.url
            write_json({"running": False, "pid": None, "url": url, "version": None})
        print_status(str(error), "red")
        raise typer.Exit(_EXIT_NOT_RUNNING) from None
    url = connection.address.url
    _write_summary({"running": True, **view(answer, fields), "url": url}, as_json=as_json)


def _show(server: "ServerInfo", home: "Home", *, as_json: bool) -> None:
    from retarget.sdk.records import view

    fields = {"jobs": dict[str, int], "servers": list[dict[str, Any]]}
    answer = view(_connection(home, server).get("/api/server"), fields)
    summary: dict[str, Any] = {
        "running": True,
        "pid": server.pid,
        "url": server.url,
        "version": server.version,
        "started_at": datetime.fromtimestamp(server.started_at, UTC),
        "home": str(home.root),
        "jobs": answer["jobs"],
        "servers": answer["servers"],
    }
    _write_summary(summary, as_json=as_json)
    warning = exposure_warning(server.listen, server.url)
    if warning:
        print_status(f"warning: {warning}", "yellow")


def _write_summary(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(summary)
        return
    print_result(
        f"retarget {summary['version']} at {summary['url']}, pid {summary['pid']}, "
        f"home {summary['home']}"
    )
    counts = ", ".join(f"{count} {state}" for state, count in summary["jobs"].items() if count)
    if counts:
        print_result(f"jobs: {counts}")
    for server in summary["servers"] if len(summary["servers"]) > 1 else ():
        print_result(_describe_server(server))


def _describe_server(server: dict[str, Any]) -> str:
    targets = ", ".join(server.get("targets", ())) or "no target"
    return (
        f"server {server.get('id')} on {server.get('host')} at {server.get('url')}, "
        f"looks after {targets}"
    )
