"""The layer of a job: a virtual environment over its interpreter, for what the job installs.

`pip` and `uv` change the layer and never the interpreter or environment below it. It is a few
small files in the launch folder; if the job does not change them, the next job uses them again.
"""

from __future__ import annotations

import os

from retarget.runner.interpreters import inspect
from retarget.runner.layer_pool import LayerPool, root_of, write_file
from retarget.runner.shims import shims
from retarget.runner.uv_settings import certificate_variables

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.folder import Folder
    from retarget.runner.interpreters import Interpreter

# variables of the host that would make pip or uv install somewhere else
_REDIRECTIONS = (
    "PIP_PREFIX", "PIP_PYTHON", "PIP_ROOT", "PIP_TARGET", "PIP_USER", "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
)  # fmt: skip
_FALLBACK = "fallback"  # commands for a job that uninstalls pip: that of the host must not follow
_PIP_COMMAND = '#!/bin/sh\nexec "$RETARGET_PYTHON" -m pip "$@"\n'
# a module of this name is used only as long as there is no package of this name
_PIP_MODULE = '''"""Installs pip into the layer of this job when it is first used."""

import os
import subprocess
import sys

_COMMAND = [sys.executable, {runner!a}, "pip", {uv!a}]


def main(args=None):
    return subprocess.call(_COMMAND + list(sys.argv[1:] if args is None else args))


if __name__ == "__main__":
    os.execv(sys.executable, _COMMAND + sys.argv[1:])
'''


class Layer:
    """A layer that has been written; `python` is its interpreter."""

    def __init__(self, path: str, interpreter: Interpreter, node: dict[str, Any]) -> None:
        self.path = path
        self.interpreter = interpreter
        self._cache: str = node["cache"]
        self.commands = os.path.join(path, "bin")
        self.python = os.path.join(self.commands, "python")
        library = os.path.join("lib", interpreter.library, "site-packages")
        self.packages = os.path.join(path, library)
        files, links = _files(interpreter, library, node), _links(interpreter)
        self.added: list[str] = []  # files and folders for this job alone
        self.package_folders: list[str] = []  # of packages that were installed for this job
        self.pool = LayerPool(path, root_of(interpreter.prefix, self._cache), files, links)

    def add_to(self, variables: dict[str, str]) -> None:
        """Make the layer what commands in shells use, and what pip and uv change."""
        for name in _REDIRECTIONS:
            variables.pop(name, None)
        base = self.interpreter
        folders = [self.commands, os.path.join(self.path, _FALLBACK)]
        folders += self._shims_of_packages()
        if base.commands is not None:
            folders.append(shims(base.commands, root_of(base.prefix, self._cache), base.commands))
        folders += [os.path.dirname(base.path), variables.get("PATH", os.defpath)]
        variables["PATH"] = os.pathsep.join(folders)
        variables["VIRTUAL_ENV"] = self.path
        for name, value in certificate_variables(variables).items():
            variables.setdefault(name, value)
        variables["RETARGET_PYTHON"] = self.python
        if base.has_system_packages:
            variables["PYTHONUSERBASE"] = self.path  # `pip install --user` stays in the layer
        kernels = os.path.join(base.prefix, "share", "jupyter")
        if os.path.isdir(kernels):  # Jupyter looks for its files in `sys.prefix` only
            variables.setdefault("JUPYTER_PATH", kernels)

    def _shims_of_packages(self) -> list[str]:
        pythons = os.path.dirname(self.interpreter.path)
        return [
            shims(os.path.join(folder, "bin"), os.path.dirname(folder), pythons)
            for folder in self.package_folders
            if os.path.isdir(os.path.join(folder, "bin"))
        ]

    def add_file(self, path: str, text: str) -> None:
        """Write a file for this job alone."""
        write_file(path, text)
        self.added.append(path)

    def give_back(self) -> None:
        """Let another job use the layer, if this job has not changed it."""
        for path in self.added:
            try:
                os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
            except OSError:
                return  # the job has changed it
        self.pool.give_back()


def make_layer(folder: Folder, python: str, node: dict[str, Any]) -> Layer | None:
    """Write a layer over an interpreter; None if that has no layout that allows one."""
    interpreter = inspect(python)
    if interpreter is None:
        return None
    layer = Layer(folder.file("layer"), interpreter, node)
    if os.path.lexists(layer.path):  # an earlier runner was killed here
        import shutil

        shutil.rmtree(layer.path)
    if not layer.pool.take():
        layer.pool.write()
    return layer


def _links(interpreter: Interpreter) -> dict[str, str]:
    links = {f"bin/{name}": "python" for name in ("python3", interpreter.library)}
    pip = {
        f"{folder}/pip{version}": "pip"
        for folder in ("bin", _FALLBACK)
        for version in (3, interpreter.version)
    }
    # some distributions install compiled packages in lib64
    return {"bin/python": interpreter.path, **links, **pip, "lib64": "lib"}


def _files(interpreter: Interpreter, library: str, node: dict[str, Any]) -> dict[str, str]:
    """Return the files of a layer. No text depends on the job."""
    system = str(interpreter.has_system_packages).lower()
    settings = f"home = {interpreter.home}\ninclude-system-site-packages = {system}\n"
    version = interpreter.version
    files = {
        "pyvenv.cfg": f"{settings}version = {version}\nretarget-layer-over = {interpreter.path}\n",
        f"{library}/_retarget.pth": _paths(interpreter),
        "bin/pip": _PIP_COMMAND,
        f"{_FALLBACK}/pip": _PIP_COMMAND,
    }
    if not interpreter.has_pip:
        uv = node.get("uv") or ""
        files[f"{library}/pip.py"] = _PIP_MODULE.format(runner=node["runner"], uv=uv)
    return files


def _paths(interpreter: Interpreter) -> str:
    """Return the lines that add the packages under the layer, with their own `.pth` files.

    Python may read them twice, hence the conditions.
    """
    lines: list[str] = []
    if interpreter.packages is not None:
        path = ascii(interpreter.packages)
        lines.append(f"import site, sys; {path} in sys.path or site.addsitedir({path})")
    if interpreter.has_system_packages:
        base = os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local")
        packages = os.path.join(base, "lib", interpreter.library, "site-packages")
        if os.path.isdir(packages):
            path = ascii(packages)
            condition = f"{path} in sys.path or not site.check_enableusersite()"
            lines.append(f"import site, sys; {condition} or site.addsitedir({path})")
    return "".join(f"{line}\n" for line in lines)
