"""The smallest job: it prints, and leaves one file."""

import os
import platform
from pathlib import Path

who = os.environ.get("WHO", "world")
job = os.environ.get("RETARGET_JOB", "no job")
print(f"hello {who}, from {job} on Python {platform.python_version()}")
Path("outputs").mkdir(exist_ok=True)  # a job finds it there; this is for running it by hand
Path("outputs/hello.txt").write_text(f"hello {who}\n")
