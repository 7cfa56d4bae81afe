"""Fuzzes a real server with requests that /openapi.json allows and does not allow: `make fuzz`.

Submitted jobs cannot do harm: no command is on PATH, nothing can be installed, and a job that
waits for all CPUs is ahead of them in the queue.
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

from retarget.runner import proof
from tests.server.conftest import Api, serving

_FOLDER = Path(__file__).parent
_PROGRAM = _FOLDER.parents[1] / ".parts/fuzz/bin/schemathesis"
_CASES = 20_000
_MODES = {  # phases, number of examples for so many cases, how often an existing name is used
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
    options.add_argument("--cases", type=int, default=_CASES)
    options.add_argument("--seed", type=int, required=True)
    arguments = options.parse_args()
    if not _PROGRAM.exists():
        sys.exit(f"{_PROGRAM} is not installed: run scripts/test-parts.sh fuzz")
    signal.signal(signal.SIGTERM, _on_terminate)
    with tempfile.TemporaryDirectory(prefix="retarget-fuzz-") as name:
        return fuzz(Path(name), arguments.cases, arguments.seed)


def fuzz(folder: Path, cases: int, seed: int) -> int:
    """Run both modes in parallel until that many cases were generated."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_prepared_server(folder / name)) for name in _MODES}
        with ThreadPoolExecutor() as threads:
            futures = [
                threads.submit(_run_rounds, *servers[name], name, cases // len(_MODES), seed)
                for name in _MODES
            ]
        done = [future.result() for future in futures]
        if None in done:
            return 1
    total = sum(count or 0 for count in done)
    print(f"{total:,} cases over /openapi.json, no response contradicts it")
    return 0


def _run_rounds(
    api: Api, variables: dict[str, str], name: str, cases: int, seed: int
) -> int | None:
    """Run rounds with consecutive seeds. Return the number of cases, or None after a failure."""
    done, share = 0, min(1.0, cases * len(_MODES) / _CASES)
    while done < cases:
        process = _start_schemathesis(api, variables, name, seed, share)
        report = _report(api.home.parent, process)
        done += report["test_cases"]["generated"]
        if report["exit_code"]:
            repeat = f"make fuzz-api FUZZ_CASES={cases * len(_MODES)} FUZZ_SEED={seed}"
            print(f"seed {seed} failed: {repeat} repeats it")
            return None
        seed += 1
    return done


@contextmanager
def _prepared_server(folder: Path) -> Generator[tuple[Api, dict[str, str]]]:
    """Serve a home with an ended job, a model, a running job, and a blocked queue."""
    (folder / "bin").mkdir(parents=True)
    sealed = {"PATH": str(folder / "bin"), "UV_OFFLINE": "1", "UV_NO_INDEX": "1"}
    with serving(folder / "home", **sealed) as api:
        done = api.submit(sys.executable, "-c", _SCRIPT, name="done")
        assert api.wait("done")["state"] == "succeeded"
        output = {"job": "done", "path": "outputs/kept.txt"}
        assert api.ask("POST", "/api/models/kept/versions", output).status == 201
        assert api.ask("PUT", "/api/models/kept/aliases/best", {"version": 1}).status == 200
        api.cleared()
        running = api.submit("/bin/sleep", "1800", name="held")
        api.wait("held", "running")
        cpus = api.ask("GET", "/api/targets/local").json["inventory"]["nodes"][0]["cpus"]
        first = [
            api.submit("/bin/sleep", "1800", name=f"first-{number}", priority=1000, cpus=cpus)
            for number in range(2)
        ]
        protected = [
            "kept",
            *(job[key] for job in (done, running, *first) for key in ("id", "name")),
        ]
        key = next((api.home / "targets/local/launches").iterdir()).name
        variables = {
            "FUZZ_TOKEN": api.token,
            "FUZZ_ATTEMPT": key,
            "FUZZ_RUNNER_KEY": api.runner_key(key),
            "FUZZ_PROOF": str(proof.__file__),
            "FUZZ_PROTECTED": json.dumps(protected),
            "FUZZ_HOOKS": str(_FOLDER / "hooks.py"),
        }
        try:
            yield api, variables
        finally:
            _cancel_all(api)


def _start_schemathesis(
    api: Api, variables: dict[str, str], name: str, seed: int, share: float
) -> subprocess.Popen[bytes]:
    """Start schemathesis in one mode. Each mode has its own server: chains depend on the state."""
    (phases, examples, existing_share), folder = _MODES[name], api.home.parent
    command = [_PROGRAM, "--no-color", "--config-file", _FOLDER / "schemathesis.toml", "run"]
    command += [f"{api.url}/openapi.json", "--phases", phases]
    command += ["--max-examples", round(share * examples)]
    command += ["--seed", seed, "--report-json-path", folder / "report.json", "--warnings", "off"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=os.environ | variables | {"FUZZ_SHARE": str(existing_share)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    _started.append(process)
    return process


def _report(folder: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for schemathesis to end, print its output, and return its report."""
    failed = process.wait() != 0
    log = (folder / "log").read_text(errors="replace")
    print(log if failed else "\n".join(re.findall(r".*(?:API Links|passed).*", log)))
    return json.loads((folder / "report.json").read_text())


def _on_terminate(*_: object) -> None:
    """Kill schemathesis. The context managers end the jobs and servers."""
    for process in _started:
        process.kill()
    sys.exit(143)


def _cancel_all(api: Api) -> None:
    """Cancel all jobs. The server must still work."""
    while jobs := api.ask("GET", "/api/jobs", limit=1000, state=["queued", "running"]).json:
        for job in jobs:
            assert api.ask("POST", f"/api/jobs/{job['id']}/cancel").status in (202, 409)
    api.cleared()


if __name__ == "__main__":
    sys.exit(main())
