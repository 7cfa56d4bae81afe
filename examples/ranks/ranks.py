"""Several processes that communicate: every rank sends a number, rank 0 adds them up."""

import os
import socket
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RENDEZVOUS = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def gather() -> int:
    """Receive one number from every other rank, and return the sum."""
    total = RANK + 1
    with socket.create_server(RENDEZVOUS) as server:
        for _ in range(WORLD - 1):
            connection, _ = server.accept()
            with connection:
                total += int(connection.recv(64).decode())
    return total


def send(number: int) -> None:
    """Send a number to rank 0, which may not be listening yet."""
    for _ in range(100):
        try:
            with socket.create_connection(RENDEZVOUS, timeout=10) as connection:
                connection.sendall(str(number).encode())
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit(f"rank 0 does not answer at {RENDEZVOUS}")


print(f"rank {RANK} of {WORLD}, threads {os.environ['OMP_NUM_THREADS']}", flush=True)
if RANK == 0:
    print(f"the sum is {gather()}", flush=True)
else:
    send(RANK + 1)
