"""The files of a server: blobs, snapshots, log streams and uploads in its home."""

from retarget.blobs.disk import sync_file_system
from retarget.blobs.folder import Blobs
from retarget.blobs.snapshots import Snapshots
from retarget.blobs.streams import Streams
from retarget.blobs.uploads import Uploads
from retarget.core.home import Home


class Files:
    def __init__(self, home: Home) -> None:
        self.blobs = Blobs(home.blobs)
        self.snapshots = Snapshots(home.snapshots, self.blobs)
        self.streams = Streams(home.logs)
        self.uploads = Uploads(home.uploads)
        self._root = home.root

    def sync(self) -> None:
        """Make everything recorded so far outlive a power cut, and SQLite's rows with it."""
        sync_file_system(self._root)
