"""Asks a real server all that /openapi.json allows, and much that it does not: `make fuzz`.

What is submitted cannot do harm: no command is found, nothing is installed, and a job that waits
for the whole machine stands before all others in the queue.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from retarget.core.tokens import attempt_token
from tests.server.conftest import Api, serving

_HERE = Path(__file__).parent
_PROGRAM = _HERE.parents[1] / ".parts/fuzz/bin/schemathesis"
_ASKING = {  # phases, how many examples, how often a name that is there takes the place of another
    "alone": ("examples,coverage,fuzzing", 220, 0.5),
    "chains": ("stateful", 1200, 0.1),
}
_started: list[subprocess.Popen[bytes]] = []
_SCRIPT = """
from retarget import track
track.log(loss=0.5)
open("outputs/kept.txt", "w").write("kept")
"""


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--cases", type=int, default=20_000)
    options.add_argument("--seed", type=int, required=True)
    asked = options.parse_args()
    if not _PROGRAM.exists():
        sys.exit(f"{_PROGRAM} is not installed: run scripts/test-parts.sh fuzz")
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="retarget-fuzz-") as name:
        return fuzz(Path(name), asked.cases, asked.seed)


def fuzz(folder: Path, cases: int, seed: int) -> int:
    """Ask in both ways at the same time, until there were so many cases."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_prepared(folder / name)) for name in _ASKING}
        with ThreadPoolExecutor() as threads:
            asking = [
                threads.submit(_rounds, *servers[name], name, cases // len(_ASKING), seed)
                for name in _ASKING
            ]
        done = [each.result() for each in asking]
        if None in done:
            return 1
    total = sum(each or 0 for each in done)
    print(f"{total:,} cases over /openapi.json, none answered with what it does not say")
    return 0


def _rounds(api: Api, variables: dict[str, str], name: str, cases: int, seed: int) -> int | None:
    """Ask round after round, each with the next seed, and return how often; None is a failure."""
    done = 0
    while done < cases:
        report = _report(api.home.parent, _ask(api, variables, name, seed))
        done += report["test_cases"]["generated"]
        if report["exit_code"]:
            print(f"seed {seed} failed: make fuzz FUZZ_SEED={seed} asks the same again")
            return None
        seed += 1
    return done


@contextmanager
def _prepared(folder: Path) -> Generator[tuple[Api, dict[str, str]]]:
    """Serve a home with an ended job, a model, a running job, and a queue that does not move."""
    (folder / "bin").mkdir(parents=True)
    sealed = {"PATH": str(folder / "bin"), "UV_OFFLINE": "1", "UV_NO_INDEX": "1"}
    with serving(folder / "home", **sealed) as api:
        done = api.submit(sys.executable, "-c", _SCRIPT, name="done")
        assert api.wait("done")["state"] == "succeeded"
        left = {"job": "done", "path": "outputs/kept.txt"}
        assert api.ask("POST", "/api/models/kept/versions", left).status == 201
        assert api.ask("PUT", "/api/models/kept/aliases/best", {"version": 1}).status == 200
        api.cleared()
        held = api.submit("/bin/sleep", "1800", name="held")
        api.wait("held", "running")
        cpus = api.ask("GET", "/api/targets/local").json["facts"]["nodes"][0]["cpus"]
        first = [
            api.submit("/bin/sleep", "1800", name=f"first-{number}", priority=1000, cpus=cpus)
            for number in range(2)
        ]
        spared = ["kept", *(job[key] for job in (done, held, *first) for key in ("id", "name"))]
        key = next((api.home / "targets/local/launches").iterdir()).name
        variables = {
            "FUZZ_TOKEN": api.token,
            "FUZZ_ATTEMPT": key,
            "FUZZ_ATTEMPT_TOKEN": attempt_token((api.home / "secret").read_bytes(), key),
            "FUZZ_SPARED": json.dumps(spared),
            "FUZZ_HOOKS": str(_HERE / "hooks.py"),
        }
        try:
            yield api, variables
        finally:
            _settle(api)


def _ask(api: Api, variables: dict[str, str], name: str, seed: int) -> subprocess.Popen[bytes]:
    """Start asking in one of the ways. Each has a server of its own: chains depend on its state."""
    (phases, examples, share), folder = _ASKING[name], api.home.parent
    command = [_PROGRAM, "--no-color", "--config-file", _HERE / "schemathesis.toml", "run"]
    command += [f"{api.url}/openapi.json", "--phases", phases, "--max-examples", examples]
    command += ["--seed", seed, "--report-json-path", folder / "report.json", "--warnings", "off"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=os.environ | variables | {"FUZZ_SHARE": str(share)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    _started.append(process)
    return process


def _report(folder: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the end, say what came out, and return it."""
    failed = process.wait() != 0
    said = (folder / "log").read_text(errors="replace")
    print(said if failed else "\n".join(re.findall(r".*(?:API Links|passed).*", said)))
    return json.loads((folder / "report.json").read_text())


def _leave(*_: object) -> None:
    """End what was started; jobs and servers are ended on the way out."""
    for process in _started:
        process.kill()
    sys.exit(143)


def _settle(api: Api) -> None:
    """Cancel what waits and what runs; the server must have kept its wits to the end."""
    while jobs := api.ask("GET", "/api/jobs", limit=1000, state=["queued", "running"]).json:
        for job in jobs:
            assert api.ask("POST", f"/api/jobs/{job['id']}/cancel").status in (202, 409)
    api.cleared()


if __name__ == "__main__":
    sys.exit(main())
