"""`sbatch` of an installed and running Slurm."""

import os
import subprocess
import sys

from respond import respond


def submit(script, out):
    wrapped = f"{sys.executable} {script} {out}"
    subprocess.run(["sbatch", "--parsable", "-o", os.devnull, "--wrap", wrapped], check=True)


respond(submit)
