"""One line about what to do after a failure. Pure functions of the reason and the job."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from posixpath import basename

from retarget.core.exclusions import find_missing
from retarget.core.jobs import Job, JobSpec
from retarget.core.missing_files import explain_file, explain_no_input
from retarget.core.missing_modules import explain_module, run_as_module
from retarget.core.states import JobState

_SIGKILL_CODE = 137
_ANY_JOB = JobSpec(command=("python",))


def hint_of(job: Job, files: Sequence[str] = ()) -> str | None:
    """Return what the user can do about a failed job, or None if there is no hint.

    `files` are those of its snapshot, if `needs_files` asks for them.
    """
    if job.state is not JobState.FAILED:
        return None
    excluded = find_missing(job.reason, job.spec.excluded)
    if excluded is not None:  # the reason says why it was not sent
        return f"send {excluded.path} with --include {excluded.path}"
    return hint_for(job.reason, job.exit_code, job.spec, files)


def needs_files(reason: str) -> bool:
    """Return whether the hint for this reason depends on the files of the snapshot."""
    return any(rule.search(reason) for rule in _ABOUT_FILES)


def hint_for(
    reason: str,
    exit_code: int | None = None,
    spec: JobSpec = _ANY_JOB,
    files: Sequence[str] = (),
) -> str | None:
    """Return what the user can do about a failure with this reason and exit code."""
    specific = _about_code(reason, spec, files) or _about_surroundings(reason, spec)
    if specific is not None:
        return specific
    for pattern, advice in _RULES:
        match = re.search(pattern, reason)
        if match:
            return advice.format(next((name for name in match.groups() if name), ""))
    return _SIGKILL if exit_code == _SIGKILL_CODE else None


def _about_code(reason: str, spec: JobSpec, files: Sequence[str]) -> str | None:
    module = _MISSING_MODULE.search(reason)
    if module:
        return explain_module(module[1], reason, spec, files)
    file = _MISSING_FILE.search(reason)
    if file:
        return explain_file(next(path for path in file.groups() if path), reason, spec, files)
    if _NO_INPUT.search(reason):
        return explain_no_input(spec)
    return _relative_import(spec, files) if _RELATIVE_IMPORT.search(reason) else None


def _about_surroundings(reason: str, spec: JobSpec) -> str | None:
    """Explain a missing variable or command."""
    variable = _MISSING_KEY.search(reason)
    if variable and variable[1] not in {*spec.variables, *spec.secrets}:
        return _missing_variable(variable[1], spec)
    command = _NO_COMMAND.search(reason)
    return _missing_command(next(filter(None, command.groups())), spec) if command else None


def _relative_import(spec: JobSpec, files: Sequence[str]) -> str:
    command = run_as_module(spec, files)
    if command is None:
        return "relative imports work only in a module of a package; name the module to import"
    return f"relative imports work only in a module of a package; run it as one: {command}"


def _missing_variable(name: str, spec: JobSpec) -> str:
    files = [row.path for row in spec.excluded if basename(row.path) == ".env"]
    more = f", or all of {files[0]} with --env-file {files[0]}" if files else ""
    return (
        f"if {name} is an environment variable: a job does not get those of your shell; pass it "
        f"with --env {name}{more}"
    )


def _missing_command(name: str, spec: JobSpec) -> str:
    scripts = [
        script
        for package in spec.own_packages
        for script in package.entry_points.get("console_scripts", {})
    ]
    matches = get_close_matches(name, scripts, n=1)
    if matches:
        return f"the project declares no script {name!r}; did you mean {matches[0]!r}?"
    return (
        f"install {name} on the target, run the job in a container image that has it (--image), "
        "or, if it is a Python program, add its package with --pip"
    )


_LESS_MEMORY = (
    "use less memory (smaller batches, fewer workers), or reserve more: with --memory SIZE the job "
    "waits until that much is free; only in a container is it also a limit"
)
_SIGKILL = f"SIGKILL often means that the machine ran out of memory; {_LESS_MEMORY}"
_MISSING_MODULE = re.compile(r"\bNo module named '?([A-Za-z_][\w.]*)")
_NO_FILE = "No such file or directory"
_MISSING_FILE = re.compile(
    rf"{_NO_FILE}: '([^'/~][^']*)'|can't open file '([^'/][^']*)'"
    rf"|(?<![^\s:])([^\s:/~][^\s:]*): {_NO_FILE}"
)
# of os.environ, whose names are usually in upper case
_MISSING_KEY = re.compile(r"\bKeyError: '([A-Z][A-Z0-9_]{2,})'")
# pandas, of an empty list of files
_NO_INPUT = re.compile(r"\bNo objects to concatenate\b")
_RELATIVE_IMPORT = re.compile(r"\battempted relative import with no known parent package\b")
_NO_COMMAND = re.compile(r"command '([^']+)' not found|([^\s:]+): (?:command )?not found\b")
_ABOUT_FILES = (_MISSING_MODULE, _MISSING_FILE, _RELATIVE_IMPORT)
# what a reason contains, and what to do; {} is the group that matched
_RULES = [
    (
        r"Failed to download `[^`]*/python-build-standalone/",
        "the machine does not have this version of Python, and cannot download it; install it "
        "there, or require a version that it has",
    ),
    (
        r"Failed to fetch: `?https?://(?:[^/@\s]*@)?([^/\s:]+)\S* error sending request",
        "the machine that ran the job cannot reach {}; give it access, a proxy (HTTPS_PROXY) or "
        "another index in its pip.conf, or run the job in an image that has the packages (--image)",
    ),
    (
        r"(?:CUDA|HIP|MPS backend) out of memory|CUDA error: out of memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED",
        "the GPU is out of memory; use smaller batches or a smaller model, and check that no other "
        "process uses the GPU",
    ),
    (
        r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]",
        "a disk of the machine that ran the job is full; free some space there. "
        "`retarget server prune` removes files on the server that no job needs",
    ),
    (
        r"^(?:node \d+: )?out of memory|\bMemoryError\b|\[Errno 12\]|Unable to allocate .* for an"
        r"|(?:Cannot|can't) allocate memory",
        f"the job ran out of memory; {_LESS_MEMORY}",
    ),
    (r"was killed by SIGKILL|\bKilled\b", _SIGKILL),
    (
        r"Command '?\['git',|\bnot a git repository\b|\bInvalidGitRepositoryError\b",
        "the code is sent without its Git history; pass what the script needs from it as a "
        'variable: --env COMMIT="$(git rev-parse HEAD)"',
    ),
    (
        r"EOFError: EOF when reading a line",
        "a job has no stdin, so input() fails; pass the value as an argument (after `--`) or with "
        "--env",
    ),
    (
        r"'([^']+)' cannot be run: it is not executable|line \d+: (\S+): Permission denied",
        "make it executable first: chmod +x {}",
    ),
    (
        rf"{_NO_FILE}: '([/~][^']*)'|can't open file '(/[^']*)'"
        rf"|(?<![^\s:])([/~][^\s:]*): {_NO_FILE}",
        "{} does not exist on the machine that ran the job; only the code folder is sent there",
    ),
    (
        rf"\bFileNotFoundError\b|{_NO_FILE}",
        "a file is missing on the machine that ran the job; only the code folder is sent there",
    ),
    (
        r"Permission denied: '([^']+)'",
        "the user that runs the job may not access {}; write results to outputs/",
    ),
]
