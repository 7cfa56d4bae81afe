"""What can end or delay a launch, apart from the script itself."""

from __future__ import annotations


class Unreachable(Exception):
    """No server answers, or another program does: try again."""


class AttemptOver(Exception):
    """The server says that this attempt is over: it takes no more reports."""


class Refused(Unreachable):
    """The server does not accept this request: continue without it if possible."""


class NoSpace(Unreachable):
    """The server's disk is full: try again later."""


class Stopped(Exception):
    """The stop signal came during the preparation."""


class Unprepared(Exception):
    """The code or the environment could not be prepared; the message is the user's reason."""


class Ended(Exception):
    """The attempt ended before the script started."""

    def __init__(self, outcome: str, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.code = code
