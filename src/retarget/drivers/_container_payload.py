"""The files of a launch in a container: packed before it starts, read after it ends."""

import io
import json
import tarfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from retarget.core.driver import Launch, Observation, Phase
from retarget.drivers._docker_client import pack_tar, renumber_gpus
from retarget.drivers._tmpdir import runner_zipapp
from retarget.drivers.local import bundled_uv

ROOT = "/retarget"
LAUNCHES = f"{ROOT}/launches"
CACHE = f"{ROOT}/cache"  # a volume that the containers of an engine share
RELAY_PORT = "server"
CONDA_OBSTACLE = "a container builds from PyPI"
_RUNNER = f"{ROOT}/runner.pyz"
_FIRST_PORT, _PORT_COUNT = 20_000, 12_000  # below the ephemeral ports


def runner_command(python: str, image: str) -> list[str]:
    """Return the command of a runner in an image.

    The official Python images have no compiled modules. The containers of an image share what
    they compile in the cache.
    """
    compiled = f"{CACHE}/compiled/{blake2b(image.encode(), digest_size=8).hexdigest()}"
    return [python, "-X", f"pycache_prefix={compiled}", "-I", "-S", _RUNNER]


def user_cache(image: dict[str, Any]) -> str | None:
    """Return the folder in the cache volume that only the user of an image uses; None for root."""
    config: dict[str, Any] = image.get("Config") or {}
    user = str(config.get("User") or "").partition(":")[0]
    if user in ("", "0", "root"):
        return None
    # a user name may be another uid in another image
    text = user if user.isdecimal() else f"{user} {image['Id']}"
    return f"{CACHE}/users/{blake2b(text.encode(), digest_size=8).hexdigest()}"


def pack_payload(launch: Launch, image: str, *, cache: str, linger: float) -> bytes:
    """Pack the files that a container needs for its launch, to be unpacked at its root."""
    port = _relay_port_number(launch.key)
    launch_file: dict[str, Any] = {
        "launch": _launch_for_container(launch, image),
        "node": {
            "cache": cache,
            "blobs": [],
            "runner": _RUNNER,
            "python": None,
            "uv": f"{CACHE}/bin/uv",
            "conda": None,
            "conda_obstacle": CONDA_OBSTACLE,
            "linger": linger,
            "where": f"in image {image!r}",
        },
        "contact": launch.contact()
        | {
            "url": f"http://127.0.0.1:{port}" if launch.url else "",
            "relay_port": f"{ROOT}/relay_ports/{RELAY_PORT}" if launch.url else None,
        },
    }
    return pack_tar(
        {
            "retarget/runner.pyz": runner_zipapp().read_bytes(),
            f"retarget/relay_ports/{RELAY_PORT}": json.dumps({"port": port}).encode(),
            f"retarget/launches/{launch.key}/launch.json": json.dumps(launch_file).encode(),
        }
    )


def _launch_for_container(launch: Launch, image: str) -> dict[str, Any]:
    """Return the launch as a runner reads it that already runs in the image."""
    content = launch.for_runner()
    content["variables"] = renumber_gpus(
        content["variables"], launch.allocations[0].gpus if launch.allocations else ()
    )
    environment: dict[str, Any] = content["environment"]
    if needs_packages(launch):
        text = f"{image} {launch.environment.digest}"
        digest = blake2b(text.encode(), digest_size=16).hexdigest()
        content["environment"] = environment | {"kind": "system", "image": None, "digest": digest}
    elif environment["kind"] == "image":
        content["environment"] = environment | {"kind": "user", "python": None, "image": None}
    return content


def needs_packages(launch: Launch) -> bool:
    environment = launch.environment
    has_packages = bool(environment.pip or environment.conda)
    return environment.kind == "system" or (environment.kind == "image" and has_packages)


def copy_uv(api: Any, container: str) -> None:
    """Copy uv into the cache that containers share, unless the cache has it."""
    uv = bundled_uv()
    if uv is None:
        return  # the runner reports it
    try:
        api.get_archive(container, f"{CACHE}/bin/uv")
    except NotFound:
        content = {"bin/uv": Path(uv).read_bytes()}
        api.put_archive(container, CACHE, pack_tar(content, mode=0o755))


def read_exit(api: Any, container: str, key: str) -> Observation:
    """Observe the launch of a container that has stopped."""
    try:
        content, _ = api.get_archive(container, f"{LAUNCHES}/{key}/done")
        with tarfile.open(fileobj=io.BytesIO(b"".join(content))) as archive:
            file = archive.extractfile(archive.getmembers()[0])
            result: dict[str, Any] = json.loads(file.read().splitlines()[-1]) if file else {}
        code, reason = result["exit_code"], result["reason"]
        return Observation(phase=Phase.EXITED, exit_code=code, reason=reason)
    except NotFound:
        return Observation(phase=Phase.DEAD)
    except (ValueError, LookupError, TypeError, tarfile.TarError):
        return Observation(
            phase=Phase.EXITED, reason="the runner's record of the exit cannot be read"
        )


def _relay_port_number(key: str) -> int:
    """Return a relay port for one container, as containers may share the host's network."""
    number = int.from_bytes(blake2b(f"relay port {key}".encode(), digest_size=4).digest())
    return _FIRST_PORT + number % _PORT_COUNT
