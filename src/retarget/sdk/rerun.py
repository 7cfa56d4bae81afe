"""Turns the changes of a rerun into a request."""

from typing import Any, cast

from retarget.sdk import arguments
from retarget.sdk.environment_registry import find_environment, send_context
from retarget.sdk.environments import Environment
from retarget.sdk.http import Connection
from retarget.sdk.submission import Options, job_options


def rerun_request(connection: Connection, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the checked changes as the body of a request; None changes nothing."""
    target, new_arguments = changes.pop("target"), changes.pop("args")
    body = job_options(cast(Options, changes))
    if target is not None:
        arguments.check("target", target, arguments.TEXT)
        body["target"] = target
    if new_arguments is not None:
        expected = "a list, such as ['--epochs', '3']"
        body["arguments"] = list(arguments.strings("args", new_arguments, expected))
    if changes.get("environment") is not None:
        environment = find_environment(connection, changes["environment"])
        if isinstance(environment, Environment):
            environment.refuse_own_packages("the code of an earlier job")
            send_context(connection, environment)
        body["environment"] = environment.to_json()
    return body
