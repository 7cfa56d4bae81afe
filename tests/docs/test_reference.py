"""The reference is complete and correct: commands, options, routes, states, names, variables."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import retarget as package
from retarget.core import errors
from retarget.core.states import FINAL, TRANSITIONS, JobState
from retarget.sdk.environment_registry import Environments
from retarget.sdk.environments import Environment
from retarget.sdk.job import Job
from retarget.sdk.jobs import Jobs
from retarget.sdk.models import Model, Models, ModelVersion
from retarget.sdk.secrets import Secrets
from retarget.sdk.sizes import Sizes
from retarget.sdk.submission import Options
from retarget.sdk.targets import Targets
from retarget.sdk.tracking import Experiments
from retarget.sdk.workspace import Workspace
from tests.conftest import Cli
from tests.docs.markdown import ROOT, quoted, read, rows, section

_OPTION = re.compile(r"^\s+(?:(-\w), )?(--[\w-]+)", re.M)
_PUBLIC_CLASSES = (
    Workspace,
    Job,
    Jobs,
    Targets,
    Sizes,
    Environments,
    Experiments,
    Models,
    Model,
    ModelVersion,
    Secrets,
)
_VARIABLE = re.compile(r"\bRETARGET_[A-Z_]+")


def helps(retarget: Cli, *command: str) -> Iterator[tuple[str, str]]:
    """Yield every command below this one, with its help text."""
    text = retarget(*command, "--help").stdout
    yield " ".join(["retarget", *command]), text
    commands = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  (\S+)", commands, re.M):
        yield from helps(retarget, *command, name)


def test_every_command_and_option_is_documented_and_no_other(retarget: Cli) -> None:
    text = read("docs/reference/cli.md")
    help_texts = dict(helps(retarget))
    real = {
        name
        for name, help_text in help_texts.items()
        if "\nCommands:\n" not in help_text or name.count(" ") == 0
    }
    assert real == {name for name in re.findall(r"^## `(.+)`$", text, re.M)}
    for name in real:
        options = {word for pair in _OPTION.findall(help_texts[name]) for word in pair if word}
        documented = {
            word
            for row in rows(section(text, f"`{name}`"))
            for word in quoted(row[0])
            if word.startswith("-")
        }
        assert documented == options - {"--help", "-h"}, name


def test_every_short_form_is_documented_and_no_other(retarget: Cli) -> None:
    shown = retarget("--help").stdout.partition("\nShort forms:\n")[2]
    real = dict(re.findall(r"^  (\S+) +Short for `(.+)`\.$", shown, re.M))
    table = rows(section(read("docs/reference/cli.md"), "Short forms"))
    documented = {name: quoted(row[1])[0] for row in table for name in quoted(row[0])}
    assert documented == {f"retarget {name}": command for name, command in real.items()} != {}


def test_every_route_is_documented_and_no_other(retarget: Cli) -> None:
    url = json.loads(retarget("server", "start", "--json").stdout)["url"]
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=200) as answer:
        paths = json.load(answer)["paths"]
    real = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    first_cells = [row[0] for row in rows(read("docs/reference/http-api.md"))]
    documented = {
        word
        for cell in first_cells
        for word in quoted(cell)
        if re.match(r"(GET|POST|PUT|DELETE|PATCH) /", word)
    }
    assert documented == real


def test_the_table_of_states_matches_the_code() -> None:
    table = {quoted(row[0])[0]: row for row in rows(section(read("docs/concepts.md"), "States"))}
    assert list(table) == [state.value for state in JobState]
    for state in JobState:
        real = {after.value for (before, _), after in TRANSITIONS.items() if before is state}
        assert set(quoted(table[state.value][2])) == real, state
        assert (not real) == (state in FINAL)


def test_every_public_name_of_the_sdk_is_documented() -> None:
    words = set(re.findall(r"\w+", " ".join(quoted(read("docs/reference/sdk.md")))))
    members = {name for kind in _PUBLIC_CLASSES for name in vars(kind) if not name.startswith("_")}
    options = set(Options.__annotations__) | {field.name for field in fields(Environment)}
    assert not (members | options | set(package.__all__)) - words


def test_every_environment_variable_is_documented_and_no_other() -> None:
    sources = [*(ROOT / "src").rglob("*.py")]
    real = {name for file in sources for name in _VARIABLE.findall(file.read_text())}
    assert (
        set(_VARIABLE.findall(read("docs/reference/environment-variables.md"))) - {"RETARGET_"}
        == real
    )


def test_every_error_of_a_response_is_in_the_api_reference() -> None:
    documented = set(quoted(section(read("docs/reference/http-api.md"), "Errors")))
    in_responses = {
        name
        for name, error in vars(errors).items()
        if isinstance(error, type)
        and issubclass(error, errors.RetargetError)
        and error.status not in (500, 502)
    }
    internal = {
        "ServerUnreachable",
        "NothingStarted",
        "NotReady",
        "LeaseLost",
    }  # of clients and the loop
    assert in_responses - internal == documented & in_responses


def test_the_terminal_picture_shows_no_path_of_a_machine() -> None:
    picture = (ROOT / "docs/terminal.svg").read_text()
    assert not re.search(r"/(home|root|tmp|work|usr)/", picture)


def test_the_architecture_lists_the_folders_of_the_source() -> None:
    listed = re.findall(r"^  (\w+)/ ", read("ARCHITECTURE.md"), re.M)
    real = [path.name for path in (ROOT / "src/retarget").iterdir() if path.is_dir()]
    assert sorted(listed) == sorted(name for name in real if not name.startswith("__"))


def test_the_architecture_lists_every_file_of_a_launch_folder() -> None:
    documented = quoted(section(read("ARCHITECTURE.md"), "The launch folder"))
    folder = Path(ROOT / "src/retarget/runner/folder.py").read_text().split('"""')[1]
    for name in re.findall(r"^([\w./]+)  ", folder, re.M):
        assert name in documented, name
