"""What a launch needs before its script can start: the code, and the environment or the image."""

from __future__ import annotations

import os
import sys

from retarget.runner.errors import Ended, Refused, Stopped, Unprepared, Unreachable

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, Callable

    from retarget.runner.containers import Containers
    from retarget.runner.folder import Folder, Journal
    from retarget.runner.orders import Orders


class Preparation:
    """`report` has what was written down reported from then on: what follows takes a while."""

    def __init__(
        self,
        folder: Folder,
        content: dict[str, Any],
        journal: Journal,
        orders: Orders,
        report: Callable[[], None],
    ) -> None:
        self.python = ""
        self.containers: Containers | None = None  # where the script is to run in some
        self._folder = folder
        self._launch: dict[str, Any] = content["launch"]
        self._node: dict[str, Any] = content["node"]
        self._journal = journal
        self._orders = orders
        self._report = report
        self._environments: Any = None

    def prepare(self) -> None:
        """Lay out the code and have the environment; Stopped when it is not wanted any more."""
        self._journal.add("preparing", pid=os.getpid(), node=os.uname().nodename)
        if self._orders.stopped:
            raise Stopped
        self._lay_out()
        self.python = self._interpreter()
        self._orders.look()
        if self._orders.stopped:
            raise Stopped

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
                raise Unprepared(f"the code cannot be had: {error}") from error
            except Unreachable:
                import shutil

                self._report()
                shutil.rmtree(self._folder.work)
                os.mkdir(self._folder.work)
                if self._orders.pause(0.5):
                    raise Stopped from None
        if os.path.lexists(os.path.join(self._folder.work, "outputs")) or os.path.lexists(
            os.path.join(self._folder.work, "logs")
        ):
            from retarget.runner.outputs import Collector

            Collector(self._folder).note_given()

    def _interpreter(self) -> str:
        """Return the interpreter of the environment, which is built when it is not there."""
        wanted = self._launch["environment"]
        if wanted["kind"] == "user":
            return self._users_own(wanted)
        from retarget.runner.environments import Environments

        environments = self._environments = Environments(self._node, self._folder, self._orders)
        if wanted["kind"] == "image":
            return self._image(wanted, environments)
        ready = environments.find(wanted["digest"])
        reused = ready is not None
        if ready is None:
            self._report()
            ready = environments.build(wanted["digest"], wanted)
        self._journal.add("environment", digest=wanted["digest"], how=ready["how"], reused=reused)
        return str(ready["python"])

    def _image(self, wanted: dict[str, Any], environments: Any) -> str:
        """Have the image here; the interpreter is the one in it."""
        from retarget.runner.containers import Containers

        engine = environments.images().engine
        self.containers = Containers(engine, self._folder, self._launch, self._node["cache"])
        image, reused = wanted["image"], True
        if wanted["context"] or wanted["conda"] or wanted["pip"]:
            image = environments.find_image(wanted["digest"])
            if image is None:
                self._report()
                reused, image = False, environments.build(wanted["digest"], wanted)["image"]
        else:
            reused = environments.images().has(image)
            if not reused:
                self._report()
                environments.images().ensure(image)
        self.containers.use(image)
        self._journal.add("environment", digest=wanted["digest"], how="image", reused=reused)
        return "python"

    def discard_build(self) -> None:
        """Remove what an earlier runner, killed while it built the environment, left of it."""
        wanted = self._launch["environment"]
        if wanted["kind"] != "user":
            from retarget.runner.environments import Environments

            Environments(self._node, self._folder, self._orders).discard(wanted["digest"])

    def make_room(self) -> None:
        """Remove what was laid out in vain: on a full disk nothing could be written down."""
        import shutil

        shutil.rmtree(self._folder.work, ignore_errors=True)

    def _users_own(self, wanted: dict[str, Any]) -> str:
        python = wanted["python"]
        if python:
            if not os.access(python, os.X_OK):
                where = self._node.get("where", "on this machine")
                raise Ended("failed", f"there is no interpreter {python} {where}", 127)
            return str(python)
        prefer = wanted["prefer"]
        if prefer and os.access(prefer, os.X_OK):
            return str(prefer)
        return str(self._node.get("python") or sys.executable)

    def release(self) -> None:
        """Let others remove the environment."""
        if self._environments is not None:
            self._environments.release()

    def left_containers(self) -> Containers | None:
        """Return what an earlier runner may have started, where this is about containers."""
        if self._launch["environment"]["kind"] != "image":
            return None
        from retarget.runner.containers import Containers
        from retarget.runner.engine import find_engine

        engine = find_engine(self._node.get("engine"))
        if engine is None:
            return None  # it did not come so far
        return Containers(engine, self._folder, self._launch, self._node["cache"])

    def discard_part(self) -> None:
        """Remove what a killed runner had on its way, if none after it had to fetch that."""
        from retarget.runner.snapshot import part_of

        try:
            os.unlink(part_of(os.path.join(self._node["cache"], "blobs"), self._folder))
        except OSError:
            pass  # there is none, as usual
