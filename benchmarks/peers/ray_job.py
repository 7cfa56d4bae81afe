"""`ray job submit`, from Python, to a running cluster on this machine."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

from ray.job_submission import JobStatus, JobSubmissionClient
from respond import respond

folder = tempfile.mkdtemp(prefix="ray-")  # contains sockets, so its path must be short
ray = os.path.join(os.path.dirname(sys.executable), "ray")
head = [ray, "start", "--head", "--port", os.environ["BENCH_PORT"], "--dashboard-host=127.0.0.1"]
head += ["--dashboard-port", os.environ["BENCH_DASHBOARD"], "--temp-dir", folder, "--block"]
head += ["--disable-usage-stats", "--node-ip-address=127.0.0.1"]
process = subprocess.Popen(head, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    for _ in range(600):
        try:
            client = JobSubmissionClient(f"http://127.0.0.1:{os.environ['BENCH_DASHBOARD']}")
            break
        except Exception:  # noqa: BLE001  not ready yet
            time.sleep(0.2)

    def submit(script, out):
        job = client.submit_job(entrypoint=f"{sys.executable} {script} {out}")

        def wait():
            while client.get_job_status(job) in (JobStatus.PENDING, JobStatus.RUNNING):
                time.sleep(0.05)

        return wait

    respond(submit)
finally:
    process.terminate()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
