"""Gets images for an engine: pulls them, or builds them from a Dockerfile."""

import json
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import requests
import urllib3
from docker.errors import APIError, DockerException, NotFound

from retarget.core.driver import Launch
from retarget.core.environments import Environment
from retarget.core.errors import Conflict, LaunchRejected, NotReady, TargetError
from retarget.core.links import Links
from retarget.core.units import show_memory
from retarget.drivers._docker_client import DockerClients, root_cause
from retarget.drivers._tmpdir import user_tmpdir
from retarget.runner.error_lines import engine_sentence
from retarget.runner.errors import AttemptOver, Refused, Unreachable
from retarget.runner.folder import Folder
from retarget.runner.snapshot import Blobs, lay_out

# labels of built images: the digest of the environment, and when the build started
_ENVIRONMENT_LABEL, _STARTED_LABEL = "retarget.environment", "retarget.started_at"

_INVALID_NAME_ERRORS = (
    "invalid reference",
    "repository name must",
)  # Podman sends these with a 500
# raised when the engine drops the connection
_CONNECTION_ERRORS = (
    DockerException,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    HTTPException,
    ConnectionError,
)


class DockerImages:
    """The images that are being pulled or built, and the launches that wait for them."""

    def __init__(self, links: Links) -> None:
        self._clients = links.get(DockerClients)
        self._tasks: dict[tuple[str, str], ImageTask] = {}  # by engine and image
        self._build_logs: dict[str, str] = {}  # by the key of the launch that waited for the image
        self._lock = threading.Lock()

    def ensure(self, engine: str, image: str, launch: Launch) -> None:
        """Make sure that the engine has the image of a launch. Raise NotReady while it is fetched.

        Launches that waited for the image get the result. For others, fetching starts again.
        """
        key = engine, image
        if not self._is_expected(key, launch) and _has_image(self._clients.get(engine), image):
            return
        with self._lock:
            if not self._is_expected(key, launch):
                self._tasks[key] = _start_task(partial(self._clients.get, engine), image, launch)
            task = self._tasks[key]
            task.waiting.add(launch.key)
            if task.thread.is_alive():
                raise NotReady(task.progress)
            task.waiting.remove(launch.key)
            if not task.waiting:
                del self._tasks[key]
        if task.error is not None:
            raise task.error
        self._build_logs[launch.key] = task.log

    def pop_build_log(self, launch: Launch) -> str:
        """Return the build log of the image of a launch, once, for the log of the job."""
        return self._build_logs.pop(launch.key, "")

    def close(self) -> None:
        """Do nothing: the threads end with the process, and the next server starts again."""

    def _is_expected(self, key: tuple[str, str], launch: Launch) -> bool:
        task = self._tasks.get(key)
        return task is not None and (task.thread.is_alive() or launch.key in task.waiting)


def image_of(environment: Environment, default: str | None) -> str:
    """Name the image that a job runs in; empty if there is none.

    Packages are installed into the cache, not into the image.
    """
    if environment.dockerfile is None:
        return environment.image or default or ""
    plain, base = _image_names(environment.digest or "")
    return base if environment.pip or environment.conda else plain


def built_images(api: Any) -> list[dict[str, Any]]:
    """List the built environments of an engine, as `Caches.environments` does."""
    images: list[dict[str, Any]] = api.images(filters={"label": [_ENVIRONMENT_LABEL]})
    return [_describe_built(image) for image in images if _is_original(image)]


def remove_built_images(api: Any, digest: str) -> bool:
    """Remove the images built for an environment; False if there are none."""
    return any([_remove(api, name) for name in _image_names(digest)])


def _image_names(digest: str) -> tuple[str, str]:
    """Name the images of an environment: without packages, and as the base for packages."""
    return f"retarget-{digest}", f"retarget-{digest}-base"


def _describe_built(image: dict[str, Any]) -> dict[str, Any]:
    labels: dict[str, str] = image["Labels"]
    started_at = float(labels[_STARTED_LABEL])
    return {
        "digest": labels[_ENVIRONMENT_LABEL],
        "how": "Dockerfile",
        "size": image["Size"],
        "seconds": max(0.0, round(image["Created"] - started_at, 3)),
        "built": started_at,
        "python": None,
    }


def _is_original(image: dict[str, Any]) -> bool:
    """Return whether an image was built for its environment, and not derived from such an image."""
    tags: list[str] = image.get("RepoTags") or []
    names = {tag.rpartition(":")[0].rpartition("/")[2] for tag in tags}
    return not names.isdisjoint(_image_names(image["Labels"][_ENVIRONMENT_LABEL]))


def _remove(api: Any, name: str) -> bool:
    """Remove an image; False if there is none. Raise Conflict while it is used."""
    try:
        api.remove_image(name, force=False)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code == 409:
            raise Conflict(f"image {name[:21]}… is used by a container; try again later") from error
        raise
    return True


def _has_image(api: Any, image: str) -> bool:
    try:
        api.inspect_image(image)
    except NotFound:
        return False
    except APIError as error:
        if error.status_code == 400 or any(phrase in str(error) for phrase in _INVALID_NAME_ERRORS):
            raise LaunchRejected(
                f"{image!r} is not a valid image name: {_error_message(error)}"
            ) from error
        raise
    return True


def _start_task(connect: Callable[[], Any], image: str, launch: Launch) -> "ImageTask":
    if launch.environment.dockerfile is None:
        return Pull(connect, image)
    builds = user_tmpdir() / "builds"
    for stale_folder in builds.glob("*-*"):  # of servers that were killed
        if not Path("/proc", stale_folder.name.rpartition("-")[2]).exists():
            shutil.rmtree(stale_folder, ignore_errors=True)
    return Build(connect, image, launch, builds / f"{image}-{os.getpid()}")


class ImageTask(ABC):
    """A thread that gets an image. When it ends, the engine has the image, or `error` is set."""

    def __init__(self, connect: Callable[[], Any], image: str) -> None:
        self._connect = connect  # returns the client of the engine
        self._image = image
        self.waiting: set[str] = set()  # the keys of the launches that wait for the image
        self.log: str = ""  # for the log of the job
        self.error: TargetError | None = None
        self.thread = threading.Thread(target=self._run, name=f"image {image}", daemon=True)
        self.thread.start()

    @property
    @abstractmethod
    def progress(self) -> str: ...

    @abstractmethod
    def _fetch_image(self) -> None:
        """Let the engine get the image; set `error` if it reports one."""

    @abstractmethod
    def _rejection(self, reason: str) -> LaunchRejected: ...

    def _run(self) -> None:
        try:
            self._fetch_image()
            if self.error is None and not _has_image(self._connect(), self._image):
                self.error = NotReady(f"the engine stopped early: {self.progress}")
        except Exception as error:  # noqa: BLE001 - the edge of a thread
            self.error = self._classify(error)

    def _classify(self, error: Exception) -> TargetError:
        if isinstance(error, TargetError):
            return error
        if isinstance(error, _CONNECTION_ERRORS) and not isinstance(error, APIError):
            return NotReady(f"the engine does not answer: {root_cause(error)}")
        return self._rejection(_error_message(error))


class Pull(ImageTask):
    """Pulls an image."""

    def __init__(self, connect: Callable[[], Any], image: str) -> None:
        self._progress = ""
        super().__init__(connect, image)

    @property
    def progress(self) -> str:
        return f"image {self._image!r} is being pulled{self._progress}"

    def _fetch_image(self) -> None:
        layers: dict[str, tuple[int, int]] = {}
        image = self._image
        name, _, tag = image.partition("@") if "@" in image else _split_tag(image)
        for event in self._connect().pull(name, tag=tag or None, stream=True, decode=True):
            if "error" in event:
                self.error = self._rejection(event["error"])
            size: dict[str, int] = event.get("progressDetail") or {}
            if event.get("status") == "Downloading" and size.get("total"):
                layers[event["id"]] = size.get("current", 0), size["total"]
                current, total = (sum(sizes) for sizes in zip(*layers.values(), strict=True))
                self._progress = f" ({show_memory(current)} of {show_memory(total)})"

    def _rejection(self, reason: str) -> LaunchRejected:
        return LaunchRejected(f"image {self._image!r} cannot be pulled: {reason}")


class Build(ImageTask):
    """Builds an image from a Dockerfile and its context, which the server stores."""

    def __init__(
        self, connect: Callable[[], Any], image: str, launch: Launch, folder: Path
    ) -> None:
        self._launch = launch
        self._folder = folder
        self._dockerfile = launch.environment.dockerfile or ""
        self._step = ""
        super().__init__(connect, image)

    @property
    def progress(self) -> str:
        return f"{self._dockerfile} is being built{self._step}"

    def _fetch_image(self) -> None:
        try:
            self._build(self._fetch_context())
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _classify(self, error: Exception) -> TargetError:
        if isinstance(error, Refused):
            return self._rejection(f"its context could not be downloaded: {error}")
        if isinstance(error, Unreachable | AttemptOver):  # other launches may wait for it, too
            return NotReady(f"the context of {self._dockerfile} cannot be downloaded yet: {error}")
        return super()._classify(error)

    def _fetch_context(self) -> str:
        """Download the context as a runner does, with the key of its runner."""
        context = self._folder / "context"
        context.mkdir(parents=True, mode=0o700)
        launch_file = {"contact": self._launch.contact()}
        (self._folder / "launch.json").write_text(json.dumps(launch_file), "utf-8")
        blobs = Blobs(str(self._folder / "blobs"), [], Folder(str(self._folder)))
        lay_out(self._launch.environment.context or "", str(context), blobs)
        return str(context)

    def _build(self, context: str) -> None:
        options: dict[str, Any] = {"tag": self._image, "network_mode": "host"}
        options |= {"rm": True, "forcerm": True}  # for Podman, rm covers successful builds only
        digest = self._launch.environment.digest or ""
        options["labels"] = {_ENVIRONMENT_LABEL: digest, _STARTED_LABEL: f"{time.time():.3f}"}
        api = self._connect()
        for event in api.build(path=context, dockerfile=self._dockerfile, decode=True, **options):
            line = str(event.get("stream") or event.get("error") or "").strip()
            self.log += f"{line}\n" if line else ""
            if line.startswith(("Step ", "STEP ")):
                self._step = f" ({line})"
            if "error" in event:
                self.error = self._rejection(engine_sentence(line))

    def _rejection(self, reason: str) -> LaunchRejected:
        message = f"environment: {self._dockerfile} cannot be built: {reason}"
        return LaunchRejected(message, log=self.log)


def _error_message(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or root_cause(error) or type(error).__name__)


def _split_tag(image: str) -> tuple[str, str, str]:
    name, colon, tag = image.rpartition(":")
    return (name, colon, tag) if colon and "/" not in tag else (image, "", "latest")
