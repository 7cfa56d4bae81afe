"""What can end or delay a launch, apart from the script itself."""

from __future__ import annotations


class Unreachable(Exception):
    """No server answers, or one that is not ours: try again."""


class Over(Exception):
    """The server says that this attempt is over: nothing more is wanted of it."""


class Refused(Unreachable):
    """The server says that this request will never do: whoever can, does without."""


class Stopped(Exception):
    """An order to stop came while something was being prepared."""


class Unprepared(Exception):
    """The code or the environment cannot be had; the text is the reason the user reads."""


class Ended(Exception):
    """The attempt is decided before the script started."""

    def __init__(self, outcome: str, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.code = code
