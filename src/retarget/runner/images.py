"""Images on this machine: pulled, built from a Dockerfile, and with packages put on top."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from retarget.runner.engine import Engine, mount
from retarget.runner.errors import Refused, Stopped, Unprepared, Unreachable
from retarget.runner.folder import Folder
from retarget.runner.orders import Orders
from retarget.runner.sentences import engine_sentence
from retarget.runner.snapshot import Blobs, lay_out

_INSIDE = "/retarget-build"
_BUILD = ("--force-rm", "--network", "host")  # a step that fails leaves its container otherwise


class Images:
    """`run` runs a step of a build: its exit code, and what it said."""

    def __init__(
        self,
        engine: Engine,
        node: dict[str, Any],
        folder: Folder,
        orders: Orders,
        run: Callable[[list[str]], tuple[int, str]],
    ) -> None:
        self._engine = engine
        self._node = node
        self._folder = folder
        self._orders = orders
        self._run = run

    @property
    def engine(self) -> Engine:
        return self._engine

    def has(self, image: str) -> bool:
        return self._engine.image(image) is not None

    def ensure(self, image: str) -> None:
        """Have an image here; Unprepared says why it cannot be had."""
        if self.has(image):
            return
        self._folder.say(f"image {image}: pulling")
        code, said = self._run([self._engine.path, "pull", image])
        if code != 0:
            raise Unprepared(f"environment: image {image!r} cannot be had: {engine_sentence(said)}")

    def make(self, tag: str, place: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Make the image of an environment, and return what is to be known of it."""
        base, packages = wanted["image"], bool(wanted["conda"] or wanted["pip"])
        if wanted["context"]:
            base = f"{tag}-base" if packages else tag
            self._build(base, place, wanted)
        else:
            self.ensure(base)
        if packages:
            self._add_packages(base, tag, place, wanted)
        known = self._engine.image(tag)
        if known is None:
            raise Unprepared(f"environment: its image {tag} is not there after it was built")
        return {"image": tag, "engine": self._engine.path, "size": known.get("Size", 0)}

    def _build(self, tag: str, place: str, wanted: dict[str, Any]) -> None:
        context = os.path.join(place, "context")
        self._fetch(wanted["context"], context)
        file = os.path.join(context, wanted["dockerfile"])
        mark = Mark(self._engine, tag, file)
        command = [self._engine.path, "build", *_BUILD, *mark.options]
        mark.remove_containers()  # what a killed build left
        try:
            code, said = self._run([*command, "--tag", tag, "--file", file, context])
        finally:
            mark.remove_containers()
        if code != 0:
            what = wanted["dockerfile"]
            raise Unprepared(f"environment: {what} cannot be built: {engine_sentence(said)}")

    def _fetch(self, digest: str, context: str) -> None:
        import shutil

        cache = os.path.join(self._node["cache"], "blobs")
        blobs = Blobs(cache, self._node.get("blobs", []), self._folder)
        while True:
            os.mkdir(context)
            try:
                lay_out(digest, context, blobs)
                return
            except Refused as error:
                raise Unprepared(f"environment: its context cannot be had: {error}") from error
            except Unreachable:
                shutil.rmtree(context)
                if self._orders.pause(0.5):
                    raise Stopped from None

    def _add_packages(self, base: str, tag: str, place: str, wanted: dict[str, Any]) -> None:
        """Install into a container of the image, and keep that as an image.

        So they go beside what the image has, for its own interpreter; what it has already is not
        installed again.
        """
        steps = os.path.join(place, "packages")
        os.makedirs(steps, exist_ok=True)
        lines = [*wanted["pypi"], *wanted["pip"]]
        _write(os.path.join(steps, "all.txt"), "\n".join(lines) + "\n")
        _write(os.path.join(steps, "pip.txt"), "".join(f"{line}\n" for line in wanted["pip"]))
        _write(os.path.join(steps, "install.sh"), script(wanted, os.environ))
        name = f"retarget-build-{wanted['digest']}"
        key = os.environ.get("RETARGET_LAUNCH", "")
        command = [self._engine.path, "run", "--name", name, "--label", f"retarget.launch={key}"]
        command += ["--network", "host", "--user", "0:0", "--security-opt", "label=disable"]
        command += mount(steps, _INSIDE)
        if self._node.get("uv"):
            command += mount(os.path.realpath(self._node["uv"]), "/retarget-uv")
        for folder in _local_folders(wanted["pip"]):
            command += mount(folder)
        command += ["--entrypoint", "sh", base, f"{_INSIDE}/install.sh"]
        self._engine.ask("rm", "-f", name)  # what a killed build left
        try:
            code, said = self._run(command)
            if code != 0:
                raise Unprepared(f"environment: {engine_sentence(said)}")
            code, said = self._run([self._engine.path, "commit", name, tag])
            if code != 0:
                raise Unprepared(f"environment: its image cannot be kept: {engine_sentence(said)}")
        finally:
            self._engine.ask("rm", "-f", name)


class Mark:
    """Knows the containers that Podman works in while it builds an image, from those of others.

    They stay when it is killed, and can have neither a name nor a label of ours; but each keeps
    the options of its build, of which a secret that no step asks for changes nothing.
    """

    def __init__(self, engine: Engine, name: str, file: str) -> None:
        self._engine = engine
        self._secret = f"id={name},src={file}"
        self.options = ["--secret", self._secret] if engine.kind == "podman" else []

    def remove_containers(self) -> None:
        if not self.options:
            return
        words = ("info", "--format", "{{.Store.GraphRoot}}/{{.Store.GraphDriverName}}-containers")
        place = self._engine.ask(*words).stdout.strip()
        listed = self._engine.ask("ps", "-a", "--external", "--no-trunc", "--format", "{{.ID}}")
        for known in listed.stdout.split():
            if self._is_on(os.path.join(place, known, "userdata", "buildah.json")):
                self._engine.ask("rm", "-f", known)

    def _is_on(self, path: str) -> bool:
        try:
            with open(path, encoding="utf-8") as file:
                options = json.load(file)["CommonBuildOpts"]
        except (OSError, ValueError, KeyError):
            return False  # not a build's, or just gone
        return self._secret in (options.get("Secrets") or [])


def script(wanted: dict[str, Any], environ: Mapping[str, str]) -> str:
    """Return the steps that install packages in an image, with what it has to do that."""
    exports = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(environ.items())
        # paths of this machine mean nothing in there
        if name.startswith(("UV_", "PIP_", "HTTP", "http", "NO_PROXY", "no_proxy"))
        and not value.startswith("/")
    ]
    return "\n".join(["set -e", *exports, _FIND_PYTHON, *_check(wanted["python"]), *_steps(wanted)])


_FIND_PYTHON = """\
python=$(command -v python3 || command -v python) || { echo 'error: no python is in it'; exit 1; }
has=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore HOME=/tmp
install() {
    if /retarget-uv --version >/dev/null 2>&1; then
        /retarget-uv pip install --python "$python" --break-system-packages --no-cache \\
            --no-progress --color never -r "$1"
    else
        "$python" -m pip install --no-cache-dir --progress-bar off -r "$1"
    fi
}"""


def _check(python: str | None) -> list[str]:
    """Return a check that the image has the Python that is asked for, where one is named."""
    if not python or not python[0].isdigit():
        return []
    say = f"error: it asks for Python {python}, and its image has $has"
    return [f'case "$has." in {python}.*) ;; *) echo "{say}"; exit 1 ;; esac']


def _steps(wanted: dict[str, Any]) -> list[str]:
    every = f"install {_INSIDE}/all.txt"
    if not wanted["conda"]:
        return [every, ""]
    channels = " ".join(f"-c {shlex.quote(name)}" for name in wanted["channels"])
    specs = " ".join(shlex.quote(spec) for spec in wanted["conda"])
    left_out = shlex.quote(f"not on PyPI, left out: {', '.join(wanted['dropped']) or 'nothing'}")
    return [
        "tool=$(command -v mamba || command -v conda || command -v micromamba || true)",
        'if [ -n "$tool" ]; then',
        f'    "$tool" install -y -n base {channels} {specs}',
        f"    [ ! -s {_INSIDE}/pip.txt ] || install {_INSIDE}/pip.txt",
        "else",
        f"    echo 'there is no conda in the image; from PyPI instead'; echo {left_out}",
        f"    {every}",
        "fi",
        "",
    ]


def _local_folders(lines: list[str]) -> list[str]:
    words = [line.split(None, 1) for line in lines if line.startswith("--find-links /")]
    return [folder for _, folder in words if os.path.isdir(folder)]


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
