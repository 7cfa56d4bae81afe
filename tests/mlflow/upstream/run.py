"""Runs MLflow's own tests of its server against ours: `python -m tests.mlflow.upstream.run SOURCE`.

SOURCE is a checkout of MLflow at the version that requirements/upstream.in names. Its tests run
unchanged, with that version's client; on_retarget.py replaces the servers they start. What comes
out is written to docs/mlflow-tests.md; the reasons are in differences.toml.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
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

PAGE = ROOT / "docs/mlflow-tests.md"
REQUIREMENTS = ROOT / "requirements/upstream.in"
DIFFERENCES = tomllib.loads((HERE / "differences.toml").read_text())["difference"]
OUTCOMES = {"passed", "skipped", "no server"}

# It starts MLflow's own server, in a way of its own.
NOT_OURS = f"{FILES[0]}::test_create_model_version_with_validation_regex"

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
    unexpected = _unexpected(results)
    _write(results)
    print(f"written to {PAGE.relative_to(ROOT)}", *unexpected, sep="\n")
    return 1 if unexpected else 0


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
    command += ["--deselect", NOT_OURS]
    command += ["-n", "2", "--timeout", "120", "--tb", "short", *files, *sys.argv[2:]]
    subprocess.run(command, cwd=folder, env=environ | more, check=False)
    return json.loads(results.read_text())


def _unexpected(results: Results) -> list[str]:
    found: list[str] = []
    for name, result in sorted(results.items()):
        why = _why(name)
        if result["outcome"] == "failed" and why is None:
            found.append(f"FAILED {name}\n    {result['why']}")
        exact = {each for one in DIFFERENCES for each in one["tests"] if "*" not in each}
        if result["outcome"] == "passed" and name.partition("::")[2] in exact:
            found.append(f"PASSED, though differences.toml names it: {name}")
    return found


def _write(results: Results) -> None:
    """Write the page of the docs that lists them all."""
    every: dict[str, dict[str, Counter[str]]] = {}  # file, function, outcomes
    for name, result in sorted(results.items()):
        file, _, test = name.partition("::")
        outcome = result["outcome"]
        if outcome == "failed":
            outcome = _why(name) or "not known"
        every.setdefault(file, {}).setdefault(test.partition("[")[0], Counter())[outcome] += 1
    total = Counter(result["outcome"] for result in results.values())
    version = next(line for line in REQUIREMENTS.read_text().splitlines() if "mlflow==" in line)
    lines = [
        "# MLflow's own tests on Retarget's server",
        "",
        f"Made by `make mlflow-tests MLFLOW_SOURCE=…` with the tests and client of `{version}`.",
        "The tests run unchanged; in place of each server that they start, ours is started. The",
        "number after a name tells how many cases of it there are.",
        "",
        f"**{total['passed']} passed, {total['failed']} did not, {total['skipped']} are skipped by "
        f"MLflow, {total['no server']} ask no server.**",
    ]
    reasons = Counter(
        _why(name) or "not known"
        for name, result in results.items()
        if result["outcome"] == "failed"
    )
    lines += ["", "| how many do not pass | because |", "|--:|---|"]
    lines += [f"| {count} | {why} |" for why, count in reasons.most_common()]
    for file, tests in every.items():
        lines += ["", f"## {file}", "", "Pass:", "", _listed(tests, "passed")]
        for why in sorted({why for counts in tests.values() for why in counts} - OUTCOMES):
            lines += ["", f"Do not pass, because {why}:", "", _listed(tests, why)]
    PAGE.write_text("\n".join(lines) + "\n")


def _listed(tests: dict[str, Counter[str]], outcome: str) -> str:
    shown = [
        f"`{test}`" + (f" ({counts[outcome]})" if counts[outcome] > 1 else "")
        for test, counts in tests.items()
        if counts[outcome]
    ]
    return "\n".join(textwrap.wrap(", ".join(shown), 118, break_long_words=False)) or "none"


def _why(name: str) -> str | None:
    """Return why a test is expected to fail."""
    return next((each["why"] for each in DIFFERENCES if _any(name, each["tests"])), None)


def _any(name: str, patterns: list[str]) -> bool:
    test = name.partition("::")[2]
    return any(fnmatchcase(name if "::" in each else test, each) for each in patterns)


if __name__ == "__main__":
    sys.exit(main())
