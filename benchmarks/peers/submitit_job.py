"""submitit on this machine, without Slurm."""

import os
import runpy
import sys

import submitit
from respond import respond

executor = submitit.LocalExecutor(folder=os.path.join(os.getcwd(), "submitit"))
executor.update_parameters(timeout_min=5)


def run(script, out):
    sys.argv = [script, out]
    runpy.run_path(script, run_name="__main__")


def submit(script, out):
    return executor.submit(run, script, out).result


respond(submit)
