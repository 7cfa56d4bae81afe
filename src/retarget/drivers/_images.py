"""Images on their way to an engine: pulled, or built from a Dockerfile."""

import json
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from http.client import HTTPException
from pathlib import Path
from typing import Any

import requests
import urllib3
from docker.errors import APIError, DockerException, NotFound

from retarget.core.driver import Launch
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, LaunchRejected, NotReady, TargetError
from retarget.core.units import show_memory
from retarget.drivers._engine import cause, client
from retarget.drivers._scratch import scratch
from retarget.runner.errors import Over, Refused, Unreachable
from retarget.runner.folder import Folder
from retarget.runner.sentences import engine_sentence
from retarget.runner.snapshot import Blobs, lay_out

# labels of what is built: the digest of its environment, and when that was begun
_ENVIRONMENT, _BEGUN = "retarget.environment", "retarget.begun"

_coming: "dict[tuple[str, str], Coming]" = {}  # by their engine and name
_said: dict[str, str] = {}  # by the launch that waited for it
_turn = threading.Lock()
_NO_NAME = ("invalid reference", "repository name must")  # what Podman says with a 500
# what is raised when the engine's end of the connection is gone
_LOST = (
    DockerException,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    HTTPException,
    ConnectionError,
)


def have_image(api: Any, engine: str, image: str, launch: Launch) -> None:
    """Make sure that the engine has the image of a launch; NotReady while it is on its way.

    How that ended is for the launches that waited for it; for others it begins anew.
    """
    place = engine, image
    if not _is_coming(place, launch) and _has(api, image):
        return
    with _turn:
        if not _is_coming(place, launch):
            _coming[place] = _get(engine, image, launch)
        coming = _coming[place]
        coming.waiting.add(launch.key)
        if coming.thread.is_alive():
            raise NotReady(coming.progress)
        coming.waiting.remove(launch.key)
        if not coming.waiting:
            del _coming[place]
    if coming.trouble is not None:
        raise coming.trouble
    _said[launch.key] = coming.said


def _is_coming(place: tuple[str, str], launch: Launch) -> bool:
    coming = _coming.get(place)
    return coming is not None and (coming.thread.is_alive() or launch.key in coming.waiting)


def what_was_said(launch: Launch) -> str:
    """Return, once, what is to be read in the log of how its image came about."""
    return _said.pop(launch.key, "")


def image_of(environment: Environment, usual: str | None) -> str:
    """Name the image that a job is in; empty where there is none. One is built where it must.

    Packages are put into the cache, not on top of it.
    """
    if environment.dockerfile is None:
        return environment.image or usual or ""
    plain, base = _names(environment.digest or "")
    return base if environment.pip or environment.conda else plain


def built_images(api: Any) -> list[dict[str, Any]]:
    """Return what an engine has of environments that were built, as `Caches` tells of them."""
    found: list[dict[str, Any]] = api.images(filters={"label": [_ENVIRONMENT]})
    return [_built(each) for each in found if _is_named_as_labeled(each)]


def remove_built(api: Any, digest: str) -> bool:
    """Remove what was built for an environment; False when there is nothing of it."""
    return any([_remove(api, name) for name in _names(digest)])


def _names(digest: str) -> tuple[str, str]:
    """Return what images of an environment are called: as they are, and below packages."""
    return f"retarget-{digest}", f"retarget-{digest}-base"


def _built(image: dict[str, Any]) -> dict[str, Any]:
    labels: dict[str, str] = image["Labels"]
    begun = float(labels[_BEGUN])
    return {
        "digest": labels[_ENVIRONMENT],
        "how": "Dockerfile",
        "size": image["Size"],
        "seconds": max(0.0, round(image["Created"] - begun, 3)),
        "built": begun,
        "python": None,
    }


def _is_named_as_labeled(image: dict[str, Any]) -> bool:
    """Tell an image that was built for an environment from those that others made of it."""
    tags: list[str] = image.get("RepoTags") or []
    names = {tag.rpartition(":")[0].rpartition("/")[2] for tag in tags}
    return not names.isdisjoint(_names(image["Labels"][_ENVIRONMENT]))


def _remove(api: Any, name: str) -> bool:
    """Have the engine remove an image; False when there is none, Conflict while it is used."""
    try:
        api.remove_image(name, force=False)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code == 409:
            raise Conflict(f"image {name[:21]}… is used by a container; try again later") from error
        raise
    return True


def _has(api: Any, image: str) -> bool:
    try:
        api.inspect_image(image)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code == 400 or any(each in str(error) for each in _NO_NAME):
            raise LaunchRejected(f"{image!r} is no name of an image: {_words(error)}") from error
        raise
    return True


def _get(engine: str, image: str, launch: Launch) -> "Coming":
    if launch.environment.dockerfile is None:
        return Pull(engine, image)
    places = scratch() / "builds"
    for left in places.glob("*-*"):  # by servers that were killed
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return Build(engine, image, launch, places / f"{image}-{os.getpid()}")


class Coming(ABC):
    """What a thread sees to. However that ends, there is an image then, or `trouble`."""

    def __init__(self, engine: str, image: str) -> None:
        self._engine = engine
        self._image = image
        self.waiting: set[str] = set()  # the launches that were told to wait for it
        self.said: str = ""  # what is to be read of it in the log of the job
        self.trouble: TargetError | None = None
        self.thread = threading.Thread(target=self._run, name=f"image {image}", daemon=True)
        self.thread.start()

    @property
    @abstractmethod
    def progress(self) -> str: ...

    @abstractmethod
    def _bring(self) -> None:
        """Have the engine get the image; set `trouble` when it says why it cannot."""

    @abstractmethod
    def _refused(self, why: str) -> LaunchRejected: ...

    def _run(self) -> None:
        try:
            self._bring()
            if self.trouble is None and not _has(client(self._engine), self._image):
                self.trouble = NotReady(f"the engine has left off: {self.progress}")
        except Exception as error:  # noqa: BLE001 - the edge of a thread
            self.trouble = self._trouble(error)

    def _trouble(self, error: Exception) -> TargetError:
        if isinstance(error, TargetError):
            return error
        if isinstance(error, _LOST) and not isinstance(error, APIError):
            return NotReady(f"the engine does not answer: {cause(error)}")
        return self._refused(_words(error))


class Pull(Coming):
    """An image on its way to an engine."""

    def __init__(self, engine: str, image: str) -> None:
        self._progress = ""
        super().__init__(engine, image)

    @property
    def progress(self) -> str:
        return f"image {self._image!r} is being pulled{self._progress}"

    def _bring(self) -> None:
        layers: dict[str, tuple[int, int]] = {}
        image = self._image
        name, _, tag = image.partition("@") if "@" in image else _tagged(image)
        for told in client(self._engine).pull(name, tag=tag or None, stream=True, decode=True):
            if "error" in told:
                self.trouble = self._refused(told["error"])
            size: dict[str, int] = told.get("progressDetail") or {}
            if told.get("status") == "Downloading" and size.get("total"):
                layers[told["id"]] = size.get("current", 0), size["total"]
                have, total = (sum(each) for each in zip(*layers.values(), strict=True))
                self._progress = f" ({show_memory(have)} of {show_memory(total)})"

    def _refused(self, why: str) -> LaunchRejected:
        return LaunchRejected(f"image {self._image!r} cannot be had: {why}")


class Build(Coming):
    """An image that is built from a Dockerfile and the folder around it, which the server has."""

    def __init__(self, engine: str, image: str, launch: Launch, place: Path) -> None:
        self._launch = launch
        self._place = place
        self._file = launch.environment.dockerfile or ""
        self._step = ""
        super().__init__(engine, image)

    @property
    def progress(self) -> str:
        return f"{self._file} is being built{self._step}"

    def _bring(self) -> None:
        try:
            self._build(self._fetch())
        finally:
            shutil.rmtree(self._place, ignore_errors=True)

    def _trouble(self, error: Exception) -> TargetError:
        if isinstance(error, Refused):
            return self._refused(f"its context cannot be had: {error}")
        if isinstance(error, Unreachable | Over):  # others may wait for it, too
            return NotReady(f"the context of {self._file} cannot be had yet: {error}")
        return super()._trouble(error)

    def _fetch(self) -> str:
        """Lay out the context as a runner does, with the launch's own token."""
        context = self._place / "context"
        context.mkdir(parents=True, mode=0o700)
        path = f"/api/attempts/{self._launch.key}"
        contact = {"url": self._launch.url, "token": self._launch.token, "path": path}
        (self._place / "launch.json").write_text(json.dumps({"contact": contact}), "utf-8")
        blobs = Blobs(str(self._place / "blobs"), [], Folder(str(self._place)))
        lay_out(self._launch.environment.context or "", str(context), blobs)
        return str(context)

    def _build(self, context: str) -> None:
        options: dict[str, Any] = {"tag": self._image, "network_mode": "host"}
        options |= {"rm": True, "forcerm": True}  # Podman takes the one for successes alone
        digest = self._launch.environment.digest or ""
        options["labels"] = {_ENVIRONMENT: digest, _BEGUN: f"{time.time():.3f}"}
        api = client(self._engine)
        for told in api.build(path=context, dockerfile=self._file, decode=True, **options):
            words = str(told.get("stream") or told.get("error") or "").strip()
            self.said += f"{words}\n" if words else ""
            if words.startswith(("Step ", "STEP ")):
                self._step = f" ({words})"
            if "error" in told:
                self.trouble = self._refused(engine_sentence(words))

    def _refused(self, why: str) -> LaunchRejected:
        message = f"environment: {self._file} cannot be built: {why}"
        return LaunchRejected(message, said=self.said)


def _words(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or cause(error) or type(error).__name__)


def _tagged(image: str) -> tuple[str, str, str]:
    name, colon, tag = image.rpartition(":")
    return (name, colon, tag) if colon and "/" not in tag else (image, "", "latest")
