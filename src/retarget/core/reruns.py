"""What a rerun changes about a job."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from retarget.core.environments import Environment
from retarget.core.errors import Invalid
from retarget.core.jobs import (
    Amount,
    Argument,
    Count,
    JobSpec,
    Memory,
    Name,
    Seconds,
    SecretNames,
    Variables,
    check_experiment,
)
from retarget.core.labels import Description, DisplayName, Tags
from retarget.core.values import Value

_REPLACED = (
    *("target", "experiment", "environment", "cpus", "memory", "gpus", "nodes"),
    *("display_name", "description"),
    *("processes_per_node", "retries", "timeout", "priority", "split_stderr"),
)


class Changes(Value):
    """What a rerun changes; whatever is not set stays as it was."""

    target: Name | None = None
    name: Name | None = None
    experiment: Annotated[str, AfterValidator(check_experiment)] | None = None
    display_name: DisplayName | None = None
    description: Description | None = None
    tags: Tags = {}  # added to those of the job
    # replace all arguments of the script; for a job without a script, the whole command
    arguments: Annotated[tuple[Argument, ...], Field(max_length=10_000)] | None = None
    environment: Environment | None = None
    variables: Variables = {}  # added to those of the job
    secrets: SecretNames = ()  # added to those of the job
    cpus: Annotated[Amount, Field(gt=0)] | None = None
    memory: Memory | None = None
    gpus: Annotated[Count, Field(ge=0)] | None = None
    nodes: Annotated[Count, Field(ge=1)] | None = None
    processes_per_node: Annotated[Count, Field(ge=1, le=1024)] | None = None
    retries: Annotated[Count, Field(ge=0, le=100)] | None = None
    timeout: Seconds | None = None
    priority: Annotated[Count, Field(ge=-1000, le=1000)] | None = None
    split_stderr: bool | None = None


def changed_spec(spec: JobSpec, changes: Changes) -> JobSpec:
    """Return what to submit, or raise Invalid. Pure."""
    values = {name: getattr(changes, name) for name in _REPLACED}
    replaced = {name: value for name, value in values.items() if value is not None}
    kept_secrets = [name for name in spec.secrets if name not in changes.variables]
    kept_variables = {
        name: value for name, value in spec.variables.items() if name not in changes.secrets
    }
    processes = replaced.get("nodes", spec.nodes) * replaced.get(
        "processes_per_node", spec.processes_per_node
    )
    if processes > 1:  # each has its own stream
        replaced.setdefault("split_stderr", False)
    return _checked(
        spec,
        replaced
        | {
            "name": changes.name,
            "command": _command(spec, changes.arguments),
            "variables": kept_variables | changes.variables,
            "tags": {**spec.tags, **changes.tags},
            "secrets": (*kept_secrets, *changes.secrets),
            "project_settings": _unchanged_settings(spec, {*replaced, *_item_names(changes)}),
        },
    )


def _command(spec: JobSpec, arguments: tuple[str, ...] | None) -> tuple[str, ...]:
    if arguments is None:
        return spec.command
    if spec.arguments_index is not None:
        return (*spec.command[: spec.arguments_index], *arguments)
    if not arguments or arguments[0].startswith("-"):
        raise Invalid(
            "arguments: the job runs a command, not a script, so they replace the whole command; "
            "begin with the program to run, such as `python`",
            field="arguments",
        )
    return arguments


def _item_names(changes: Changes) -> list[str]:
    names = [f"variables.{name}" for name in (*changes.variables, *changes.secrets)]
    return names + [f"tags.{key}" for key in changes.tags]


def _unchanged_settings(spec: JobSpec, changed: set[str]) -> tuple[str, ...]:
    """Return what still comes from the project's settings: not `cpus=2` if `cpus` is changed."""
    return tuple(
        setting for setting in spec.project_settings if setting.partition("=")[0] not in changed
    )


def _checked(spec: JobSpec, update: Mapping[str, Any]) -> JobSpec:
    try:
        return JobSpec.model_validate(spec.model_copy(update=update).model_dump())
    except ValidationError as error:  # what is too large together
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise Invalid(f"{field}: {message}" if field else message, field=field) from None
