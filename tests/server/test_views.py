"""Times in responses: ISO 8601 in UTC, with microseconds."""

from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from retarget.server.views import Timestamp
from tests.server.conftest import Api


class Moment(BaseModel):
    at: Timestamp


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1764000000.123456, "2025-11-24T16:00:00.123456Z"),
        (-1.25, "1969-12-31T23:59:58.750000Z"),
        (-1e300, "0001-01-01T00:00:00.000000Z"),
        (1e300, "9999-12-31T23:59:59.000000Z"),
    ],
)
def test_a_time_is_written_as_iso_8601(seconds: float, text: str) -> None:
    assert Moment(at=seconds).model_dump(mode="json") == {"at": text}


def test_every_time_of_the_api_is_a_date_time(api: Api) -> None:
    schemas = api.ask("GET", "/openapi.json").json["components"]["schemas"]
    assert schemas["RunnerEvent"]["properties"].pop("at")["type"] == "number"
    times = {
        f"{name}.{field}": str(schema)
        for name, model in schemas.items()
        for field, schema in model.get("properties", {}).items()
        if field.endswith("_at") or field == "at" or "'date-time'" in str(schema)
    }
    assert {"JobView.created_at", "PointView.logged_at", "TransitionView.at"} <= times.keys()
    assert [name for name, schema in times.items() if "'date-time'" not in schema] == []
    assert [name for name in times if not name.endswith(("_at", ".at"))] == []


def test_the_time_of_a_job_can_be_read_back(api: Api) -> None:
    before = datetime.now(UTC)
    job = api.submit("true")
    created_at = datetime.fromisoformat(job["created_at"])
    assert before <= created_at <= datetime.now(UTC)
    assert job["created_at"].endswith("Z")
