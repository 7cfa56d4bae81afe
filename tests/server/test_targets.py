"""Targets over the API: attach, change, check and detach them. Secrets are never shown."""

import json
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.bad_input.conftest import ask_raw
from tests.plugin import install_vault
from tests.server.conftest import Answer, Api, serving

SECRET = "correct horse battery staple"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    return install_vault(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, plugin: str) -> Iterator[Api]:
    home = tmp_path_factory.mktemp("home")
    with serving(home, PYTHONPATH=plugin, RETARGET_POLL_SECONDS="0.2") as api:
        yield api


def attach(api: Api, name: str, kind: str = "vault", **config: Any) -> Answer:
    full_config = {"address": "here"} | config if kind == "vault" else config
    return api.ask("POST", "/api/targets", {"name": name, "kind": kind, "config": full_config})


def again(home: Path, **variables: str) -> AbstractContextManager[Api]:
    """Start another server for a home."""
    (home / "servers/main/server.json").unlink(missing_ok=True)
    return serving(home, **variables)


def settings(api: Api) -> list[tuple[str, Any, Any]]:
    """List the settings of all targets, without the inventory, which may change at any moment."""
    targets = api.ask("GET", "/api/targets").json
    return [(target["name"], target["config"], target["tags"]) for target in targets]


def change(api: Api, name: str, **config: Any) -> Answer:
    return api.ask("PATCH", f"/api/targets/{name}", {"config": config})


def refused(answer: Answer, status: int, sentence: str, field: str | None = None) -> None:
    assert answer.status == status, answer.content
    assert sentence in answer.json["message"]
    assert answer.json["field"] == field


def test_a_target_is_attached_with_all_its_settings(api: Api) -> None:
    new = {"name": "full", "kind": "vault", "config": {"address": "a"}, "tags": {"region": "n"}}
    attached = api.ask("POST", "/api/targets", new)
    assert attached.status == 201
    assert attached.json["tags"] == {"region": "n"}
    (node,) = attached.json["inventory"]["nodes"]
    assert (node["name"], node["state"], node["unavailable"]) == ("a", "ready", "")
    assert node["changed_at"] == attached.json["checked_at"]
    assert abs(datetime.fromisoformat(node["changed_at"]).timestamp() - time.time()) < 60
    assert attached.json["inventory"]["own_queue"] is False
    assert attached.json["inventory"]["node_types"] == []
    checked = api.ask("POST", "/api/targets/full/check").json
    assert checked["inventory"]["nodes"] == [node]  # in its state since then
    assert checked["checked_at"] > node["changed_at"]
    assert attached.json["config"]["cpus"] == 2
    stamp = attached.json["config"]["stamp"]
    assert api.ask("GET", "/api/targets/full").json["config"]["stamp"] == stamp != ""
    assert "full" in [target["name"] for target in api.ask("GET", "/api/targets").json]


def test_invalid_settings_are_refused_and_nothing_is_stored(api: Api) -> None:
    before = settings(api)
    refused(
        attach(api, "x", address=5), 422, "config.address: must be a valid string", "config.address"
    )
    refused(attach(api, "x", cpus=0), 422, "config.cpus: must be greater than 0", "config.cpus")
    refused(
        attach(api, "x", level="no"), 422, "config.level: must be 'low' or 'high'", "config.level"
    )
    message = "config.adress: unknown setting; did you mean address? known settings: address, "
    refused(attach(api, "x", adress="a"), 422, message, "config.adress")
    rooms = [{"address": "a"}, {"adress": "b"}]
    refused(
        attach(api, "x", rooms=rooms),
        422,
        "config.rooms.1.address: is required",
        "config.rooms.1.address",
    )
    new = {"name": "x", "kind": "vault"}
    missing = "config.address: is required (Where it is)"
    refused(api.ask("POST", "/api/targets", new), 422, missing, "config.address")
    refused(attach(api, "x", kind="vualt"), 422, "unknown kind 'vualt'; this server knows ", "kind")
    refused(attach(api, "a/b"), 422, "is not a valid name; use 1 to 63 letters", "name")
    refused(attach(api, "kinds"), 422, "'kinds' is reserved", "name")
    refused(attach(api, "local"), 409, "a target named 'local' exists already; choose another")
    refused(attach(api, "x", address="nowhere"), 503, "nowhere does not answer; is it switched on?")
    tagged = new | {"config": {"address": "a"}, "tags": {"a=b": "c"}}
    refused(api.ask("POST", "/api/targets", tagged), 422, "is not a valid name", "tags")
    assert settings(api) == before


def test_settings_of_this_machine_that_cannot_be_used_are_refused(api: Api) -> None:
    before = settings(api)
    for root in ("here", "", "/a\0b", "/\ud800"):
        message = "config.root: must be an absolute path, such as /srv/retarget"
        refused(attach(api, "x", "local", root=root), 422, message, "config.root")
    for root in ("/proc/nope", f"/tmp/{'x' * 300}", "/dev/null/x"):
        refused(attach(api, "x", "local", root=root), 503, f"cannot create {root}: ")
    endless = b'{"name": "x", "kind": "local", "config": {"root": "/tmp/x", "cpus": 1e999}}'
    answer = ask_raw(api, "POST", "/api/targets", endless)
    refused(answer, 422, "config.cpus: must be a finite number", "config.cpus")
    refused(attach(api, "x", "local", root="/tmp/x", memory=0), 422, "than 0", "config.memory")
    assert settings(api) == before


def test_settings_change_if_the_target_answers(api: Api) -> None:
    attach(api, "changing", password=SECRET, depth=3)
    changed = api.ask(
        "PATCH", "/api/targets/changing", {"config": {"cpus": 7, "password": "********"}}
    )
    assert changed.status == 200
    config = changed.json["config"]
    assert (config["cpus"], config["depth"], config["password"]) == (7, 3, "********")
    assert changed.json["inventory"]["nodes"][0]["cpus"] == 7
    assert changed.json["inventory"]["details"]["secrets"] == str([len(SECRET)])
    refused(change(api, "changing", address="nowhere"), 503, "nowhere does not answer")
    bad = change(api, "changing", cpu=7)
    refused(bad, 422, "config.cpu: unknown setting; did you mean cpus?", "config.cpu")
    assert api.ask("GET", "/api/targets/changing").json["config"] == config
    cleared = api.ask(
        "PATCH", "/api/targets/changing", {"config": {"password": None}, "tags": {"a": "b"}}
    )
    assert (cleared.json["config"]["password"], cleared.json["tags"]) == (None, {"a": "b"})
    assert change(api, "changing", depth=None, level=None).json["config"]["depth"] == 1
    refused(change(api, "changing", address=None), 422, "address: is required", "config.address")
    refused(change(api, "changing", cpu=None), 422, "unknown setting", "config.cpu")
    refused(api.ask("PATCH", "/api/targets/none", {"config": {}}), 404, "no target named 'none'")
    managed = api.ask("PATCH", "/api/targets/local", {"config": {"root": "/x"}})
    refused(managed, 409, "config.root: the server manages this setting of target 'local'")


def test_nested_secrets_stay_with_their_item(api: Api) -> None:
    rooms = [{"address": "a", "password": "12345"}, {"address": "b", "password": "1234567"}]
    assert attach(api, "rooms", rooms=rooms).json["inventory"]["details"]["secrets"] == "[5, 7]"
    shown = api.ask("GET", "/api/targets/rooms").json["config"]["rooms"]
    assert [room["password"] for room in shown] == ["********", "********"]
    one = api.ask("PATCH", "/api/targets/rooms", {"config": {"rooms": shown[1:]}})
    assert one.json["inventory"]["details"]["secrets"] == "[7]"
    new = [*shown[1:], {"address": "c", "password": "********"}]
    unknown = api.ask("PATCH", "/api/targets/rooms", {"config": {"rooms": new}})
    refused(
        unknown,
        422,
        "config.rooms.1.password: ******** only masks a secret",
        "config.rooms.1.password",
    )


def test_a_secret_is_seen_nowhere(tmp_path: Path, plugin: str) -> None:
    home = tmp_path / "home"
    answers: list[Answer] = []
    with serving(home, PYTHONPATH=plugin) as api:
        answers.append(
            attach(
                api,
                "safe",
                password=SECRET,
                key=SECRET,
                rooms=[{"address": "a", "password": SECRET}],
            )
        )
        assert answers[0].status == 201
        answers.append(attach(api, "x", password=[SECRET]))
        answers.append(attach(api, "x", pasword=SECRET))
        answers.append(attach(api, "x", rooms=[{"address": "a", "pasword": SECRET}]))
        answers.append(attach(api, "x", rooms=SECRET))
        answers.append(attach(api, "x", password=SECRET, address="nowhere"))
        answers.append(attach(api, "x", password="********"))
        assert [answer.status for answer in answers[1:]] == [422, 422, 422, 422, 503, 422]
        answers.append(
            api.ask("PATCH", "/api/targets/safe", {"config": {"password": SECRET + "!"}})
        )
        for path in ("targets", "targets/safe", "targets/kinds", "server"):
            answers.append(api.ask("GET", f"/api/{path}"))
        answers.append(api.ask("POST", "/api/jobs/plan", {"command": ["true"], "target": "safe"}))
        answers.append(api.ask("GET", "/openapi.json"))
        assert [answer.status for answer in answers[-6:]] == [200] * 6
    assert SECRET not in " ".join(answer.content.decode() for answer in answers)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert home / "retarget.db" in files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_server_with_another_secret_says_what_to_do(tmp_path: Path, plugin: str) -> None:
    home = tmp_path / "home"
    with serving(home, PYTHONPATH=plugin) as api:
        attach(api, "safe", password=SECRET)
    (home / "secret").write_bytes(b"x" * (home / "secret").stat().st_size)
    with again(home, PYTHONPATH=plugin) as api:
        sentence = "the stored password of target 'safe' cannot be decrypted"
        refused(api.ask("POST", "/api/targets/safe/check"), 503, sentence)
        assert sentence in api.ask("GET", "/api/targets/safe").json["reason"]
        assert api.ask("GET", "/api/environments").status == 200
        fixed = api.ask("PATCH", "/api/targets/safe", {"config": {"password": SECRET}})
        assert (fixed.status, fixed.json["reason"]) == (200, "")
        assert api.ask("DELETE", "/api/targets/safe").status == 200


def test_a_kind_that_is_gone_breaks_nothing_else(tmp_path: Path, plugin: str) -> None:
    home = tmp_path / "home"
    with serving(home, PYTHONPATH=plugin) as api:
        attach(api, "orphan")
    with again(home) as api:
        refused(api.ask("POST", "/api/targets/orphan/check"), 503, "unknown kind 'vault'")
        assert api.wait(api.submit("true")["name"])["state"] == "succeeded"
        assert api.ask("DELETE", "/api/targets/orphan").status == 200


def test_changes_at_once_are_all_kept(api: Api) -> None:
    attach(api, "much")
    configs: list[dict[str, Any]] = [
        {"cpus": 5},
        {"depth": 4},
        {"level": "high"},
        {"labels": {"a": "1"}},
        {"memory": 7},
    ]

    def apply(config: dict[str, Any]) -> Answer:
        return change(api, "much", **config)

    with ThreadPoolExecutor(5) as pool:
        done = list(pool.map(apply, configs))
    assert [answer.status for answer in done] == [200] * 5
    config = api.ask("GET", "/api/targets/much").json["config"]
    for changed in configs:
        assert config | changed == config


def test_a_mapping_is_changed_key_by_key(api: Api) -> None:
    attach(api, "labeled", labels={"a": "1", "b": "2"})
    more = change(api, "labeled", labels={"b": "3", "c": "4"})
    assert more.json["config"]["labels"] == {"a": "1", "b": "3", "c": "4"}
    less = change(api, "labeled", labels={"a": None})
    assert less.json["config"]["labels"] == {"b": "3", "c": "4"}
    assert change(api, "labeled", labels=None).json["config"]["labels"] == {}


def test_invalid_text_is_refused(api: Api) -> None:
    before = settings(api)
    wrong: list[dict[str, Any]] = [
        {"hosts": ["\ud800"]},
        {"labels": {"\udcff": "x"}},
        {"stamp": "a\0b"},
    ]
    for config in wrong:
        answer = attach(api, "x", **config)
        assert (answer.status, "that are not text" in answer.content.decode()) == (422, True)
    secret = attach(api, "x", password="\ud800")
    assert (secret.status, secret.json["field"]) == (422, "config.password")
    assert settings(api) == before


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.2, 0.4, 0.8])
def test_nothing_goes_on_at_a_target_that_is_detached_by_force(
    api: Api, tmp_path: Path, moment: float
) -> None:
    root, nap = tmp_path / "desk", f"1234.{uuid4().int % 10**9:09}"
    attach(api, "desk", "local", root=str(root), cpus=4)
    for _ in range(4):
        api.submit("sleep", nap, target="desk")
    time.sleep(moment)
    assert api.ask("DELETE", "/api/targets/desk", force="true").status == 200
    deadline = time.monotonic() + 200
    while remaining := [*_running(nap), *(root / "launches").glob("*")]:
        assert time.monotonic() < deadline, remaining
        time.sleep(0.05)


def _running(word: str) -> list[str]:
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in lines.splitlines() if line.endswith(f"sleep {word}")]


def test_a_target_without_jobs_is_detached_and_released(api: Api, tmp_path: Path) -> None:
    attach(api, "leaving", notes=str(tmp_path / "note"))
    assert api.ask("DELETE", "/api/targets/leaving").json == {"failed": []}
    assert (tmp_path / "note").read_text() == "released"
    refused(api.ask("DELETE", "/api/targets/leaving"), 404, "no target named 'leaving'")
    gone = api.ask("POST", "/api/jobs", {"command": ["true"], "target": "leaving"})
    refused(gone, 422, "target: no target named 'leaving'", "target")
    refused(api.ask("DELETE", "/api/targets/local"), 409, "cannot be detached")


def test_a_target_with_jobs_stays_unless_forced(api: Api, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert attach(api, "busy", "local", root=str(root), cpus=1).status == 201
    mark = tmp_path / "alive"
    beat = f"import time\nwhile True: open({str(mark)!r}, 'w').close(); time.sleep(0.05)"
    api.submit("python", "-c", beat, name="at-work", target="busy", cpus=1)
    api.wait("at-work", "running")
    for name in ("second", "third", "fourth"):
        api.submit("true", name=name, target="busy", cpus=1)
    sentence = "has 4 unfinished jobs: at-work, second, third and 1 more; "
    refused(api.ask("DELETE", "/api/targets/busy"), 409, sentence)
    assert api.job("at-work")["state"] == "running"
    names = ["at-work", "second", "third", "fourth"]
    assert api.ask("DELETE", "/api/targets/busy", force="true").json == {"failed": names}
    for name in names:
        job = api.job(name)
        assert (job["state"], job["reason"]) == ("failed", "target 'busy' was detached")
    assert list((root / "launches").iterdir()) == []
    mark.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not mark.exists(), "its script is still there"
    why = api.ask("GET", "/api/jobs/fourth/why").json
    assert why["reason"] == "target 'busy' was detached"
    assert api.ask("DELETE", "/api/jobs/at-work").status in (200, 204)


def test_no_job_waits_for_a_target_that_goes_while_jobs_are_submitted(
    api: Api, tmp_path: Path
) -> None:
    for round_number in range(3):
        attach(api, "racy", "local", root=str(tmp_path / "root"), cpus=1)
        answers: list[Answer] = []

        def submit(
            number: int, round_number: int = round_number, answers: list[Answer] = answers
        ) -> None:
            body = {
                "command": ["true"],
                "target": "racy",
                "name": f"r{round_number}-{number}",
                "retries": 3,
            }
            answers.append(api.ask("POST", "/api/jobs", body))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(12)]
        for thread in threads[:6]:
            thread.start()
        for thread in threads[6:]:
            thread.start()
            if thread is threads[8]:
                assert api.ask("DELETE", "/api/targets/racy", force="true").status == 200
        for thread in threads:
            thread.join()
        assert {answer.status for answer in answers} <= {201, 422}
    for job in api.ask("GET", "/api/jobs", target="racy", limit=1000).json:
        assert job["ended_at"] is not None, job


def test_the_tags_of_the_servers_own_machine_outlive_a_restart(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as api:
        api.ask("PATCH", "/api/targets/local", {"config": {"cpus": 1}, "tags": {"desk": "mine"}})
    with again(home) as api:
        local = api.ask("GET", "/api/targets/local").json
        assert (local["tags"], local["config"]["cpus"]) == ({"desk": "mine"}, 1)


def test_what_is_stored_of_a_secret_is_sealed(api: Api) -> None:
    attach(api, "sealed", password=SECRET)
    with closing(sqlite3.connect(f"file:{api.home}/retarget.db?mode=ro", uri=True)) as store:
        (config,) = store.execute("SELECT config FROM targets WHERE name = 'sealed'").fetchone()
    assert json.loads(config)["password"]["secret"].startswith("sealed:")
