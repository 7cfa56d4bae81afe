"""The runner's commands: `run`, `forkserver`, `agent`, `conda`, `channels`; `pip` in a layer."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Run one command. Each imports only what it needs, because starting must be fast."""
    if argv[:1] == ["run"] and len(argv) in (2, 3):
        from retarget.runner.supervise import supervise

        supervise(argv[1], int(argv[2]) if len(argv) == 3 else None)
        return 0
    if argv[:1] == ["forkserver"] and len(argv) == 3:
        from retarget.runner.forkserver import serve

        return serve(int(argv[1]))
    if argv[:1] == ["agent"] and len(argv) == 2:
        from retarget.runner.agent import serve

        return serve(argv[1])
    if argv[:1] == ["conda"] and len(argv) == 3:
        from retarget.runner.conda import build

        return build(argv[1], argv[2])
    if argv[:1] == ["channels"]:
        from retarget.runner.channels import check

        return check(argv[1:])
    if argv[:1] == ["pip"] and len(argv) > 1:
        from retarget.runner.pip_bootstrap import run_pip

        return run_pip(argv[1], argv[2:])
    sys.stderr.write("usage: runner run FOLDER [LOCK] | agent ROOT\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
