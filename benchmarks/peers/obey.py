"""What the peers' programs share: read an order, submit, and tell how long the script took to run.

Run by the Python of each peer, so there is nothing here but the standard library.
"""

import json
import os
import sys
import time


def obey(submit):
    """Answer each order, {"script": …, "out": …}, with the milliseconds to the script's first line.

    `submit(script, out)` has the peer run the script, which writes the clock to `out` at once.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a peer prints is no answer
    answers.write('"ready"\n')
    answers.flush()
    for line in sys.stdin:
        order = json.loads(line)
        began = time.monotonic_ns()
        wait = submit(order["script"], order["out"])
        took = _first_line(order["out"]) - began
        if wait is not None:
            wait()
        answers.write(json.dumps(took / 1e6) + "\n")
        answers.flush()


def _first_line(out):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if os.path.exists(out):
            with open(out) as file:
                text = file.read()
            if text.endswith("\n"):
                return int(text)
        time.sleep(0.002)
    raise SystemExit("the script did not run")
