"""A server whose clock jumps by a day while jobs run."""

import os
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.conftest import COMMAND
from tests.server.conftest import Api, serving

# The machine's clock must stay right for other tests. So only the server's `time.time` is shifted,
# by the number in a file. Durations are measured with another clock, which nobody can set.
_SERVER = """
import runpy, time
right = time.time
time.time = lambda: right() + float(open({offset!r}).read() or "0")
runpy.run_module("retarget.server", run_name="__main__")
"""
_DAY = 86400.0


def test_a_clock_that_jumps_ends_and_delays_no_job(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text("0")
    program = ("-c", _SERVER.format(offset=str(offset)))
    with serving(tmp_path / "home", program=program, RETARGET_POLL_SECONDS="0.2") as api:
        running = api.submit("sleep", "600", timeout=3600, cpus=1)
        api.wait(running["name"], "running")
        for by in (_DAY, -_DAY):
            offset.write_text(str(by))
            later = api.submit("echo", "later", cpus=1)
            assert abs(_created_at(later) - _created_at(running) - by) < 3600
            assert api.wait(later["name"])["state"] == "succeeded"
            log = api.ask("GET", f"/api/jobs/{later['name']}/logs", follow="true").content
            assert log == b"later\n"
            assert "-" not in _line_of(api, later["name"])
            assert api.ask("DELETE", f"/api/jobs/{later['name']}").status == 204
            assert api.job(running["name"])["state"] == "running"
        api.ask("POST", f"/api/jobs/{running['name']}/cancel")
        assert api.wait(running["name"])["state"] == "canceled"
        assert "-" not in _line_of(api, running["name"])
        api.cleared()


def _created_at(job: dict[str, Any]) -> float:
    return datetime.fromisoformat(job["created_at"]).timestamp()


def _line_of(api: Api, name: str) -> str:
    """Return the line of a job in `job list`, with its age and duration."""
    own = {"RETARGET_URL": api.url, "RETARGET_TOKEN": api.token, "COLUMNS": "200"}
    command = [COMMAND, "job", "list"]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if name in line]
    return line.replace(name, "")
