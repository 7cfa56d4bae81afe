"""Every error the system raises on purpose.

RetargetError
├── Invalid              the request can never work            -> 422
├── Unauthorized         the token is missing or wrong         -> 401
├── Forbidden            the token does not allow this         -> 403
├── NotFound             it does not exist                     -> 404
├── Conflict             its state does not allow this         -> 409
│   └── LeaseLost           another server looks after the target now
├── Gone                 the attempt has ended                 -> 410
├── StorageFull          the server's disk is full             -> 507
├── DatabaseUnreachable  the server's database does not answer -> 503
├── ServerUnreachable    the client cannot reach a server
└── TargetError          the target refused or failed
    ├── TargetUnreachable   try again later                    -> 503
    │   └── NothingStarted     ... and nothing was started on it
    │       └── NotReady          ... and it is getting ready: ask again soon
    └── LaunchRejected      this launch will never work        -> job FAILED
"""

from typing import ClassVar


class RetargetError(Exception):
    """Base class: `except RetargetError` catches exactly the errors that are raised on purpose."""

    status: ClassVar[int] = 500

    def _render_traceback_(self) -> list[str]:
        # IPython calls this: a notebook shows the user's line and the message, not our frames
        from retarget.core.tracebacks import render

        return render(self)


class Invalid(RetargetError):
    """The request can never work. `field` names the part to fix, if it is one part."""

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


class LeaseLost(Conflict):
    """This server does not look after the target any more: it must not act on it."""


class Gone(RetargetError):
    status = 410


class StorageFull(RetargetError):
    status = 507


class DatabaseUnreachable(RetargetError):
    status = 503


class ServerUnreachable(RetargetError):
    status = 503


class TargetError(RetargetError):
    status = 502


class TargetUnreachable(TargetError):
    status = 503


class NothingStarted(TargetUnreachable):
    """This launch did not reach the target: nothing of it was started."""


class NotReady(NothingStarted):
    """The target has not taken the launch yet because it is still getting ready: ask again."""


class LaunchRejected(TargetError):
    """This launch will never work. `log` goes into the log of the job and shows why."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def error_named(name: str, message: str, *, field: str | None = None) -> RetargetError:
    """Return the error that a server named in its response: the client raises the same one."""
    if name == "Invalid":
        return Invalid(message, field=field)
    error_class = {kind.__name__: kind for kind in _tree(RetargetError)}.get(name, RetargetError)
    return error_class(message)


def _tree(root: type[RetargetError]) -> list[type[RetargetError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _tree(child))]
