"""`sbatch` of a Slurm that is installed and runs."""

import os
import subprocess
import sys

from obey import obey


def submit(script, out):
    wrapped = f"{sys.executable} {script} {out}"
    subprocess.run(["sbatch", "--parsable", "-o", os.devnull, "--wrap", wrapped], check=True)


obey(submit)
