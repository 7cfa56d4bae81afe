"""Fits a line by gradient descent. The result is the same for any number of processes.

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
RENDEZVOUS = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
STEPS, RATE = 20, 0.5


def connect():
    """Return the connections of this rank: rank 0 has one per other rank, the others only one."""
    if WORLD == 1:
        return []
    if RANK == 0:
        with socket.create_server(("", RENDEZVOUS[1])) as server:
            return [server.accept()[0].makefile("rw") for _ in range(WORLD - 1)]
    for _ in range(300):
        try:
            return [socket.create_connection(RENDEZVOUS, timeout=60).makefile("rw")]
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"rank 0 does not answer at {RENDEZVOUS}")


def all_reduce(terms, connections):
    """Add up the terms of all processes. `fsum` is exact, so their distribution does not matter."""
    if RANK != 0:
        print(json.dumps(terms), file=connections[0], flush=True)
        return json.loads(connections[0].readline())
    terms_by_rank = [terms, *(json.loads(connection.readline()) for connection in connections)]
    rows = [row for rank_terms in terms_by_rank for row in rank_terms]
    sums = [math.fsum(row[column] for row in rows) for column in range(3)]
    for connection in connections:
        print(json.dumps(sums), file=connection, flush=True)
    return sums


random_numbers = random.Random(7)
points = [
    (x, 3 * x - 1 + random_numbers.gauss(0, 0.1))
    for x in (random_numbers.random() for _ in range(200))
]
rank_points, connections = points[RANK::WORLD], connect()
slope = offset = 0.0
for step in range(STEPS):
    errors = [(slope * x + offset - y, x) for x, y in rank_points]
    loss, by_slope, by_offset = all_reduce([(e * e, e * x, e) for e, x in errors], connections)
    slope -= RATE * 2 * by_slope / len(points)
    offset -= RATE * 2 * by_offset / len(points)
    if RANK == 0:
        track.log("loss", loss / len(points), step=step)
        print(f"step {step}: loss {loss / len(points):.6f}", flush=True)
if RANK == 0:
    track.param(steps=STEPS, rate=RATE)
    print(f"y = {slope:.6f} x + {offset:.6f}", flush=True)
    Path("outputs").mkdir(exist_ok=True)
    Path("outputs/line.json").write_text(json.dumps({"slope": slope, "offset": offset}))
