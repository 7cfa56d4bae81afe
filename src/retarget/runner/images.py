"""The images of this host: pulls them, builds Dockerfiles, and installs packages on top."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from retarget.runner.engine import Engine, mount
from retarget.runner.error_lines import engine_sentence
from retarget.runner.errors import Refused, Stopped, Unprepared, Unreachable
from retarget.runner.folder import Folder
from retarget.runner.snapshot import Blobs, lay_out
from retarget.runner.stop import StopSignal
from retarget.runner.uv_settings import certificate_bundle, uv_variables

_MOUNT_POINT = "/retarget-build"
_CERTIFICATES = "certificates.pem"  # those that this host trusts
# without --force-rm, a step that fails leaves its container behind
_BUILD_OPTIONS = ("--force-rm", "--network", "host")


class Images:
    """`run` runs a step of a build and returns its exit code and output."""

    def __init__(
        self,
        engine: Engine,
        node: dict[str, Any],
        folder: Folder,
        stop_signal: StopSignal,
        run: Callable[[list[str]], tuple[int, str]],
    ) -> None:
        self._engine = engine
        self._node = node
        self._folder = folder
        self._stop_signal = stop_signal
        self._run = run

    @property
    def engine(self) -> Engine:
        return self._engine

    def has(self, image: str) -> bool:
        return self._engine.image(image) is not None

    def ensure(self, image: str) -> None:
        """Pull an image unless the engine has it. Unprepared: it cannot be pulled."""
        if self.has(image):
            return
        self._folder.log(f"image {image}: pulling")
        code, output = self._run([self._engine.path, "pull", image])
        if code != 0:
            cause = engine_sentence(output)
            raise Unprepared(f"environment: image {image!r} cannot be pulled: {cause}")

    def make(self, tag: str, folder: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Make the image of an environment and return its record. `folder`: for its files."""
        base, has_packages = spec["image"], bool(spec["conda"] or spec["pip"])
        if spec["context"]:
            base = f"{tag}-base" if has_packages else tag
            self._build(base, folder, spec)
        else:
            self.ensure(base)
        if has_packages:
            self._add_packages(base, tag, folder, spec)
        description = self._engine.image(tag)
        if description is None:
            raise Unprepared(f"environment: image {tag} was built and then not found")
        return {"image": tag, "engine": self._engine.path, "size": description.get("Size", 0)}

    def _build(self, tag: str, folder: str, spec: dict[str, Any]) -> None:
        context = os.path.join(folder, "context")
        self._fetch(spec["context"], context)
        file = os.path.join(context, spec["dockerfile"])
        mark = BuildMark(self._engine, tag, file)
        scratch = os.path.join(folder, "scratch")
        os.mkdir(scratch)
        # a killed Podman leaves its temporary files; those here are removed with the folder
        command = ["env", f"TMPDIR={scratch}", self._engine.path, "build"]
        command += [*_BUILD_OPTIONS, *mark.options]
        mark.remove_containers()  # those of a killed build
        try:
            code, output = self._run([*command, "--tag", tag, "--file", file, context])
        finally:
            mark.remove_containers()
            shutil.rmtree(scratch, ignore_errors=True)
        if code != 0:
            cause = engine_sentence(output)
            raise Unprepared(f"environment: {spec['dockerfile']} cannot be built: {cause}")

    def _fetch(self, digest: str, context: str) -> None:
        cache = os.path.join(self._node["cache"], "blobs")
        blobs = Blobs(cache, self._node.get("blobs", []), self._folder)
        while True:
            os.mkdir(context)
            try:
                lay_out(digest, context, blobs)
                return
            except Refused as error:
                reason = f"the build context could not be downloaded: {error}"
                raise Unprepared(f"environment: {reason}") from error
            except Unreachable:
                shutil.rmtree(context)
                if self._stop_signal.pause(0.5):
                    raise Stopped from None

    def _add_packages(self, base: str, tag: str, folder: str, spec: dict[str, Any]) -> None:
        """Install packages in a container of the image, and commit that as an image.

        So they are installed for the image's own interpreter, next to its packages. Those that it
        has already are not installed again.
        """
        steps = os.path.join(folder, "packages")
        _write_steps(steps, spec)
        name = f"retarget-build-{spec['digest']}"
        key = os.environ.get("RETARGET_LAUNCH", "")
        command = [self._engine.path, "run", "--name", name, "--label", f"retarget.launch={key}"]
        command += ["--network", "host", "--user", "0:0", "--security-opt", "label=disable"]
        command += mount(steps, _MOUNT_POINT)
        if self._node.get("uv"):
            command += mount(os.path.realpath(self._node["uv"]), "/retarget-uv")
        for wheels in _local_folders(spec["pip"]):
            command += mount(wheels)
        command += ["--entrypoint", "sh", base, f"{_MOUNT_POINT}/install.sh"]
        self._engine.ask("rm", "-f", name)  # that of a killed build
        try:
            code, output = self._run(command)
            if code != 0:
                raise Unprepared(f"environment: {engine_sentence(output)}")
            code, output = self._run([self._engine.path, "commit", name, tag])
            if code != 0:
                cause = engine_sentence(output)
                raise Unprepared(f"environment: the image cannot be committed: {cause}")
        finally:
            self._engine.ask("rm", "-f", name)


class BuildMark:
    """Marks the containers in which Podman builds an image, to distinguish them from others.

    They remain when Podman is killed, and can have neither a name nor a label. But each records
    the options of its build, and a secret that no step uses changes nothing in the build.
    """

    def __init__(self, engine: Engine, name: str, file: str) -> None:
        self._engine = engine
        self._secret = f"id={name},src={file}"
        self.options = ["--secret", self._secret] if engine.kind == "podman" else []

    def remove_containers(self) -> None:
        if not self.options:
            return
        template = "{{.Store.GraphRoot}}/{{.Store.GraphDriverName}}-containers"
        store = self._engine.ask("info", "--format", template).stdout.strip()
        listing = self._engine.ask("ps", "-a", "--external", "--no-trunc", "--format", "{{.ID}}")
        for container in listing.stdout.split():
            if self._is_marked(os.path.join(store, container, "userdata", "buildah.json")):
                self._engine.ask("rm", "-f", container)

    def _is_marked(self, path: str) -> bool:
        try:
            with open(path, encoding="utf-8") as file:
                options = json.load(file)["CommonBuildOpts"]
        except (OSError, ValueError, KeyError):
            return False  # not a container of a build, or just removed
        return self._secret in (options.get("Secrets") or [])


def _write_steps(steps: str, spec: dict[str, Any]) -> None:
    """Write the files that are mounted into the container: requirements, script, certificates."""
    os.makedirs(steps, exist_ok=True)
    lines = [*spec["pypi"], *spec["pip"]]
    _write(os.path.join(steps, "all.txt"), "\n".join(lines) + "\n")
    _write(os.path.join(steps, "pip.txt"), "".join(f"{line}\n" for line in spec["pip"]))
    bundle = certificate_bundle(os.environ)
    if bundle is not None:  # the image may have none, or lack those of a proxy
        shutil.copyfile(bundle, os.path.join(steps, _CERTIFICATES))
    variables = {**os.environ, **uv_variables(os.environ)}
    _write(os.path.join(steps, "install.sh"), script(spec, variables, bundle is not None))


def script(spec: dict[str, Any], environ: Mapping[str, str], has_certificates: bool = False) -> str:
    """Return the shell script that installs the packages in an image, with the image's tools."""
    exports = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(environ.items())
        # paths of this host mean nothing in the image
        if name.startswith(("UV_", "PIP_", "HTTP", "http", "NO_PROXY", "no_proxy"))
        and not value.startswith(("/", "file:"))
    ]
    if has_certificates:
        path = f"{_MOUNT_POINT}/{_CERTIFICATES}"
        exports += [f"export {name}={path}" for name in ("SSL_CERT_FILE", "PIP_CERT")]
    checks = _check_python(spec["python"])
    return "\n".join(["set -e", *exports, _FIND_PYTHON, *checks, *_install_steps(spec)])


_FIND_PYTHON = """\
python=$(command -v python3 || command -v python) ||
    { echo 'error: the image has no Python'; exit 1; }
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


def _check_python(version: str | None) -> list[str]:
    """Return a step that checks the Python of the image, if a version is required."""
    if not version or not version[0].isdigit():
        return []
    message = f"error: Python {version} is required, but the image has $has"
    return [f'case "$has." in {version}.*) ;; *) echo "{message}"; exit 1 ;; esac']


def _install_steps(spec: dict[str, Any]) -> list[str]:
    install_all = f"install {_MOUNT_POINT}/all.txt"
    if not spec["conda"]:
        return [install_all, ""]
    if spec["conda_from_pypi"]:
        missing = ", ".join(spec["dropped"]) or "nothing"
        return [
            f"echo {shlex.quote(f'installing conda packages from PyPI, without {missing}')}",
            install_all,
            "",
        ]
    channels = " ".join(f"-c {shlex.quote(name)}" for name in spec["channels"])
    requirements = " ".join(shlex.quote(requirement) for requirement in spec["conda"])
    substitute = [install_all]
    if spec["pypi_refusal"]:
        refusal = f"error: the image has no conda, and {spec['pypi_refusal']}"
        substitute = [f"echo {shlex.quote(refusal)}", "exit 1"]
    return [
        "tool=$(command -v mamba || command -v conda || command -v micromamba || true)",
        'if [ -n "$tool" ]; then',
        f'    "$tool" install -y -n base {channels} {requirements}',
        f"    [ ! -s {_MOUNT_POINT}/pip.txt ] || install {_MOUNT_POINT}/pip.txt",
        "else",
        "    echo 'the image has no conda; installing from PyPI instead'",
        *(f"    {step}" for step in substitute),
        "fi",
        "",
    ]


def _local_folders(lines: list[str]) -> list[str]:
    options = [line.split(None, 1) for line in lines if line.startswith("--find-links /")]
    return [folder for _, folder in options if os.path.isdir(folder)]


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
