"""The machines that are in use over SSH: one link to each, whichever driver asks for it."""

import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import astuple
from hashlib import blake2b

from retarget.drivers._host import Bringing, Doors, Host
from retarget.drivers._scratch import zipapp
from retarget.drivers._ssh import Login, Place, Way

Reached = tuple[Host, Way]
_Identity = tuple[str, str | None]

# by all that decides how each is reached, and the key that it must have if it was met before
_reached: dict[_Identity, Reached] = {}
_doors: dict[str, Doors] = {}  # by machine, user and folder, however it is reached
_turn = threading.Lock()


def reach(place: Place, login: Login, *, root: str, pins: Mapping[str, str]) -> Reached:
    """Return a machine, which all drivers that reach it in the same way share."""
    identity = _digest(os.getpid(), astuple(place), astuple(login), root)
    pin = pins.get(place.name)
    with _turn:
        met = _take_met(identity, place, pin)
        if (identity, pin) not in _reached:
            _reached[identity, pin] = met or _new(place, login, root, pin)
        elif met is not None:
            met[0].release()
        found = _reached[identity, pin]
    found[0].patience = login.timeout
    found[1].expect(pins)
    return found


def let_go(machines: Collection[Reached]) -> None:
    """Have no link to these. Others that share one of them make a new one."""
    with _turn:
        for identity, each in list(_reached.items()):
            if each in machines:
                del _reached[identity]
    for host, _ in machines:
        host.release()


def _take_met(identity: str, place: Place, pin: str | None) -> Reached | None:
    """Return the machine that was to be met for the first time, and has shown this key."""
    there = _reached.get((identity, None))
    if pin is None or there is None or there[1].pins.get(place.name) != pin:
        return None
    return _reached.pop((identity, None))


def _new(place: Place, login: Login, root: str, pin: str | None) -> Reached:
    way = Way(place, login, pin)
    doors = _doors.setdefault(_digest(place.name, place.user or login.user, root), Doors())
    return Host(place.name, way.enter, Bringing(root, zipapp), doors), way


def _digest(*what: object) -> str:
    """Return what stands for all this, and holds no secret."""
    return blake2b(repr(what).encode("utf-8", "surrogatepass")).hexdigest()
