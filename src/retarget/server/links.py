"""How answers lead on, as links in /openapi.json: clients and fuzzers can follow them."""

from typing import Any

Response = dict[str, Any]


def leads_to(*operations: str, **parameters: str) -> Response:
    """Describe an answer whose parts are the parameters of these operations."""
    links = [{"operationId": each, "parameters": parameters} for each in operations]
    return {"links": dict(zip(operations, links, strict=True))}


def both(*responses: Response) -> Response:
    """Join what several `leads_to` say of one answer."""
    return {"links": {name: link for one in responses for name, link in one["links"].items()}}


# What looks at a job; what orders about it follows only where it was made or changed.
_LOOKS = [
    "show_job",
    "show_history",
    "explain_job",
    "list_streams",
    "read_logs",
    "list_outputs",
    "show_tracking",
]
_ORDERS = ("cancel_job", "rerun_job", "delete_job")
OF_NEW_JOB = leads_to(*_LOOKS, *_ORDERS, job="$response.body#/id")
OF_JOB = both(
    leads_to(*_LOOKS, job="$response.body#/id"),
    leads_to("show_experiment", name="$response.body#/experiment"),
    leads_to("show_target", name="$response.body#/target"),
)
OF_JOBS = leads_to(*_LOOKS, job="$response.body#/0/id")
OF_TRACKING = leads_to("show_metric", job="$request.path.job", key="$response.body#/metrics/0/key")
OF_STREAMS = leads_to("read_logs", job="$request.path.job", stream="$response.body#/0/stream")
_LEFT = {"job": "$request.path.job", "path": "$response.body#/0/path"}
OF_OUTPUTS = both(
    leads_to("read_output", job="$request.path.job", path="$response.body#/0/path"),
    {"links": {"register_version": {"operationId": "register_version", "requestBody": _LEFT}}},
)
OF_EXPERIMENTS = leads_to("show_experiment", name="$response.body#/0/name")
OF_TARGETS = leads_to("show_target", "check_target", name="$response.body#/0/name")

OF_MODELS = leads_to("show_model", name="$response.body#/0/name")
_MODEL = {"name": "$response.body#/name"}
_VERSION = _MODEL | {"version": "$response.body#/version"}
OF_VERSION = both(
    leads_to("show_model", **_MODEL),
    leads_to("show_version", "list_version_files", **_VERSION),
)
OF_NEW_VERSION = both(
    OF_VERSION,
    leads_to("delete_model", "set_alias", **_MODEL),
    leads_to("delete_version", **_VERSION),
)
OF_ALIAS = both(
    leads_to("show_version", name="$request.path.name", version="$request.path.alias"),
    leads_to("delete_alias", name="$request.path.name", alias="$request.path.alias"),
)
OF_FILES = leads_to(
    "read_version_file",
    name="$request.path.name",
    version="$request.path.version",
    path="$response.body#/0/path",
)
OF_ENVIRONMENT = leads_to(
    "show_environment", "remove_environment", environment="$response.body#/digest"
)
OF_ENVIRONMENTS = leads_to("show_environment", environment="$response.body#/0/digest")
