"""A bare process: what every other way of running a script is compared with."""

import subprocess
import sys

from obey import obey


def submit(script, out):
    return subprocess.Popen([sys.executable, script, out]).wait


obey(submit)
