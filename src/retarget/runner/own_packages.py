"""The user's own packages: adds those of the code to the layer of a job.

Most consist of Python files alone. Their folder is put on the path, with the metadata and the
console scripts that an installer would write. The others are built, once per snapshot.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any

    from retarget.runner.folder import Folder
    from retarget.runner.layer import Layer

_PATHS_FILE = "__retarget.pth"  # sorted before the file that adds what is under the layer
_SCRIPT = """#!/bin/sh
'''exec' "$RETARGET_PYTHON" "$0" "$@"
' '''
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({function}())
"""


def add_packages(
    layer: Layer, packages: list[dict[str, Any]], work: str, built: str | None
) -> None:
    """Make packages importable in a layer: those of the code, and the folder of built ones."""
    lines: list[str] = []
    for package in packages:
        for root in package["roots"]:
            path = ascii(os.path.normpath(os.path.join(work, root)))
            lines.append(f"import sys; {path} in sys.path or sys.path.append({path})\n")
        if not package["build"]:
            _write_metadata(layer, package, work)
            _write_scripts(layer, package["entry_points"].get("console_scripts", {}))
    if built is not None:
        layer.package_folders.insert(0, built)
        path = ascii(built)
        lines.append(f"import site, sys; {path} in sys.path or site.addsitedir({path})\n")
    layer.add_file(os.path.join(layer.packages, _PATHS_FILE), "".join(lines))


def roots_of(packages: list[dict[str, Any]], work: str) -> list[str]:
    """Return the folders to put on the path where there is no layer."""
    roots = [root for package in packages for root in package["roots"]]
    return [os.path.normpath(os.path.join(work, root)) for root in roots]


def describe(folder: Folder, packages: list[dict[str, Any]]) -> None:
    """Log which folders were added without a request."""
    for package in packages:
        if package["implicit"]:
            roots = ", ".join(f"{root}/" for root in package["roots"])
            folder.log(
                f"retarget: {roots} is on the Python path, because this project has a src layout"
            )


def _write_metadata(layer: Layer, package: dict[str, Any], work: str) -> None:
    """Write what `importlib.metadata`, pip and uv read about an editable installation."""
    import json
    from urllib.parse import quote

    name, version = package["name"], package["version"]
    info = os.path.join(layer.packages, f"{name.replace('-', '_')}-{version}.dist-info")
    requires = "".join(f"Requires-Dist: {line}\n" for line in package["requires"])
    url = "file://" + quote(os.path.normpath(os.path.join(work, package["path"])))
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        "INSTALLER": "retarget\n",
        "direct_url.json": json.dumps({"url": url, "dir_info": {"editable": True}}),
        "entry_points.txt": _entry_points(package["entry_points"]),
    }
    record = "".join(f"{os.path.basename(info)}/{file},,\n" for file in (*files, "RECORD"))
    os.mkdir(info)
    for file, text in dict(files, RECORD=record).items():
        layer.add_file(os.path.join(info, file), text)
    layer.added.append(info)


def _entry_points(groups: dict[str, dict[str, str]]) -> str:
    sections: list[str] = []
    for group, points in groups.items():
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        sections.append(f"[{group}]\n{lines}")
    return "\n".join(sections)


def _write_scripts(layer: Layer, scripts: dict[str, str]) -> None:
    for name, value in scripts.items():
        module, _, function = value.partition("[")[0].partition(":")
        function = function.strip() or "main"
        first = function.partition(".")[0]
        text = _SCRIPT.format(module=module.strip(), first=first, function=function)
        layer.add_file(os.path.join(layer.commands, name), text)
