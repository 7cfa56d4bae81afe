"""Commands beside the script: what `retarget exec` runs, with its folder and variables.

The runner listens on a socket in the launch folder. Each connection is one command. The commands
are children of the runner, so they end with the attempt, also if a later runner ends it.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from retarget.runner.errors import Ended

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    import socket
    from typing import Any, Callable, Dict, List, Tuple

    from retarget.runner.command import Command
    from retarget.runner.exec_session import Session
    from retarget.runner.folder import Folder

NAME = "exec"  # of the socket
_BACKLOG = 16
_MAX_SESSIONS = 32
_GRACE_SECONDS = 0.5  # between HUP and KILL when the script has ended
_DISCONNECT_SECONDS = 1.0  # for the clients to receive the end of their commands


class Executions:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._command: Command | None = None
        self._ranks: List[Dict[str, str]] = []
        self._lock = threading.Lock()  # of the present folder and umask, and of the sessions
        self._sessions: Dict[Session, threading.Thread] = {}
        self._listener: socket.socket | None = None
        self._is_closed = False

    def offer(self, command: Command, ranks: List[Dict[str, str]]) -> None:
        """Take the command of the script, and the variables of each local rank."""
        self._command, self._ranks = command, ranks

    def listen(self) -> None:
        """Accept connections from now on. Without space on the disk there are no commands.

        Call this late: most scripts end soon, and this costs more than their start.
        """
        from retarget.runner.folder_socket import listen

        try:
            self._listener = listen(self._folder.path, NAME, _BACKLOG)
        except OSError:
            return
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def take_exits(self, statuses: List[Tuple[int, int]]) -> None:
        """Note which children of this process have ended, by pid, and how."""
        with self._lock:
            for session in self._sessions:
                for pid, status in statuses:
                    if session.process is not None and session.process.pid == pid:
                        session.end(status)

    def close(self, reap: Callable[[], object]) -> None:
        """End the commands: the script has ended. Their clients get the reason."""
        self._is_closed = True
        if self._listener is None:
            return
        _shut_down(self._listener)
        try:
            os.unlink(self._folder.file(NAME))
        except OSError:
            pass  # the script has removed it
        self._signal_all(signal.SIGHUP)
        self._wait(reap, _GRACE_SECONDS)
        self._signal_all(signal.SIGKILL)
        self._wait(reap, _DISCONNECT_SECONDS)

    def _signal_all(self, number: int) -> None:
        for session in self._present():
            session.stop("the script has ended")
            if session.process is not None:
                session.process.signal_all(number)

    def _wait(self, reap: Callable[[], object], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(
            session.process is not None for session in self._present()
        ):
            reap()
            time.sleep(0.005)

    def _present(self) -> List[Session]:
        with self._lock:
            return list(self._sessions)

    # -- threads

    def _accept(self, listener: socket.socket) -> None:
        from retarget.runner.exec_session import Session  # in this thread: it takes a while

        while not self._is_closed:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, or too many files
                time.sleep(0.1)
                continue
            session = Session(connection)
            thread = threading.Thread(target=self._serve, args=(session,), daemon=True)
            with self._lock:
                if len(self._sessions) >= _MAX_SESSIONS or self._is_closed:
                    connection.close()
                    continue
                self._sessions[session] = thread
            try:
                thread.start()
            except RuntimeError:  # too many threads
                self._forget(session)

    def _serve(self, session: Session) -> None:
        from retarget.runner.exec_session import INVALID

        try:
            self._start(session, session.read_start())
            session.run()
        except Ended as error:
            session.refuse(error.code or 1, str(error))
        except OSError as error:
            session.refuse(126, error.strerror or str(error))
        except INVALID as error:
            session.refuse(125, f"this is not the protocol of `retarget exec`: {error}")
        finally:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session, None)
        session.close()

    def _start(self, session: Session, request: Dict[str, Any]) -> None:
        from retarget.runner.exec_process import MARK, ExecProcess

        assert self._command is not None
        rank, terminal = int(request["rank"]), request["terminal"]
        if not 0 <= rank < len(self._ranks):
            raise ValueError(f"rank {rank}")
        mark = f"{os.getpid()}-{os.urandom(8).hex()}"
        more = {MARK: mark}
        if terminal is not None:
            more["TERM"] = str(terminal["term"])
        words = [str(word) for word in request["command"]]
        argv, variables = self._command.beside(rank, words, self._ranks[rank], more)
        with self._lock:  # it may end before it is known
            if self._is_closed:
                raise Ended("failed", "the script has ended", 129)
            os.chdir(self._folder.work)
            os.umask(0o022)
            try:
                session.process = ExecProcess(argv, variables, terminal)
            finally:
                os.chdir(self._folder.path)
                os.umask(0o077)
        if self._command.is_in_container:
            session.process.mark = mark


def _shut_down(listener: socket.socket) -> None:
    """Wake the thread that accepts connections, and close."""
    import socket

    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    listener.close()
