"""What the routes share: the parts of control, the signals, and the server's own facts."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from retarget.control.parts import Parts
from retarget.core.home import Home
from retarget.server.signals import Signals


@dataclass
class State:
    parts: Parts
    signals: Signals
    home: Home
    token: str
    url: str
    stop: Callable[[], None]
    pid: int = field(default_factory=os.getpid)
    started: float = field(default_factory=time.time)
