"""Shared by the programs here: reads requests, submits, and measures the time to the first line.

It runs with the Python of each tool, so it uses only the standard library.
"""

import json
import os
import sys
import time


def respond(submit):
    """Answer each {"script": …, "out": …} with the milliseconds until the script's first line.

    `submit(script, out)` runs the script with the tool; it writes the time to `out` at once.
    """
    responses = sys.stdout
    sys.stdout = sys.stderr  # output of the tool is not a response
    responses.write('"ready"\n')
    responses.flush()
    for line in sys.stdin:
        request = json.loads(line)
        start_time = time.monotonic_ns()
        wait = submit(request["script"], request["out"])
        duration = _first_line(request["out"]) - start_time
        if wait is not None:
            wait()
        responses.write(json.dumps(duration / 1e6) + "\n")
        responses.flush()


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
