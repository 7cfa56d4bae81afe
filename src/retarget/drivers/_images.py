"""Images on their way to an engine: pulled, or built from a Dockerfile."""

import json
import os
import shutil
import threading
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Protocol

import requests
from docker.errors import DockerException, ImageNotFound

from retarget.core.driver import Launch
from retarget.core.errors import LaunchRejected, NotReady, TargetError
from retarget.core.units import show_memory
from retarget.drivers._engine import cause, client
from retarget.runner.errors import Refused, Unreachable
from retarget.runner.folder import Folder
from retarget.runner.sentences import engine_sentence
from retarget.runner.snapshot import Blobs, lay_out

_coming: "dict[tuple[str, str], Coming]" = {}  # by their engine and name
_said: dict[str, str] = {}  # by the launch that waited for it
_turn = threading.Lock()


def have_image(api: Any, engine: str, image: str, launch: Launch) -> None:
    """Make sure that the engine has the image of a launch; NotReady while it is on its way."""
    if (engine, image) not in _coming and _has(api, image):
        return
    with _turn:
        coming = _coming.get((engine, image))
        if coming is None:
            coming = _coming[engine, image] = _get(engine, image, launch)
    if coming.thread.is_alive():
        raise NotReady(coming.progress)
    _coming.pop((engine, image), None)
    if coming.trouble is not None:
        raise coming.trouble
    _said[launch.key] = coming.said


def what_was_said(launch: Launch) -> str:
    """Return, once, what is to be read in the log of how its image came about."""
    return _said.pop(launch.key, "")


def _has(api: Any, image: str) -> bool:
    try:
        api.inspect_image(image)
    except ImageNotFound:
        return False
    return True


def _get(engine: str, image: str, launch: Launch) -> "Coming":
    if launch.environment.dockerfile is None:
        return Pull(engine, image)
    places = Path(gettempdir()) / f"retarget-{os.getuid()}" / "builds"
    for left in places.glob("*-*"):  # by servers that were killed
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return Build(engine, image, launch, places / f"{image}-{os.getpid()}")


class Coming(Protocol):
    """What a thread sees to."""

    thread: threading.Thread
    said: str  # what is to be read of it in the log of the job
    trouble: TargetError | None

    @property
    def progress(self) -> str: ...


class Pull:
    """An image on its way to an engine."""

    def __init__(self, engine: str, image: str) -> None:
        self._image = image
        self._progress = ""
        self.said = ""
        self.trouble: TargetError | None = None
        self.thread = threading.Thread(target=self._run, args=(engine, image), daemon=True)
        self.thread.start()

    @property
    def progress(self) -> str:
        return f"image {self._image!r} is being pulled{self._progress}"

    def _run(self, engine: str, image: str) -> None:
        layers: dict[str, tuple[int, int]] = {}
        name, _, tag = image.partition("@") if "@" in image else _tagged(image)
        try:
            for told in client(engine).pull(name, tag=tag or None, stream=True, decode=True):
                if "error" in told:
                    self.trouble = self._refused(told["error"])
                size: dict[str, int] = told.get("progressDetail") or {}
                if told.get("status") == "Downloading" and size.get("total"):
                    layers[told["id"]] = size.get("current", 0), size["total"]
                    have, total = (sum(each) for each in zip(*layers.values(), strict=True))
                    self._progress = f" ({show_memory(have)} of {show_memory(total)})"
        except (DockerException, requests.RequestException) as error:
            explained = getattr(error, "explanation", None)
            self.trouble = self._refused(str(explained or cause(error)))

    def _refused(self, why: str) -> LaunchRejected:
        return LaunchRejected(f"image {self._image!r} cannot be had: {why}")


class Build:
    """An image that is built from a Dockerfile and the folder around it, which the server has."""

    def __init__(self, engine: str, image: str, launch: Launch, place: Path) -> None:
        self._engine = engine
        self._image = image
        self._launch = launch
        self._place = place
        self._file = launch.environment.dockerfile or ""
        self._step = ""
        self.said = ""
        self.trouble: TargetError | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def progress(self) -> str:
        return f"{self._file} is being built{self._step}"

    def _run(self) -> None:
        try:
            self._build(self._fetch())
        except Refused as error:
            self.trouble = self._refused(f"its context cannot be had: {error}")
        except Unreachable as error:
            self.trouble = NotReady(f"the context of {self._file} cannot be had yet: {error}")
        except (DockerException, requests.RequestException, OSError) as error:
            self.trouble = self._refused(str(getattr(error, "explanation", None) or cause(error)))
        finally:
            shutil.rmtree(self._place, ignore_errors=True)

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
        options: dict[str, Any] = {"tag": self._image, "forcerm": True, "network_mode": "host"}
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


def _tagged(image: str) -> tuple[str, str, str]:
    name, colon, tag = image.rpartition(":")
    return (name, colon, tag) if colon and "/" not in tag else (image, "", "latest")
