"""The layout of a Python interpreter, read from its files: nothing is run for it."""

from __future__ import annotations

import os
import re

_BINARIES = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # Linux; macOS, single and fat
_LIBRARY = re.compile(r"python3\.\d+t?")
_SYSTEM_COMMANDS = "/usr/bin"  # its Python commands belong to the operating system


class Interpreter:
    """An interpreter over which a virtual environment can be laid."""

    def __init__(self, path: str, home: str, library: str) -> None:
        self.path = path
        self.home = home  # the folder of the Python that has the standard library
        self.library = library  # the name of the folder of packages in `lib`: python3.12
        self.prefix = os.path.dirname(home)
        self.packages: str | None = None  # of a virtual environment
        self.has_system_packages = True  # whether the packages next to the standard library count
        self.has_pip = False

    @property
    def version(self) -> str:
        """The version as in the names of its commands: 3.12."""
        return self.library[len("python") :].rstrip("t")

    @property
    def commands(self) -> str | None:
        """The folder of its console scripts; None if that is the folder of the system."""
        folder = self.home if self.packages is None else os.path.join(self.prefix, "bin")
        return None if folder == _SYSTEM_COMMANDS else folder


def inspect(path: str) -> Interpreter | None:
    """Return the layout; None if it is unusual, such as that of a script that starts Python."""
    try:
        with open(path, "rb") as file:
            if not file.read(4).startswith(_BINARIES):
                return None
        prefix = os.path.dirname(os.path.dirname(path))
        settings = _settings(os.path.join(prefix, "pyvenv.cfg"))
        interpreter = _installed(path) if settings is None else _virtual(path, prefix, settings)
    except (OSError, ValueError):
        return None
    if interpreter is not None and not (interpreter.home + interpreter.path).isprintable():
        return None  # it could not be written to a file of settings
    return interpreter


def _settings(path: str) -> dict[str, str] | None:
    try:
        with open(path, encoding="utf-8") as file:
            pairs = [line.partition("=") for line in file]
    except FileNotFoundError:
        return None
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _virtual(path: str, prefix: str, settings: dict[str, str]) -> Interpreter | None:
    version = settings.get("version_info") or settings.get("version") or ""
    library = "python" + ".".join(version.split(".")[:2])
    for name in (library, f"{library}t") if version else _libraries(prefix):
        packages = os.path.join(prefix, "lib", name, "site-packages")
        if settings.get("home") and os.path.isdir(packages):
            interpreter = Interpreter(path, settings["home"], name)
            interpreter.prefix, interpreter.packages = prefix, packages
            system = settings.get("include-system-site-packages", "").lower() == "true"
            interpreter.has_system_packages = system
            base = os.path.dirname(settings["home"])
            interpreter.has_pip = _has_pip([packages, *(_folders(base, name) if system else ())])
            return interpreter
    return None


def _installed(path: str) -> Interpreter | None:
    real = os.path.realpath(path)
    home = os.path.dirname(real)
    prefix = os.path.dirname(home)
    library = _library(prefix, os.path.basename(real))
    if library is None:
        return None
    interpreter = Interpreter(path, home, library)
    interpreter.has_pip = _has_pip(_folders(prefix, library))
    return interpreter


def _library(prefix: str, program: str) -> str | None:
    """Return the folder of the standard library, by the name of the program or the only one."""
    names = [program]
    if not _LIBRARY.fullmatch(program):
        names = _libraries(prefix)
    for name in names if len(names) == 1 else ():
        for lib in ("lib", "lib64"):
            if os.path.exists(os.path.join(prefix, lib, name, "os.py")):
                return name
    return None


def _libraries(prefix: str) -> list[str]:
    return [name for name in os.listdir(os.path.join(prefix, "lib")) if _LIBRARY.fullmatch(name)]


def _folders(prefix: str, library: str) -> list[str]:
    """Return the folders of an installed Python that may have packages, Debian's too."""
    folders = [f"lib/{library}/site-packages", "lib/python3/dist-packages"]
    return [os.path.join(prefix, name) for name in (*folders, f"local/lib/{library}/dist-packages")]


def _has_pip(folders: list[str]) -> bool:
    return any(os.path.exists(os.path.join(folder, "pip", "__init__.py")) for folder in folders)
