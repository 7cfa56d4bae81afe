"""The Python that runs this code."""

import os
import sys


def own_interpreter() -> str:
    """Return its path. In a job: the one under the job's layer, which ends with the job."""
    if "RETARGET_LAUNCH" not in os.environ:
        return sys.executable
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            settings = [line.partition("=") for line in file]
    except (OSError, ValueError):
        return sys.executable
    below = [value.strip() for name, _, value in settings if name.strip() == "retarget-layer-over"]
    return below[0] if below else sys.executable


def activated_interpreter() -> str | None:
    """Return the Python of the activated virtual or conda environment, unless this code runs in it.

    Retarget runs in another one if it was installed with pipx or as a tool of uv, for example.
    """
    prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if not prefix or os.path.realpath(prefix) == os.path.realpath(sys.prefix):
        return None
    python = os.path.join(prefix, "bin", "python")
    is_usable = os.path.isabs(python) and os.access(python, os.X_OK)
    return python if is_usable and "RETARGET_LAUNCH" not in os.environ else None
