"""Display names, descriptions, tags and properties of jobs through the API."""

from typing import Any

from tests.server.conftest import Api

LABELS = {
    "display_name": "ResNet, batch 64",
    "description": "the long one\nwith two lines",
    "tags": {"team": "vision", "stage": ""},
    "properties": {"commit": "1f2e"},
}


def chosen(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in LABELS}


def listed(api: Api, **query: Any) -> list[str]:
    return [job["name"] for job in api.ask("GET", "/api/jobs", **query).json]


def test_a_job_keeps_its_labels_and_a_rerun_does_too(api: Api) -> None:
    job = api.submit("true", name="first", **LABELS)
    assert chosen(job) == chosen(api.job("first")) == LABELS
    body = {"name": "second", "description": "again", "tags": {"stage": "final"}}
    rerun = api.ask("POST", "/api/jobs/first/rerun", body).json
    assert chosen(rerun) == LABELS | {
        "description": "again",
        "tags": {"team": "vision", "stage": "final"},
    }
    plain = api.submit("true", name="plain")
    none: dict[str, object] = {"description": "", "tags": {}, "properties": {}}
    assert chosen(plain) == {"display_name": "plain", **none}


def test_labels_change_in_any_state_and_announce_another_version(api: Api) -> None:
    api.submit("true", name="changing", tags={"team": "vision", "old": "x"})
    before = api.wait("changing")
    changes = {"display_name": "New", "tags": {"old": None, "stage": "final"}}
    changed = api.ask("PATCH", "/api/jobs/changing", changes).json
    assert (changed["display_name"], changed["description"]) == ("New", "")
    assert changed["tags"] == {"team": "vision", "stage": "final"}
    assert (changed["version"], changed["state"]) == (before["version"] + 1, "succeeded")
    assert api.ask("GET", "/api/jobs/changing/history").json[-1]["version"] < changed["version"]
    back = api.ask("PATCH", "/api/jobs/changing", {"display_name": ""}).json
    assert back["display_name"] == "changing"


def test_a_property_is_added_and_never_changed(api: Api) -> None:
    api.submit("true", name="proper")
    for _ in range(2):  # repeating it changes nothing
        body = {"properties": {"commit": "1f2e"}}
        assert api.ask("PATCH", "/api/jobs/proper", body).json["properties"] == body["properties"]
    refused = api.ask("PATCH", "/api/jobs/proper", {"properties": {"commit": "other"}})
    assert (refused.status, refused.json["field"]) == (422, "properties")
    assert refused.json["message"] == (
        "properties: 'commit' is '1f2e' already, and a property never changes; use a tag for what "
        "changes"
    )


def test_mlflow_clients_see_and_set_the_labels_of_a_job(api: Api) -> None:
    job = api.submit("true", name="tracked", **LABELS)
    run = api.ask("GET", "/api/2.0/mlflow/runs/get", run_id=job["id"]).json["run"]
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert run["info"]["run_name"] == tags["mlflow.runName"] == LABELS["display_name"]
    assert (tags["mlflow.note.content"], tags["team"]) == (LABELS["description"], "vision")
    for key, value in (("mlflow.note.content", "noted"), ("team", "audio"), ("best", "7")):
        body = {"run_id": job["id"], "key": key, "value": value}
        assert api.ask("POST", "/api/2.0/mlflow/runs/set-tag", body).status == 200
    body = {"run_id": job["id"], "run_name": "renamed"}
    assert api.ask("POST", "/api/2.0/mlflow/runs/update", body).status == 200
    shown = api.job("tracked")
    assert (shown["display_name"], shown["description"]) == ("renamed", "noted")
    assert shown["tags"] == {"team": "audio", "stage": "", "best": "7"}
    again = api.ask("POST", "/api/jobs/tracked/rerun", {"name": "tracked-again"}).json
    assert again["tags"] == LABELS["tags"]  # as requested: not what the script has set


def test_jobs_are_listed_by_their_labels(api: Api) -> None:
    for number, team in enumerate(("x", "y", "x")):
        name = f"labelled-{number}"
        api.submit("true", name=name, tags={"club": team}, properties={"number": f"{number}"})
    assert listed(api, tag="club=x") == ["labelled-2", "labelled-0"]
    assert listed(api, tag="club", limit=2) == ["labelled-2", "labelled-1"]
    assert listed(api, tag=["club=y", "club"]) == ["labelled-1"]
    assert listed(api, filter="properties.number = '2'") == ["labelled-2"]
    assert listed(api, filter="display_name LIKE 'labelled-%'", sort="display_name", offset=2) == [
        "labelled-2"
    ]
    page = api.ask("GET", "/api/jobs", tag="club=y", logged=["tags.club", "properties.number"])
    assert page.json[0]["logged"] == {"tags.club": "y", "properties.number": "1"}


def test_wrong_labels_are_refused_in_one_sentence(api: Api) -> None:
    api.submit("true", name="kept", tags={"a": "1"})
    many = {f"k{number}": "x" for number in range(10_000)}
    for body, sentence in (
        ({"tags": many}, "tags: at most 100 are allowed, not 10,000"),
        ({"tags": {"mlflow.user": "x"}}, "tags: 'mlflow.user' is a tag of MLflow itself; choose"),
        ({"tags": {"a=b": "x"}}, "tags: 'a=b' is not a valid key; use 1 to 250 letters"),
        ({"tags": {"a": 1}}, "tags.a: must be a valid string, not 1"),
        ({"properties": {"a": None}}, "properties.a: must be a valid string, not None"),
        ({"display_name": "a\nb"}, "display_name: a display name must have 1 to 500 printable"),
        ({"description": "x" * 8001}, "description: must have at most 8,000 characters"),
        ({"name": "other"}, "name: unknown field"),
    ):
        answer = api.ask("PATCH", "/api/jobs/kept", body)
        assert (answer.status, answer.json["message"][: len(sentence)]) == (422, sentence)
    assert api.ask("PATCH", "/api/jobs/nobody", {}).status == 404
    wrong = api.ask("GET", "/api/jobs", tag="a*b=1")
    assert wrong.json["message"].startswith("tag: 'a*b' is not a valid key")
    assert api.job("kept")["tags"] == {"a": "1"}
