"""Runs MLflow's own tests of its server against ours: `python -m tests.mlflow.upstream.run SOURCE`.

SOURCE is a checkout of MLflow at the version that requirements/upstream.in names. Its tests run
unchanged, with that version's client; on_retarget.py replaces the servers they start.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYTHON = ROOT / ".parts/upstream/bin/python"
FILES = [
    "tests/tracking/test_rest_tracking.py",
    "tests/tracking/test_model_registry.py",
    "tests/tracking/test_mlflow_artifacts.py",
]
# Tests of the fluent API, which MLflow runs on a store in a file.
FLUENT = ["tests/tracking/test_tracking.py", "tests/tracking/fluent/test_fluent.py"]

Results = dict[str, dict[str, str]]


def main() -> int:
    """Run them all, print what came out, and tell by the exit code if anything is unexpected."""
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "")
    if not (source / FILES[0]).exists():
        print("give a checkout of MLflow: make mlflow-tests MLFLOW_SOURCE=/path/to/mlflow")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(source / "tests", Path(folder, "tests"))
        shutil.copy(source / "pyproject.toml", folder)
        results = _run(Path(folder), FILES) | _run(
            Path(folder), FLUENT, RETARGET_REPLACES_STORE="1"
        )
    return _report(results)


def _run(folder: Path, files: list[str], **more: str) -> Results:
    results = folder / "results.json"
    environ = os.environ | {
        "PYTHONPATH": f"{folder}:{HERE}",
        "PATH": f"{HERE / 'bin'}:{PYTHON.parent}:{os.environ['PATH']}",
        "RETARGET_SERVER_PYTHON": str(ROOT / ".venv/bin/python"),
        "RETARGET_RESULTS": str(results),
        "RETARGET_UPSTREAM_PYTHON": str(PYTHON),
        "RETARGET_HOMES": str(folder),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    command = [PYTHON, "-m", "pytest", "-q", "-p", "on_retarget", "-p", "no:cacheprovider"]
    command += ["-n", "2", "--timeout", "120", "--tb", "short", *files, *sys.argv[2:]]
    subprocess.run(command, cwd=folder, env=environ | more, check=False)
    return json.loads(results.read_text())


def _report(results: Results) -> int:
    expected = tomllib.loads((HERE / "differences.toml").read_text())["difference"]
    unexpected: list[str] = []
    counts: Counter[str] = Counter()
    for name, result in sorted(results.items()):
        why = next((each["why"] for each in expected if _any(name, each["tests"])), None)
        outcome = result["outcome"]
        if outcome == "failed" and why is None:
            unexpected.append(f"FAILED {name}\n    {result['why']}")
        elif outcome == "passed" and why is not None:
            unexpected.append(f"PASSED, though differences.toml names it: {name}")
        counts[f"failed, as expected: {why}" if outcome == "failed" and why else outcome] += 1
    print(*(f"{count:5}  {outcome}" for outcome, count in sorted(counts.items())), sep="\n")
    print(*unexpected, sep="\n")
    return 1 if unexpected else 0


def _any(name: str, patterns: list[str]) -> bool:
    test = name.rpartition("/")[2]
    return any(fnmatchcase(test, pattern) for pattern in patterns)


if __name__ == "__main__":
    sys.exit(main())
