"""Every error the system raises on purpose.

RetargetError
├── Invalid              the request can never work            -> 422
├── Unauthorized         no token, or a wrong one              -> 401
├── Forbidden            a right token for something else      -> 403
├── NotFound             no such thing                         -> 404
├── Conflict             the thing is not in that state        -> 409
├── Gone                 nothing more is wanted of that attempt -> 410
├── StorageFull          the server's disk has no room         -> 507
├── ServerUnreachable    the client found no server to talk to
└── TargetError          the compute said no
    ├── TargetUnreachable   try again later                    -> 503
    │   └── NothingStarted     ... and nothing is under way there
    │       └── NotReady          ... and it will be able to soon
    └── LaunchRejected      this launch will never work        -> job FAILED
"""

from typing import ClassVar


class RetargetError(Exception):
    """Base class: `except RetargetError` catches what we raise on purpose, and nothing else."""

    status: ClassVar[int] = 500


class Invalid(RetargetError):
    """The request can never work; `field` names the part to mend, where one part is to blame."""

    status = 422

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthorized(RetargetError):
    status = 401


class Forbidden(RetargetError):
    status = 403


class NotFound(RetargetError):
    status = 404


class Conflict(RetargetError):
    status = 409


class Gone(RetargetError):
    status = 410


class StorageFull(RetargetError):
    status = 507


class ServerUnreachable(RetargetError):
    status = 503


class TargetError(RetargetError):
    status = 502


class TargetUnreachable(TargetError):
    status = 503


class NothingStarted(TargetUnreachable):
    """This try to launch did not get to the target: it has started nothing of it."""


class NotReady(NothingStarted):
    """The target has nothing of a launch, and is on its way to take it: ask again."""


class LaunchRejected(TargetError):
    """This launch will never work. `said`: what its log is to show of how that came about."""

    def __init__(self, message: str, *, said: str = "") -> None:
        super().__init__(message)
        self.said = said


def error_named(name: str, message: str, *, field: str | None = None) -> RetargetError:
    """Return the error a server named in its answer, so that a client raises the same one."""
    if name == "Invalid":
        return Invalid(message, field=field)
    found = {kind.__name__: kind for kind in _tree(RetargetError)}.get(name, RetargetError)
    return found(message)


def _tree(root: type[RetargetError]) -> list[type[RetargetError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _tree(child))]
