"""`python flow.py run` of Metaflow: a flow of one step."""

import os
import subprocess
import sys

from respond import respond

FLOW = """
import runpy, sys
from metaflow import FlowSpec, Parameter, step

class Bench(FlowSpec):
    script = Parameter("script")
    out = Parameter("out")

    @step
    def start(self):
        sys.argv = [self.script, self.out]
        runpy.run_path(self.script, run_name="__main__")
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Bench()
"""

with open("flow.py", "w") as file:
    file.write(FLOW)
os.environ.update(METAFLOW_HOME=os.getcwd(), USERNAME="bench", METAFLOW_DEFAULT_DATASTORE="local")


def submit(script, out):
    command = [sys.executable, "flow.py", "--no-pylint", "run", "--script", script, "--out", out]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait


respond(submit)
