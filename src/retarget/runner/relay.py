"""The address that MLflow clients in a script know: a port of the runner that leads to the server.

The server's own port, or the relay port of an agent, is free while the server or the agent is away,
and then anybody on the host can listen on it. This one is not: the script inherits the listening
socket, so the port is taken for as long as the script runs, even if its runner is killed.
"""

from __future__ import annotations

import socket
import threading
import time

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from retarget.runner.folder import Folder

_LOOPBACK = "127.0.0.1"
_BACKLOG = 128


class Relay:
    """Begins to accept connections when the first one is there: most scripts open none."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind((_LOOPBACK, 0))
        self._listener.listen(_BACKLOG)
        self._listener.set_inheritable(True)
        self.url = f"http://{_LOOPBACK}:{self._listener.getsockname()[1]}"
        self.is_serving = False

    def fileno(self) -> int:
        """Return what becomes readable when a connection is there."""
        return self._listener.fileno()

    def serve(self) -> None:
        """Accept connections in the background. May be called again."""
        if not self.is_serving:
            self.is_serving = True
            threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections. The port is taken until the script has ended, too."""
        self._listener.close()

    def _accept(self) -> None:
        from retarget.runner.forwarding import forward

        while self._listener.fileno() != -1:
            try:
                connection, address = self._listener.accept()
                arguments = (self._folder, connection, address)
                threading.Thread(target=forward, args=arguments, daemon=True).start()
            except (OSError, RuntimeError):  # closed, or too many files or threads
                time.sleep(0.1)
