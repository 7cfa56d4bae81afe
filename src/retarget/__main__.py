"""The `retarget` command, which is also `python -m retarget`."""

import os
import signal
from types import FrameType
from typing import NoReturn

_EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    """Run one command and exit. Ctrl-C prints no traceback, even while Python starts or ends."""
    handler = signal.getsignal(signal.SIGINT)
    outer_handler = _exit if handler is signal.default_int_handler else handler
    signal.signal(signal.SIGINT, outer_handler)
    from retarget import cli  # only now, because importing it takes most of the time

    try:
        signal.signal(signal.SIGINT, handler)
        cli.main()
    except KeyboardInterrupt:
        _exit(signal.SIGINT, None)
    finally:
        signal.signal(signal.SIGINT, outer_handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
