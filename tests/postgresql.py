"""Finds the programs of PostgreSQL on this machine."""

import glob
import shutil
from pathlib import Path


def postgresql_programs() -> Path | None:
    on_path = [Path(program).parent for program in [shutil.which("pg_ctl")] if program]
    installed = sorted(map(Path, glob.glob("/usr/lib/postgresql/*/bin")), reverse=True)
    for folder in [*on_path, *installed]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None
