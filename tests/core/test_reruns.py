"""What a rerun changes about a job."""

import pytest

from retarget.core.errors import Invalid
from retarget.core.jobs import JobSpec
from retarget.core.reruns import Changes, changed_spec

SCRIPT = JobSpec(
    command=("python", "train.py", "--lr", "0.1"),
    arguments_index=2,
    name="first",
    cpus=2,
    variables={"A": "1", "B": "2"},
    secrets=("TOKEN",),
    project_settings=("profile=quick", "cpus=2", "retries=1", "variables.A", "variables.B"),
    retries=1,
)
COMMAND = JobSpec(command=("python", "train.py", "--lr", "0.1"))


def test_without_changes_only_the_name_is_new() -> None:
    assert changed_spec(SCRIPT, Changes()) == SCRIPT.model_copy(update={"name": None})


def test_arguments_replace_all_arguments_of_the_script() -> None:
    changed = changed_spec(SCRIPT, Changes(arguments=("--epochs", "3")))
    assert changed.command == ("python", "train.py", "--epochs", "3")
    again = changed_spec(changed, Changes(arguments=()))
    assert again.command == ("python", "train.py")


def test_arguments_of_a_job_without_a_script_are_the_whole_command() -> None:
    assert changed_spec(COMMAND, Changes(arguments=("ls", "-l"))).command == ("ls", "-l")
    for arguments in ((), ("--lr", "0.2")):
        with pytest.raises(Invalid, match="replace the whole command"):
            changed_spec(COMMAND, Changes(arguments=arguments))


def test_resources_are_replaced_and_no_longer_come_from_the_project() -> None:
    changed = changed_spec(SCRIPT, Changes(cpus=4, variables={"A": "9"}, target="gpu"))
    assert (changed.cpus, changed.retries, changed.target) == (4, 1, "gpu")
    assert changed.variables == {"A": "9", "B": "2"}
    assert changed.project_settings == ("profile=quick", "retries=1", "variables.B")


def test_labels_stay_and_tags_are_added() -> None:
    labels = {"display_name": "A", "description": "b", "tags": {"k": "1", "n": "2"}}
    settings = ("tags.k", "tags.n")
    spec = SCRIPT.model_copy(
        update={**labels, "properties": {"p": "1"}, "project_settings": settings}
    )
    changed = changed_spec(spec, Changes(display_name="C", tags={"k": "9", "new": "x"}))
    assert (changed.display_name, changed.description, changed.properties) == ("C", "b", {"p": "1"})
    assert changed.tags == {"k": "9", "n": "2", "new": "x"}
    assert changed.project_settings == ("tags.n",)


def test_a_name_is_a_variable_or_a_secret_whichever_comes_last() -> None:
    as_variable = changed_spec(SCRIPT, Changes(variables={"TOKEN": "x"}))
    assert (as_variable.secrets, as_variable.variables["TOKEN"]) == ((), "x")
    as_secret = changed_spec(SCRIPT, Changes(secrets=("A", "TOKEN")))
    assert (as_secret.secrets, as_secret.variables) == (("TOKEN", "A"), {"B": "2"})


def test_what_is_too_large_together_is_refused() -> None:
    large = {f"V{number}": "x" * 100_000 for number in range(4)}
    spec = JobSpec(command=("true",), variables=large)
    more = {f"W{number}": "x" * 100_000 for number in range(4)}
    with pytest.raises(Invalid, match=r"variables: .* at most"):
        changed_spec(spec, Changes(variables=more))
