"""The paths of a server's files on disk. Nothing is read or created here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_SERVER = "main"  # the id of a server that was not given one


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """The files of one server of a home."""

    root: Path

    @property
    def id(self) -> str:
        return self.root.name

    @property
    def info(self) -> Path:
        """Written by the server when it is ready: its pid and address."""
        return self.root / "server.json"

    @property
    def lock(self) -> Path:
        """Locked by the server for as long as it runs: a free lock means that it does not run."""
        return self.root / "lock"

    @property
    def port(self) -> Path:
        """The port that the server used last."""
        return self.root / "port"

    @property
    def log(self) -> Path:
        return self.root / "server.log"

    @property
    def previous_log(self) -> Path:
        """What was in server.log before it grew too large."""
        return self.root / "server.log.1"


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    def server(self, server_id: str) -> ServerFolder:
        return ServerFolder(self.servers / server_id)

    @property
    def servers(self) -> Path:
        """One folder for each server, named by its id."""
        return self.root / "servers"

    @property
    def config(self) -> Path:
        """The stored settings: see `core.config`."""
        return self.root / "config.toml"

    @property
    def sizes(self) -> Path:
        """The user's own sizes of nodes: see `core.sizes`."""
        return self.root / "sizes.toml"

    @property
    def config_lock(self) -> Path:
        """Locked while a command changes the settings."""
        return self.root / "config.lock"

    @property
    def server_lock(self) -> Path:
        """Locked by every server: exclusively, unless its database admits several servers."""
        return self.root / "server.lock"

    @property
    def start_lock(self) -> Path:
        """Locked by the one client that is starting a server."""
        return self.root / "start.lock"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def secret(self) -> Path:
        """The secret that credentials of attempts and encryption keys are derived from."""
        return self.root / "secret"

    @property
    def boot(self) -> Path:
        """Names the boot of the host in which the last server of this home started."""
        return self.root / "boot"

    @property
    def database(self) -> Path:
        return self.root / "retarget.db"

    @property
    def served_database(self) -> Path:
        """Names the database that the last server of this home used."""
        return self.root / "served-database"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def uploads(self) -> Path:
        """Files that are uploaded in parts, until they are complete."""
        return self.root / "uploads"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def stat_cache(self) -> Path:
        return self.root / "stat-cache"

    def target(self, name: str) -> Path:
        return self.root / "targets" / name


def home_from(environ: Mapping[str, str]) -> Home:
    """Return the home at `RETARGET_HOME`, by default `~/.retarget`."""
    return Home(Path(environ.get("RETARGET_HOME") or "~/.retarget").expanduser().absolute())
