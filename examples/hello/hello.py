"""The smallest job: prints a line and writes one output file."""

import os
import platform
from pathlib import Path

who = os.environ.get("WHO", "world")
job = os.environ.get("RETARGET_JOB", "no job")
print(f"hello {who}, from {job} on Python {platform.python_version()}")
Path("outputs").mkdir(exist_ok=True)  # exists in a job; needed when you run the script by hand
Path("outputs/hello.txt").write_text(f"hello {who}\n")
