"""What to do about a module that a job could not import. Pure functions of names and paths."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from posixpath import dirname, relpath

from retarget.core.exclusions import DEFAULT, explain_exclusion, find_module, notebook_folder
from retarget.core.jobs import JobSpec
from retarget.core.missing_files import code_folder

# modules whose package on PyPI has another name
_PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "jwt": "PyJWT",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "psycopg2": "psycopg2-binary",
    "pytorch_lightning": "pytorch-lightning",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
_DEFINITIONS = (
    *("requirements.txt", "environment.yml", "environment.yaml", "conda.yml", "conda.yaml"),
    *("pyproject.toml", "requirements-dev.txt", "requirements/base.txt"),
)


def explain_module(module: str, reason: str, spec: JobSpec, files: Sequence[str]) -> str:
    """Return what to do about a missing module.

    A package of an index is proposed only if the code of the job, and the repository around it,
    have nothing of this name: it would be the package of a stranger.
    """
    names = module.split(".")
    return (
        _in_snapshot(names, reason, spec, files)
        or _in_excluded(module, spec)
        or _in_repository(names, reason, spec)
        or _not_installed(module, spec, files)
    )


def run_as_module(spec: JobSpec, files: Sequence[str]) -> str | None:
    """Return the command that runs the script of a job as a module, if it can be one."""
    script = _script_of(spec)
    if script is None or not script.endswith(".py"):
        return None
    names = script.removesuffix(".py").split("/")
    is_src = names[0] == "src" and "src/__init__.py" not in files
    names = names[1:] if is_src else names
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        return None
    is_on_path = any("src" in package.roots for package in spec.own_packages)
    root = "--env PYTHONPATH=src " if is_src and not is_on_path else ""
    return f"retarget run {root}-- python -m {'.'.join(names)}"


def _in_snapshot(
    names: Sequence[str], reason: str, spec: JobSpec, files: Sequence[str]
) -> str | None:
    base = _base_of(names[0], files)
    if base is None:
        return None
    path = f"{base}{names[0]}"
    modules = {file for file in files if file.startswith(f"{path}/")}
    if f"{path}.py" not in files and not any(map(_is_module, modules)):
        return (
            f"{path}/ was sent, but it has no Python files; if you mean a package with the name "
            f"{names[0]!r}, add it to the environment of the job"
        )
    for name in names[1:]:
        known = _modules_in(path, modules)
        if name not in known:
            matches = get_close_matches(name, known, n=1)
            guess = f"; did you mean {matches[0]!r}?" if matches else ""
            return f"there is no module {name!r} in {path}/ of your code{guess}"
        path = f"{path}/{name}"
    return _not_on_path(names[0], base, reason, spec, files)


def _not_on_path(name: str, base: str, reason: str, spec: JobSpec, files: Sequence[str]) -> str:
    own = f"{base}{name}.py" if f"{base}{name}.py" in files else f"{base}{name}/"
    root = relpath(base or ".", notebook_folder(reason) or ".")
    command = None if base else run_as_module(spec, files)
    other = f", or run the script as a module: {command}" if command else ""
    where = base or "the code folder"
    return (
        f"{own} was sent, but {where} is not on the Python path of the script; "
        f"add --env PYTHONPATH={root}{other}"
    )


def _script_of(spec: JobSpec) -> str | None:
    """Return the path of the script in the snapshot; None for other commands."""
    is_script = spec.arguments_index == 2 and spec.command[0] == "python"
    return spec.command[1].removeprefix("./") if is_script else None


def _in_excluded(module: str, spec: JobSpec) -> str | None:
    excluded = find_module(module, spec.excluded)
    if excluded is None or excluded.rule == DEFAULT:  # `wandb/` is not the code of a package
        return None
    name = module.partition(".")[0]
    return (
        f"{explain_exclusion(excluded)}; if the module {name!r} is your own code there, send it "
        f"with --include {excluded.path}; if it is a package, add it to the environment of the job"
    )


def _in_repository(names: Sequence[str], reason: str, spec: JobSpec) -> str | None:
    surroundings = spec.surroundings
    for path in surroundings.paths if surroundings else ():  # the nearest first
        if path.rstrip("/").rpartition("/")[2].removesuffix(".py") != names[0]:
            continue
        parents = "/".join(part for part in path.split("/") if part == "..")
        root = dirname(path.rstrip("/"))[len(parents) + 1 :] or "."
        variable = "" if notebook_folder(reason) is not None else f" --env PYTHONPATH={root}"
        return (
            f"{path} is outside of {code_folder(spec)}, so it was not sent; "
            f"use --code {parents}{variable}"
        )
    return None


def _not_installed(module: str, spec: JobSpec, files: Sequence[str]) -> str:
    environment = spec.environment
    name = module.partition(".")[0]
    package = _PACKAGES.get(name, name.replace("_", "-"))
    match environment.kind:
        case "user":
            advice = f"install it with --pip {package}, or {_definition(files)}"
        case "image":
            advice = f"add it to the image, or install it on top with --pip {package}"
        case "system" if environment.name:
            advice = f"add {package} to the environment {environment.name!r}"
        case "system":
            advice = f"add {package} to its requirements, or use --pip {package}"
    return f"module {name!r} is not in the job's environment; {advice}"


def _definition(files: Sequence[str]) -> str:
    present = next((name for name in _DEFINITIONS if name in files), None)
    if present is not None:
        return f"all that {present} lists with --environment {present}"
    return "name your requirements file, pyproject.toml or conda file with --environment"


def _base_of(name: str, files: Iterable[str]) -> str | None:
    """Return the folder with this module or folder: `src/` or an empty string.

    Of several, the one with Python files that is the highest.
    """
    bases: set[tuple[bool, int, str]] = set()
    for file in files:
        *folders, last = file.split("/")
        if last == f"{name}.py":
            bases.add((False, len(folders), _joined(folders)))
        if name in folders:
            depth = folders.index(name)
            bases.add((not _is_module(file), depth, _joined(folders[:depth])))
    return min(bases)[2] if bases else None


def _joined(folders: Sequence[str]) -> str:
    return "".join(f"{folder}/" for folder in folders)


def _modules_in(folder: str, files: Iterable[str]) -> list[str]:
    inner = (file[len(folder) + 1 :].split("/") for file in files if _is_module(file))
    return sorted({names[0].partition(".")[0] for names in inner} - {"__init__", ""})


def _is_module(file: str) -> bool:
    return file.endswith((".py", ".so", ".pyi"))
