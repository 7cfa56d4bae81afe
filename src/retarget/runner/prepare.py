"""Prepares a launch: the code, and the environment or the image."""

from __future__ import annotations

import os
import sys

from retarget.runner.errors import Ended, Refused, Stopped, Unprepared, Unreachable
from retarget.runner.secrets import Secrets

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, Callable

    from retarget.runner.containers import Containers
    from retarget.runner.folder import Folder, Journal
    from retarget.runner.layer import Layer
    from retarget.runner.stop import StopSignal


class Preparation:
    """Calls `report`, which starts to report the journal, before a step that takes a while."""

    def __init__(
        self,
        folder: Folder,
        content: dict[str, Any],
        journal: Journal,
        stop_signal: StopSignal,
        report: Callable[[], None],
    ) -> None:
        self.python = ""
        self.containers: Containers | None = None  # if the script is to run in containers
        self.layer: Layer | None = None  # over the interpreter, unless that may be changed
        self.import_roots: list[str] = []  # of packages that are added, without a layer
        self._folder = folder
        self._launch: dict[str, Any] = content["launch"]
        self._node: dict[str, Any] = content["node"]
        self._journal = journal
        self._stop_signal = stop_signal
        self._report = report
        self._environments: Any = None
        self.secrets = Secrets(folder, self._launch)

    def prepare(self) -> None:
        """Lay out the code and prepare the environment. Stopped: the stop signal came."""
        self._journal.add("preparing", pid=os.getpid(), node=os.uname().nodename)
        if self._stop_signal.stopped:
            raise Stopped
        if self.secrets.names:
            self._fetch_secrets()
        self._lay_out()
        self.python = self._interpreter()
        if self.containers is None and not self._launch.get("allow_pip"):
            self._add_layer()
        if self._launch.get("required_packages") and self.containers is None:
            self._add_required(self._launch["required_packages"])
        if self._launch.get("own_packages"):
            self._add_packages(self._launch["own_packages"])
        self._stop_signal.check()
        if self._stop_signal.stopped:
            raise Stopped

    def _fetch_secrets(self) -> None:
        """Get the values before anything is logged that they would have to be masked in."""
        from retarget.runner.server import Server

        server = Server(self._folder)
        while True:
            try:
                self.secrets.fetch(server)
                server.keep()
                return
            except Refused as error:
                raise Unprepared(str(error)) from error
            except Unreachable:
                self._report()
                if self._stop_signal.pause(0.5):
                    raise Stopped from None

    def _lay_out(self) -> None:
        work = self._folder.work
        if os.path.lexists(work):  # an earlier runner was killed here
            import shutil

            shutil.rmtree(work)
        os.mkdir(work)
        try:
            if self._launch["snapshot"]:
                self._fetch(self._launch["snapshot"])
            for name in ("outputs", "logs"):
                os.makedirs(os.path.join(work, name), exist_ok=True)
        except FileExistsError as error:
            name = os.path.basename(str(error.filename))
            raise Unprepared(f"the code has a file where the folder {name!r} must be") from None

    def _fetch(self, digest: str) -> None:
        from retarget.runner.snapshot import Blobs, lay_out

        cache = os.path.join(self._node["cache"], "blobs")
        blobs = Blobs(cache, self._node.get("blobs", []), self._folder)
        while True:
            try:
                lay_out(digest, self._folder.work, blobs)
                break
            except Refused as error:
                raise Unprepared(f"the code could not be downloaded: {error}") from error
            except Unreachable:
                import shutil

                self._report()
                shutil.rmtree(self._folder.work)
                os.mkdir(self._folder.work)
                if self._stop_signal.pause(0.5):
                    raise Stopped from None
        if os.path.lexists(os.path.join(self._folder.work, "outputs")) or os.path.lexists(
            os.path.join(self._folder.work, "logs")
        ):
            from retarget.runner.outputs import Collector

            Collector(self._folder).record_initial_files()

    def _interpreter(self) -> str:
        """Return the interpreter of the environment, which is built if it is missing."""
        spec = self._launch["environment"]
        if spec["kind"] == "user":
            return self._user_interpreter(spec)
        from retarget.runner.environments import Environments
        from retarget.runner.locks import reported_lock

        environments = Environments(self._node, self._folder, self._stop_signal)
        self._environments = environments
        environments.variables = self._referenced(spec["pip"])
        if spec["kind"] == "image":
            return self._image(spec, environments)
        ready = environments.find(spec)
        reused = ready is not None
        if ready is None:
            self._report()
            ready = self._build(environments, spec)
        locked = {"lock": reported_lock(ready["lock"], spec["locks"])}
        how = ready["how"]
        self._journal.add("environment", digest=spec["digest"], how=how, reused=reused, **locked)
        return str(ready["python"])

    def _build(self, environments: Any, spec: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(environments.build(spec))
        except Unprepared as error:
            environments.record_failure(spec, self.secrets.mask(str(error)))
            raise

    def _referenced(self, lines: list[str]) -> dict[str, str]:
        """Return the variables and secrets that requirements refer to."""
        from retarget.runner.locks import referenced

        return referenced(lines, {**self._launch["variables"], **self.secrets.values})

    def _add_layer(self) -> None:
        from retarget.runner.layer import make_layer

        self.layer = make_layer(self._folder, self.python, self._node)
        if self.layer is None and os.path.exists(self.python):
            self._folder.log(
                f"retarget: {self.python} has an unusual layout, so this job cannot install "
                "packages; --allow-pip would let it change that Python"
            )

    def _add_required(self, names: list[str]) -> None:
        """Make packages importable that the environment may not have. An image must have them."""
        from retarget.runner.locks import referenced
        from retarget.runner.required_packages import RequiredPackages, add_folder

        spec = self._launch["environment"]
        required = RequiredPackages(self._node, self._folder, self._stop_signal, spec)
        values = {**self._launch["variables"], **self.secrets.values}
        required.variables = referenced(spec["pip"], values)
        layered = self.python if self.layer is None else self.layer.python
        packages = required.ensure(names, self.python, layered, self._report)
        if packages is None:
            return
        if self.layer is None:
            self.import_roots.append(packages)
        else:
            add_folder(self.layer, packages)

    def _add_packages(self, packages: list[dict[str, Any]]) -> None:
        """Make the user's own packages importable; the log names those that nothing requires."""
        from retarget.runner.own_packages import add_packages, describe, roots_of

        describe(self._folder, packages)
        if self.layer is None:
            self.import_roots[:0] = roots_of(packages, self._folder.work)
            return
        built: str | None = None
        if any(package["build"] for package in packages):
            from retarget.runner.package_builds import PackageBuilds

            builds = PackageBuilds(self._node, self._folder, self._stop_signal)
            builds.variables = self._referenced(self._launch["environment"]["pip"])
            built = builds.ensure(self._launch, self.python, self._report)
        add_packages(self.layer, packages, self._folder.work, built)

    def _image(self, spec: dict[str, Any], environments: Any) -> str:
        """Pull or build the image, and return the interpreter in it."""
        from retarget.runner.containers import Containers

        engine = environments.images().engine
        self.containers = Containers(engine, self._folder, self._launch, self._node["cache"])
        image, reused = spec["image"], True
        if spec["context"] or spec["conda"] or spec["pip"]:
            image = environments.find_image(spec)
            if image is None:
                self._report()
                reused, image = False, self._build(environments, spec)["image"]
        else:
            reused = environments.images().has(image)
            if not reused:
                self._report()
                environments.images().ensure(image)
        self.containers.use(image)
        self._journal.add("environment", digest=spec["digest"], how="image", reused=reused)
        return "python"

    def discard_build(self) -> None:
        """Remove the unfinished environment of an earlier runner that was killed."""
        spec = self._launch["environment"]
        if spec["kind"] != "user":
            from retarget.runner.environments import Environments

            environments = Environments(self._node, self._folder, self._stop_signal)
            environments.discard(spec["digest"])

    def make_room(self) -> None:
        """Remove the code: on a full disk the journal could not be written otherwise."""
        import shutil

        shutil.rmtree(self._folder.work, ignore_errors=True)

    def _user_interpreter(self, spec: dict[str, Any]) -> str:
        python = spec["python"]
        if python:
            if not os.access(python, os.X_OK):
                location = self._node.get("where", "on this machine")
                raise Ended("failed", f"interpreter {python} not found {location}", 127)
            return str(python)
        preferred = spec["prefer"]
        if preferred and os.access(preferred, os.X_OK):
            return str(preferred)
        return str(self._node.get("python") or sys.executable)

    def give_back_layer(self) -> None:
        """Let another job use the layer, if this job has not changed it."""
        if self.layer is not None:
            self.layer.give_back()

    def release(self) -> None:
        """Let others remove the environment."""
        if self._environments is not None:
            self._environments.release()

    def leftover_containers(self) -> Containers | None:
        """Return the containers that an earlier runner may have started; None without an image."""
        if self._launch["environment"]["kind"] != "image":
            return None
        from retarget.runner.containers import Containers
        from retarget.runner.engine import find_engine

        engine = find_engine(self._node.get("engine"))
        if engine is None:
            return None  # so it started none
        return Containers(engine, self._folder, self._launch, self._node["cache"])

    def discard_part(self) -> None:
        """Remove the partial download of a killed runner, if no later runner continued it."""
        from retarget.runner.snapshot import part_of

        try:
            os.unlink(part_of(os.path.join(self._node["cache"], "blobs"), self._folder))
        except OSError:
            pass  # usually there is none
