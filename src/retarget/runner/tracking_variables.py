"""Gives a script what it needs for tracking: `retarget.track`, and the variables of MLflow.

Next to `retarget.track` is `retarget_notebook`, the program that runs notebooks.
"""

from __future__ import annotations

import os

from retarget.runner.folder import Folder

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.relay import Relay

_ARCHIVE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_NOTEBOOK = "retarget/runner/notebook.py"
_URI = "MLFLOW_TRACKING_URI"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def open_relay(folder: Folder, content: dict[str, Any]) -> Relay | None:
    """Open the address for MLflow clients, unless the launch has no server or uses another one."""
    if not content["contact"]["url"] or _URI in content["launch"]["variables"]:
        return None
    from retarget.runner.relay import Relay

    try:
        return Relay(folder)
    except OSError as error:
        folder.log(f"retarget: MLflow clients cannot reach the server: {error.strerror}")
        return None


def offer_tracking(
    folder: Folder, content: dict[str, Any], variables: dict[str, str], relay: Relay | None
) -> None:
    """Add to the variables of a launch. Those that the user has set are not changed."""
    variables["RETARGET_TRACK"] = folder.track
    try:
        module_folder = _ensure_module(content["node"]["cache"])
    except OSError as error:
        folder.log(f"retarget: `from retarget import track` may not work: {error}")
    else:
        # last, and yet before the environment's packages: see retarget.track.stand_in
        paths = [variables.get("PYTHONPATH"), module_folder]
        variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if relay is not None:
        _offer_mlflow(relay.url, content, variables)
        _bypass_proxies(relay.url, variables)


def _offer_mlflow(url: str, content: dict[str, Any], variables: dict[str, str]) -> None:
    launch: dict[str, Any] = content["launch"]
    defaults = {
        _URI: url,
        "MLFLOW_TRACKING_TOKEN": content["contact"]["script_token"],
        "MLFLOW_RUN_ID": launch["job"],
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # that URL has no page
    }
    # clients reject an experiment id and name that do not match
    if launch.get("experiment_id") and "MLFLOW_EXPERIMENT_NAME" not in variables:
        defaults["MLFLOW_EXPERIMENT_ID"] = launch["experiment_id"]
    for name, value in defaults.items():
        variables.setdefault(name, value)


def _bypass_proxies(url: str, variables: dict[str, str]) -> None:
    """Make clients connect to the relay directly."""
    if not any(variables.get(name) or variables.get(name.upper()) for name in _PROXIES):
        return
    host = url.partition("//")[2].partition("/")[0].rpartition(":")[0].strip("[]")
    exceptions = variables.get("no_proxy") or variables.get("NO_PROXY")
    no_proxy = f"{exceptions},{host}" if exceptions else host
    variables["no_proxy"] = variables["NO_PROXY"] = no_proxy


def _ensure_module(cache: str) -> str:
    """Return a folder with the modules for scripts, one per version of the runner."""
    name = os.path.basename(_ARCHIVE).partition(".")[0]  # the archive is named by its content
    folder = os.path.join(cache, "track", name)
    if not os.path.exists(folder):
        _unpack(folder)
    return folder


def _unpack(folder: str) -> None:
    import fcntl
    import shutil
    import zipfile

    root, part = os.path.dirname(folder), f"{folder}.part"
    os.makedirs(root, exist_ok=True)
    lock = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time: the next cleans up after a killed one
        shutil.rmtree(part, ignore_errors=True)
        if os.path.exists(folder):
            return
        with zipfile.ZipFile(_ARCHIVE) as archive:
            names = [name for name in archive.namelist() if name.startswith("retarget/track/")]
            archive.extractall(part, [*names, _NOTEBOOK])
        os.rename(f"{part}/retarget/track/stand_in.py", f"{part}/retarget/__init__.py")
        os.rename(f"{part}/{_NOTEBOOK}", f"{part}/retarget_notebook.py")
        os.rmdir(f"{part}/retarget/runner")
        os.rename(part, folder)
    finally:
        os.close(lock)
