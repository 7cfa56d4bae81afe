"""Where everything of one server lives on disk. Paths only; nothing is read or made here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    root: Path

    @property
    def server_file(self) -> Path:
        return self.root / "server.json"

    @property
    def server_lock(self) -> Path:
        """Locked by a live server for all its life: a free lock means that there is none."""
        return self.root / "server.lock"

    @property
    def start_lock(self) -> Path:
        """Locked by the one client that is starting a server."""
        return self.root / "start.lock"

    @property
    def server_log(self) -> Path:
        return self.root / "server.log"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def secret(self) -> Path:
        """What the tokens of jobs are derived from."""
        return self.root / "secret"

    @property
    def database(self) -> Path:
        return self.root / "retarget.db"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def uploads(self) -> Path:
        """Files that come in parts, until all parts are there."""
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
    """Return the home that `RETARGET_HOME` names, or `~/.retarget`."""
    return Home(Path(environ.get("RETARGET_HOME") or "~/.retarget").expanduser().absolute())
