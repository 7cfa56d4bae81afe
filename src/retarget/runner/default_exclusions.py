"""Names that are excluded by default: from snapshots, and from the results that are kept.

The patterns have the form of lines in an ignore file: `name`, `prefix*`, `*suffix`; with `/` at the
end they match folders only. docs/how-to/data.md lists them all.
"""

from __future__ import annotations

ALWAYS = (
    ".git",
    "__pycache__",
    "*.pyc",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".hypothesis",
    ".tox",
    ".nox",
    ".DS_Store",
)
SECRETS = (
    ".env",
    ".env.*",
    "*.pem",
    "id_rsa*",
    "id_ed25519*",
    ".aws/",
    ".netrc",
    "credentials.json",
)
NOT_SECRET = (".env.example",)
TOOL_FOLDERS = ("node_modules/", "wandb/", "mlruns/", "lightning_logs/")
# A folder with one of these is a virtual environment, from venv or conda.
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
# A folder with both is a home of Retarget: it holds secrets, and changes while it is read.
HOME_MARKS = ("server.lock", "token")
DOWNLOAD_MARK = ".retarget-download"  # in folders that `retarget job outputs --download` wrote


def is_excluded(name: str, is_folder: bool) -> bool:
    """Return whether a name is one of those above."""
    if name in NOT_SECRET:
        return False
    return any(_matches(pattern, name, is_folder) for pattern in (*ALWAYS, *SECRETS, *TOOL_FOLDERS))


def is_always_excluded(name: str, is_folder: bool) -> bool:
    """Return whether a name is that of a cache or of a tool's own files: no result, ever."""
    return any(_matches(pattern, name, is_folder) for pattern in ALWAYS)


def _matches(pattern: str, name: str, is_folder: bool) -> bool:
    if pattern.endswith("/"):
        return is_folder and name == pattern[:-1]
    if pattern.startswith("*"):
        return name.endswith(pattern[1:]) and not is_folder
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern
