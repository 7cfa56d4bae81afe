"""What a script finds for tracking: `retarget.track`, and the variables that MLflow reads."""

from __future__ import annotations

import os

from retarget.runner.folder import Folder, address

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

_ARCHIVE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def offer_tracking(folder: Folder, launch: dict[str, Any], cache: str, env: dict[str, str]) -> None:
    """Add to the variables of a launch. What its user has set is left as it is."""
    env["RETARGET_TRACK"] = folder.track
    try:
        ours = _ensure_module(cache)
    except OSError as error:
        folder.say(f"retarget: `from retarget import track` may not work: {error}")
    else:
        # last, and yet before the environment's packages: see retarget.track.stand_in
        theirs = env.get("PYTHONPATH")
        env["PYTHONPATH"] = f"{theirs}{os.pathsep}{ours}" if theirs else ours
    contact = folder.read("launch.json")["contact"]
    contact = dict(contact, url=address(contact))
    if contact["url"] and "MLFLOW_TRACKING_URI" not in launch["env"]:
        _offer_mlflow(contact, launch, env)
        _pass_proxies(contact["url"], env)


def _offer_mlflow(contact: dict[str, str], launch: dict[str, Any], env: dict[str, str]) -> None:
    ours = {
        "MLFLOW_TRACKING_URI": contact["url"],
        "MLFLOW_TRACKING_TOKEN": contact["token"],
        "MLFLOW_RUN_ID": launch["job"],
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # there is no page at that address
    }
    # clients refuse to work with an id and a name that do not go together
    if launch.get("experiment_id") and "MLFLOW_EXPERIMENT_NAME" not in env:
        ours["MLFLOW_EXPERIMENT_ID"] = launch["experiment_id"]
    for name, value in ours.items():
        env.setdefault(name, value)


def _pass_proxies(url: str, env: dict[str, str]) -> None:
    """Have clients reach the server as the runner does, which is directly."""
    if not any(env.get(name) or env.get(name.upper()) for name in _PROXIES):
        return
    host = url.partition("//")[2].partition("/")[0].rpartition(":")[0].strip("[]")
    told = env.get("no_proxy") or env.get("NO_PROXY")
    env["no_proxy"] = env["NO_PROXY"] = f"{told},{host}" if told else host


def _ensure_module(cache: str) -> str:
    """Return a folder on this machine that has `retarget.track`: one for each version of it."""
    name = os.path.basename(_ARCHIVE).partition(".")[0]  # the archive is named by its content
    place = os.path.join(cache, "track", name)
    if not os.path.exists(place):
        _unpack(place)
    return place


def _unpack(place: str) -> None:
    import fcntl
    import shutil
    import zipfile

    root, part = os.path.dirname(place), f"{place}.part"
    os.makedirs(root, exist_ok=True)
    lock = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time: the next clears up after one that died
        shutil.rmtree(part, ignore_errors=True)
        if os.path.exists(place):
            return
        with zipfile.ZipFile(_ARCHIVE) as archive:
            names = [name for name in archive.namelist() if name.startswith("retarget/track/")]
            archive.extractall(part, names)
        os.rename(f"{part}/retarget/track/stand_in.py", f"{part}/retarget/__init__.py")
        os.rename(part, place)
    finally:
        os.close(lock)
