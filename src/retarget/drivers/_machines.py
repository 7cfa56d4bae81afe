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

# by all that decides how each is reached; those of one list take different keys of hosts
_reached: dict[str, list[Reached]] = {}
_doors: dict[str, Doors] = {}  # by machine, user and folder, however it is reached
_turn = threading.Lock()


def reach(place: Place, login: Login, *, root: str, pins: Mapping[str, str]) -> Reached:
    """Return a machine, which all drivers share that reach it in the same way, by the same keys."""
    identity = _digest(os.getpid(), astuple(place), astuple(login), root)
    with _turn:
        known = _reached.setdefault(identity, [])
        fitting = [each for each in known if each[1].goes_by(pins)]
        if not fitting:
            fitting = [_new(place, login, root, pins)]
            known += fitting
        for each in fitting[1:]:  # met anew, and found to be the same
            known.remove(each)
            each[0].release()
        found = fitting[0]
        found[1].expect(pins)
    found[0].patience = login.timeout
    return found


def let_go(machines: Collection[Reached]) -> None:
    """Have no link to these when nothing is asked of them any more; others make new ones."""
    with _turn:
        for identity, known in list(_reached.items()):
            known[:] = [each for each in known if each not in machines]
            if not known:
                del _reached[identity]
    for host, _ in machines:
        host.release()


def _new(place: Place, login: Login, root: str, pins: Mapping[str, str]) -> Reached:
    doors = _doors.setdefault(_digest(place.name, place.user or login.user, root), Doors())
    way = Way(place, login, pins)
    return Host(place.name, way.enter, Bringing(root, zipapp), doors), way


def _digest(*what: object) -> str:
    """Return what stands for all this, and holds no secret."""
    return blake2b(repr(what).encode("utf-8", "surrogatepass")).hexdigest()
