"""Fits a line by gradient descent, over as many processes as there are: the result is the same.

retarget run train.py                                       on this machine
retarget run -t gpu-box train.py                            over SSH
retarget run -t lab --nodes 2 train.py                      on two machines at once
retarget run -t box train.py                                in a container
"""

import json
import math
import os
import random
import socket
import time
from pathlib import Path

from retarget import track

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
MEETING = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
STEPS, RATE = 20, 0.5


def meet():
    """Return a connection to every other process: rank 0 has them all, the others one to it."""
    if WORLD == 1:
        return []
    if RANK == 0:
        with socket.create_server(("", MEETING[1])) as server:
            return [server.accept()[0].makefile("rw") for _ in range(WORLD - 1)]
    for _ in range(300):
        try:
            return [socket.create_connection(MEETING, timeout=60).makefile("rw")]
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"rank 0 does not answer at {MEETING}")


def add_up(terms, others):
    """Add up the terms of all processes. `fsum` is exact: it does not matter who had which."""
    if RANK != 0:
        print(json.dumps(terms), file=others[0], flush=True)
        return json.loads(others[0].readline())
    everybody = [terms, *(json.loads(other.readline()) for other in others)]
    rows = [row for part in everybody for row in part]
    sums = [math.fsum(row[column] for row in rows) for column in range(3)]
    for other in others:
        print(json.dumps(sums), file=other, flush=True)
    return sums


chance = random.Random(7)
points = [(x, 3 * x - 1 + chance.gauss(0, 0.1)) for x in (chance.random() for _ in range(200))]
mine, others = points[RANK::WORLD], meet()
slope = offset = 0.0
for step in range(STEPS):
    errors = [(slope * x + offset - y, x) for x, y in mine]
    loss, by_slope, by_offset = add_up([(e * e, e * x, e) for e, x in errors], others)
    slope -= RATE * 2 * by_slope / len(points)
    offset -= RATE * 2 * by_offset / len(points)
    if RANK == 0:
        track.log("loss", loss / len(points), step=step)
        print(f"step {step}: loss {loss / len(points):.6f}", flush=True)
if RANK == 0:
    track.param(steps=STEPS, rate=RATE)
    print(f"y = {slope:.6f} x + {offset:.6f}", flush=True)
    Path("outputs/line.json").write_text(json.dumps({"slope": slope, "offset": offset}))
