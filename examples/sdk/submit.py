"""Submits a job from Python, waits for it, and reads its outputs."""

import tempfile
from pathlib import Path

from retarget import JobState, Workspace

EXAMPLES = Path(__file__).resolve().parent.parent

workspace = Workspace()
job = workspace.submit("hello.py", code=EXAMPLES / "hello", variables={"WHO": "SDK"})
print(f"submitted {job.name} to {job.target}")
if job.wait(show_output=True) is not JobState.SUCCEEDED:
    raise SystemExit(f"{job.name}: {job.reason}")
with tempfile.TemporaryDirectory() as folder:
    for path in job.download(to=folder):
        print(f"{path.relative_to(folder)}: {path.read_text().strip()}")
