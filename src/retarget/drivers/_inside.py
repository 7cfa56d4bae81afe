"""What lies in a container: what is laid into it before it starts, and what it leaves."""

import io
import json
import tarfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from retarget.core.driver import Launch, Observation, Phase
from retarget.drivers._engine import counted_anew, tar
from retarget.drivers._scratch import zipapp
from retarget.drivers.local import uv_here

ROOT = "/retarget"
LAUNCHES = f"{ROOT}/launches"
CACHE = f"{ROOT}/cache"  # a volume that the containers of an engine share
DOOR = "server"
_RUNNER = f"{ROOT}/runner.pyz"
_FIRST_PORT, _PORTS = 20_000, 12_000  # below what systems give out by themselves


def runner_command(python: str, image: str) -> list[str]:
    """Return the command of a runner in an image.

    Official images of Python come without compiled modules: what one container has compiled,
    the next ones of that image need not compile again.
    """
    compiled = f"{CACHE}/compiled/{blake2b(image.encode(), digest_size=8).hexdigest()}"
    return [python, "-X", f"pycache_prefix={compiled}", "-I", "-S", _RUNNER]


def own_cache(image: dict[str, Any]) -> str | None:
    """Return where in the volume the user of an image has what no other may change; root: None."""
    config: dict[str, Any] = image.get("Config") or {}
    user = str(config.get("User") or "").partition(":")[0]
    if user in ("", "0", "root"):
        return None
    text = user if user.isdecimal() else f"{user} {image['Id']}"  # a name is another one elsewhere
    return f"{CACHE}/users/{blake2b(text.encode(), digest_size=8).hexdigest()}"


def lay_in(launch: Launch, image: str, *, cache: str, linger: float) -> bytes:
    """Pack what a container needs of its launch, to be unpacked at its root."""
    port = _port(launch.key)
    told: dict[str, Any] = {
        "launch": _told(launch, image),
        "node": {
            "cache": cache,
            "blobs": [],
            "runner": _RUNNER,
            "python": None,
            "uv": f"{CACHE}/bin/uv",
            "conda": None,
            "linger": linger,
            "where": f"in image {image!r}",
        },
        "contact": {
            "url": f"http://127.0.0.1:{port}" if launch.url else "",
            "door": f"{ROOT}/doors/{DOOR}" if launch.url else None,
            "token": launch.token,
            "path": f"/api/attempts/{launch.key}",
        },
    }
    return tar(
        {
            "retarget/runner.pyz": zipapp().read_bytes(),
            f"retarget/doors/{DOOR}": json.dumps({"port": port}).encode(),
            f"retarget/launches/{launch.key}/launch.json": json.dumps(told).encode(),
        }
    )


def _told(launch: Launch, image: str) -> dict[str, Any]:
    """Return the launch as one that is in its image already."""
    told = launch.for_runner()
    told["env"] = counted_anew(told["env"], launch.shares[0].gpus if launch.shares else ())
    environment: dict[str, Any] = told["environment"]
    if wants_packages(launch):
        text = f"{image} {launch.environment.digest}"
        digest = blake2b(text.encode(), digest_size=16).hexdigest()
        told["environment"] = environment | {"kind": "system", "image": None, "digest": digest}
    elif environment["kind"] == "image":
        told["environment"] = environment | {"kind": "user", "python": None, "image": None}
    return told


def wants_packages(launch: Launch) -> bool:
    environment = launch.environment
    return environment.kind != "user" and bool(environment.pip or environment.conda)


def bring_uv(api: Any, container: str) -> None:
    """Lay uv into the cache that containers share, where it is not there yet."""
    uv = uv_here()
    if uv is None:
        return  # the runner says so
    try:
        api.get_archive(container, f"{CACHE}/bin/uv")
    except NotFound:
        content = {"bin/uv": Path(uv).read_bytes()}
        api.put_archive(container, CACHE, tar(content, mode=0o755))


def ending(api: Any, container: str, key: str) -> Observation:
    """Return how a container that has stopped left its launch."""
    try:
        content, _ = api.get_archive(container, f"{LAUNCHES}/{key}/done")
        with tarfile.open(fileobj=io.BytesIO(b"".join(content))) as archive:
            file = archive.extractfile(archive.getmembers()[0])
            ending: dict[str, Any] = json.loads(file.read().splitlines()[-1]) if file else {}
        code, reason = ending["exit_code"], ending["reason"]
        return Observation(phase=Phase.EXITED, exit_code=code, reason=reason)
    except NotFound:
        return Observation(phase=Phase.DEAD)
    except (ValueError, LookupError, TypeError, tarfile.TarError):
        return Observation(phase=Phase.EXITED, reason="what it wrote of its end cannot be read")


def _port(key: str) -> int:
    """Return the port of a container's door: its own, for it may share the machine's network."""
    number = int.from_bytes(blake2b(f"door {key}".encode(), digest_size=4).digest())
    return _FIRST_PORT + number % _PORTS
