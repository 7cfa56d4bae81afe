"""Links between responses and operations in /openapi.json, for clients and fuzzers to follow."""

from typing import Any

Response = dict[str, Any]


def link_to(*operations: str, **parameters: str) -> Response:
    """Describe a response whose values are the parameters of these operations."""
    return {
        "links": {
            operation: {"operationId": operation, "parameters": parameters}
            for operation in operations
        }
    }


def merge(*responses: Response) -> Response:
    """Merge the links of several `link_to` for one response."""
    links: dict[str, Any] = {}
    for response in responses:
        links |= response["links"]
    return {"links": links}


# Operations that change a job are linked only where a job was created or changed.
_READ_OPERATIONS = [
    "show_job",
    "show_history",
    "explain_job",
    "list_streams",
    "read_logs",
    "list_outputs",
    "show_tracking",
]
_WRITE_OPERATIONS = ("update_job", "cancel_job", "rerun_job", "delete_job")
NEW_JOB_LINKS = link_to(*_READ_OPERATIONS, *_WRITE_OPERATIONS, job="$response.body#/id")
JOB_LINKS = merge(
    link_to(*_READ_OPERATIONS, job="$response.body#/id"),
    link_to("show_experiment", name="$response.body#/experiment"),
    link_to("show_target", name="$response.body#/target"),
)
JOBS_LINKS = link_to(*_READ_OPERATIONS, job="$response.body#/0/id")
TRACKING_LINKS = link_to(
    "show_metric", job="$request.path.job", key="$response.body#/metrics/0/key"
)
STREAMS_LINKS = link_to("read_logs", job="$request.path.job", stream="$response.body#/0/stream")
_FIRST_OUTPUT = {"job": "$request.path.job", "path": "$response.body#/0/path"}
OUTPUTS_LINKS = merge(
    link_to("read_output", job="$request.path.job", path="$response.body#/0/path"),
    {
        "links": {
            "register_version": {"operationId": "register_version", "requestBody": _FIRST_OUTPUT}
        }
    },
)
EXPERIMENTS_LINKS = link_to("show_experiment", name="$response.body#/0/name")
TARGETS_LINKS = link_to("show_target", "check_target", name="$response.body#/0/name")

MODELS_LINKS = link_to("show_model", name="$response.body#/0/name")
_MODEL = {"name": "$response.body#/name"}
_VERSION = _MODEL | {"version": "$response.body#/version"}
VERSION_LINKS = merge(
    link_to("show_model", **_MODEL),
    link_to("show_version", "list_version_files", **_VERSION),
)
NEW_VERSION_LINKS = merge(
    VERSION_LINKS,
    link_to("delete_model", "set_alias", **_MODEL),
    link_to("delete_version", **_VERSION),
)
ALIAS_LINKS = merge(
    link_to("show_version", name="$request.path.name", version="$request.path.alias"),
    link_to("delete_alias", name="$request.path.name", alias="$request.path.alias"),
)
FILES_LINKS = link_to(
    "read_version_file",
    name="$request.path.name",
    version="$request.path.version",
    path="$response.body#/0/path",
)
ENVIRONMENT_LINKS = link_to(
    "show_environment", "remove_environment", environment="$response.body#/digest"
)
ENVIRONMENTS_LINKS = link_to("show_environment", environment="$response.body#/0/digest")
