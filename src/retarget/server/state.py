"""What the routes share: the context of control, the event bus, and details of the server."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from retarget.control.context import Context
from retarget.core.home import Home
from retarget.server.event_bus import EventBus


@dataclass
class State:
    context: Context
    bus: EventBus
    home: Home
    token: str
    url: str
    stop: Callable[[], None]
    pid: int = field(default_factory=os.getpid)
    started_at: float = field(default_factory=time.time)
    event_streams: int = 0  # that are being sent
