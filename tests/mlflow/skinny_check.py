# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Makes every kind of call of MLflow's light client, valid and invalid, and prints the results.

Arguments: a prefix that makes names unique, and the servers, which are checked one by one.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException
from scrub import Scrubber

PREFIX = sys.argv[1]
UNKNOWN = "0" * 32


def main() -> None:
    global client, scrubber, experiment
    for server in sys.argv[2:]:
        mlflow.set_tracking_uri(server)
        client, scrubber = MlflowClient(), Scrubber({PREFIX: "prefix", server: "server"})
        experiment = client.create_experiment(f"{PREFIX}-skinny", tags={"kind": "light"})
        scrubber.name(experiment, "experiment")
        mlflow.set_experiment(f"{PREFIX}-skinny")
        scrubber.print({check.__name__: attempt(check) for check in CHECKS})


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except MlflowException as error:
        return {"error_code": error.error_code, "message": error.message}
    except Exception as error:  # noqa: BLE001  the client raises many types of errors
        return {"kind": type(error).__name__, "message": str(error)}


def new_run(name: str, **more: Any) -> str:
    run = client.create_run(experiment, run_name=name, **more)
    return scrubber.name(run.info.run_id, name)


def shown(run_id: str) -> dict[str, Any]:
    run = client.get_run(run_id)
    return {
        "name": run.info.run_name,
        "status": run.info.status,
        "stage": run.info.lifecycle_stage,
        "ended": run.info.end_time is not None,
        "params": run.data.params,
        "metrics": run.data.metrics,
        "tags": run.data.tags,
    }


def history(run_id: str, key: str) -> list[Any]:
    return [(m.value, m.step, m.timestamp) for m in client.get_metric_history(run_id, key)]


def metrics() -> dict[str, Any]:
    run_id = new_run("metrics")
    for step, value in [(5, 1.5), (-3, 2.5), (0, float("nan")), (5, 0.5), (1 << 40, -0.0)]:
        client.log_metric(run_id, "loss", value, timestamp=1_000 + step % 7, step=step)
    client.log_metric(run_id, "up", float("inf"), timestamp=5, step=0)
    client.log_metric(run_id, "down", float("-inf"), timestamp=5, step=0)
    client.log_metric(run_id, "tiny/of the.thing-1", 5e-324, timestamp=0, step=0)
    client.log_metric(run_id, "same", 1.0, timestamp=7, step=7)
    client.log_metric(run_id, "same", 1.0, timestamp=7, step=7)
    client.log_metric(run_id, "late", 1.0, timestamp=9, step=1)
    client.log_metric(run_id, "late", 2.0, timestamp=8, step=1)
    batch = [Metric("many", number / 3, number, number) for number in range(1000)]
    client.log_batch(run_id, metrics=batch)
    keys = ["loss", "up", "down", "tiny/of the.thing-1", "same", "late"]
    return {
        "latest": client.get_run(run_id).data.metrics,
        "histories": {key: history(run_id, key) for key in keys},
        "many": len(history(run_id, "many")),
        "none": history(run_id, "absent"),
    }


def params_and_tags() -> dict[str, Any]:
    run_id = new_run("params", tags={"first": "1"})
    client.log_param(run_id, "lr", 0.1)
    client.log_param(run_id, "lr", 0.1)
    client.log_batch(
        run_id,
        params=[Param("empty", ""), Param("long", "v" * 6000), Param("snow", "☃ ')--")],
        tags=[RunTag("t", "1"), RunTag("t", "2"), RunTag("wide", "w" * 5000)],
        metrics=[Metric("m", 1.0, 1, 0)],
    )
    client.set_tag(run_id, "gone", "soon")
    client.delete_tag(run_id, "gone")
    client.set_tag(run_id, "mlflow.runName", "renamed by a tag")
    by_tag = client.get_run(run_id).info.run_name
    client.update_run(run_id, name="renamed")
    return {"run": shown(run_id), "by tag": by_tag}


def fluent() -> dict[str, Any]:
    with mlflow.start_run(run_name="outer") as outer:
        scrubber.name(outer.info.run_id, "outer")
        mlflow.log_param("p", [1, 2])
        mlflow.log_metrics({"a": 1, "b": 2.5}, step=2)
        with mlflow.start_run(run_name="inner", nested=True) as inner:
            scrubber.name(inner.info.run_id, "inner")
            mlflow.set_tag("depth", 1)
    parent = client.get_parent_run(inner.info.run_id)
    runs = [shown(run.info.run_id) for run in (outer, inner)]
    for run in runs:
        for name in ("mlflow.user", "mlflow.source.name", "mlflow.source.git.commit"):
            run["tags"].pop(name, None)
    return {"runs": runs, "parent": parent.info.run_name}


def failing() -> str:
    try:
        with mlflow.start_run(run_name="failing") as run:
            raise ValueError("on purpose")
    except ValueError:
        return client.get_run(run.info.run_id).info.status


def statuses() -> dict[str, Any]:
    ends: dict[str, Any] = {"begin": shown(new_run("begun"))["status"]}
    for status in ("FINISHED", "FAILED", "KILLED"):
        run_id = new_run(status)
        client.set_terminated(run_id, status, end_time=1_700_000_000_123)
        ends[status] = (shown(run_id)["status"], client.get_run(run_id).info.end_time)
    client.update_run(run_id, status="RUNNING")
    return ends | {"again": (shown(run_id)["status"], client.get_run(run_id).info.end_time)}


def life_cycle() -> dict[str, Any]:
    run_id = new_run("deleted")
    client.delete_run(run_id)
    results = {
        "stage": shown(run_id)["stage"],
        "log": attempt(lambda: client.log_metric(run_id, "m", 1)),
        "param": attempt(lambda: client.log_param(run_id, "p", 1)),
        "tag": attempt(lambda: client.set_tag(run_id, "t", 1)),
        "again": attempt(lambda: client.delete_run(run_id)),
        "active": names(f"attributes.run_id = '{run_id}'"),
        "deleted": names(f"attributes.run_id = '{run_id}'", run_view_type=ViewType.DELETED_ONLY),
    }
    client.restore_run(run_id)
    return results | {"restored": shown(run_id)["stage"]}


def experiments() -> dict[str, Any]:
    experiment_id = client.create_experiment(f"{PREFIX}-second")
    scrubber.name(experiment_id, "second")
    client.set_experiment_tag(experiment_id, "team", "a")
    client.rename_experiment(experiment_id, f"{PREFIX}-renamed")
    results: dict[str, Any] = {"renamed": show_experiment(client.get_experiment(experiment_id))}
    client.delete_experiment(experiment_id)
    results["deleted"] = show_experiment(client.get_experiment_by_name(f"{PREFIX}-renamed"))
    results["run in deleted"] = attempt(lambda: client.create_run(experiment_id))
    results["use of deleted"] = attempt(lambda: mlflow.set_experiment(f"{PREFIX}-renamed"))
    results["name taken"] = attempt(lambda: client.create_experiment(f"{PREFIX}-renamed"))
    results["by view"] = {
        str(view): [
            match.name
            for match in client.search_experiments(
                view, filter_string=f"name LIKE '{PREFIX}%'", order_by=["name DESC"]
            )
        ]
        for view in (ViewType.ACTIVE_ONLY, ViewType.DELETED_ONLY, ViewType.ALL)
    }
    client.restore_experiment(experiment_id)
    results["restored"] = show_experiment(client.get_experiment(experiment_id))
    if hasattr(client, "delete_experiment_tag"):
        client.delete_experiment_tag(experiment_id, "team")
        results["tags"] = client.get_experiment(experiment_id).tags
    results["by tag"] = [
        match.name
        for match in client.search_experiments(
            filter_string=f"tags.kind = 'light' AND name LIKE '{PREFIX}%'"
        )
    ]
    results["default"] = show_experiment(client.get_experiment("0"))
    results["absent"] = client.get_experiment_by_name(f"{PREFIX}-absent")
    return results


def show_experiment(shown: Any) -> dict[str, Any]:
    return {
        "name": shown.name,
        "stage": shown.lifecycle_stage,
        "scheme": shown.artifact_location.partition(":")[0],
        "tags": shown.tags,
    }


def names(filter_string: str = "", **more: Any) -> list[str]:
    runs = client.search_runs([experiment], filter_string, **more)
    return [run.info.run_name for run in runs]


def search() -> dict[str, Any]:
    for number in range(6):
        run_id = new_run(f"s{number}", tags={"group": "even" if number % 2 == 0 else "odd"})
        client.log_metric(run_id, "acc", number / 10)
        client.log_param(run_id, "n", number)
        if number == 3:
            client.log_metric(run_id, "acc", float("nan"), step=1)
            client.set_terminated(run_id)
    searched_runs = "attributes.run_name LIKE 's_'"
    filters = [
        "metrics.acc > 0.2",
        "metrics.acc >= 0.2 AND params.n != '4'",
        "params.n = '1'",
        "params.n LIKE '%'",
        "tags.group = 'even' and metrics.acc < 0.4",
        "tags.group ILIKE 'EV%'",
        "tags.absent = 'x'",
        "attributes.status = 'FINISHED'",
        "attributes.run_name = 's1'",
        "run_name IN ('s1', 's2')",
        "attributes.start_time > 0",
        'metrics."acc" = 0.5',
        "tags.`group` != 'odd'",
        "tags.absent IS NULL",
        "params.n IS NOT NULL",
    ]
    orders = [["metrics.acc DESC"], ["params.n ASC"], ["tags.`group`", "metrics.acc"], ["run_name"]]
    orders += [["metrics.absent", "attributes.run_name DESC"]]
    first = client.search_runs([experiment], searched_runs, max_results=4, order_by=["run_name"])
    second = client.search_runs(
        [experiment], searched_runs, max_results=4, order_by=["run_name"], page_token=first.token
    )
    return {
        "filters": {
            clause: attempt(
                lambda clause=clause: names(f"{searched_runs} AND {clause}", order_by=["run_name"])
            )
            for clause in filters
        },
        "orders": {
            str(order): attempt(lambda order=order: names(searched_runs, order_by=order))
            for order in orders
        },
        "pages": [[run.info.run_name for run in page] for page in (first, second)],
        "last": second.token,
        "newest first": names(searched_runs),
    }


def artifacts() -> dict[str, Any]:
    run_id = new_run("files")
    Path("here.bin").write_bytes(bytes(range(256)) * 5000)
    Path("empty").write_text("")
    client.log_artifact(run_id, "here.bin", "deep/er")
    client.log_artifact(run_id, "empty")
    client.log_text(run_id, "héllo\n", "notes/ä b.txt")
    client.log_dict(run_id, {"a": [1]}, "d.yaml")
    folder = Path(client.download_artifacts(run_id, ""))
    return {
        "top": [(entry.path, entry.is_dir) for entry in client.list_artifacts(run_id)],
        "size of nothing": [
            entry.file_size for entry in client.list_artifacts(run_id) if entry.path == "empty"
        ],
        "deep": [
            (entry.path, entry.is_dir, entry.file_size)
            for entry in client.list_artifacts(run_id, "deep/er")
        ],
        "of a file": [entry.path for entry in client.list_artifacts(run_id, "empty")],
        "of nothing": [entry.path for entry in client.list_artifacts(run_id, "absent")],
        "same": (folder / "deep/er/here.bin").read_bytes() == Path("here.bin").read_bytes(),
        "all": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "text": mlflow.artifacts.load_text(f"runs:/{run_id}/notes/ä b.txt"),
        "absent": failure(lambda: client.download_artifacts(run_id, "absent.txt")),
    }


def failure(call: Callable[[], Any]) -> str:
    try:
        return f"no failure: {call()}"
    except Exception as error:  # noqa: BLE001  the type of the error is compared
        return type(error).__name__


def registry() -> dict[str, Any]:
    name, run_id = f"{PREFIX}-model", new_run("model")
    client.log_text(run_id, "weights", "model/weights.txt")
    client.create_registered_model(name, tags={"t": "1"}, description="about it")
    source = client.get_run(run_id).info.artifact_uri + "/model"
    for number in range(3):
        client.create_model_version(
            name, source, run_id, tags={"n": str(number)}, description=f"number {number}"
        )
    client.update_model_version(name, "2", "changed again")
    client.set_model_version_tag(name, "2", "k", "v")
    client.delete_model_version_tag(name, "2", "n")
    client.set_registered_model_tag(name, "u", "2")
    client.delete_registered_model_tag(name, "t")
    client.update_registered_model(name, "changed")
    client.set_registered_model_alias(name, "best", "2")
    client.set_registered_model_alias(name, "best", "3")
    client.set_registered_model_alias(name, "first", "1")
    client.delete_registered_model_alias(name, "first")
    client.transition_model_version_stage(name, "1", "Production")
    client.transition_model_version_stage(name, "2", "staging")
    client.transition_model_version_stage(name, "3", "Production", archive_existing_versions=True)
    results = {
        "model": show_model(client.get_registered_model(name)),
        "versions": versions(f"name = '{name}'"),
        "aliases found": [
            list(v.aliases) for v in client.search_model_versions(f"name = '{name}'")
        ],
        "latest": [(str(v.version), v.current_stage) for v in client.get_latest_versions(name)],
        "production": [str(v.version) for v in client.get_latest_versions(name, ["Production"])],
        "by alias": show_version(client.get_model_version_by_alias(name, "best")),
        "aliases": list(client.get_model_version(name, "3").aliases),
        "place": client.get_model_version_download_uri(name, "1").partition(":")[0],
        "content": Path(mlflow.artifacts.download_artifacts(f"models:/{name}/1/weights.txt")).name,
        "by run": versions(f"run_id = '{run_id}'"),
        "by tag": versions(f"name = '{name}' AND tags.k = 'v'"),
        "found": [m.name for m in client.search_registered_models(f"name LIKE '{PREFIX}-m%'")],
    }
    client.delete_model_version(name, "3")
    results["without 3"] = sorted(versions(f"name = '{name}'"))
    results["alias of a deleted"] = attempt(lambda: client.get_model_version_by_alias(name, "best"))
    client.rename_registered_model(name, f"{name}-2")
    results["renamed"] = sorted(versions(f"name = '{name}-2'"))
    results["old name"] = attempt(lambda: client.get_registered_model(name))
    client.delete_registered_model(f"{name}-2")
    results["gone"] = versions(f"name = '{name}-2'")
    return results


def show_model(model: Any) -> dict[str, Any]:
    latest = sorted(str(version.version) for version in model.latest_versions)
    return {"name": model.name, "tags": dict(model.tags), "description": model.description} | {
        "aliases": dict(model.aliases),
        "latest": latest,
    }


def show_version(version: Any) -> dict[str, Any]:
    return {
        "version": str(version.version),
        "stage": version.current_stage,
        "status": version.status,
        "tags": dict(version.tags),
        "description": version.description,
        "run": version.run_id,
        "source": version.source,
    }


def versions(filter_string: str) -> dict[str, Any]:
    return {str(v.version): show_version(v) for v in client.search_model_versions(filter_string)}


def wrong_runs() -> dict[str, Any]:
    run_id = new_run("wrong")
    client.log_param(run_id, "p", 1)
    calls: dict[str, Callable[[], Any]] = {
        "unknown run": lambda: client.get_run(UNKNOWN),
        "unknown run, metric": lambda: client.log_metric(UNKNOWN, "m", 1),
        "unknown run, tag": lambda: client.set_tag(UNKNOWN, "t", 1),
        "unknown run, files": lambda: client.list_artifacts(UNKNOWN),
        "unknown run, end": lambda: client.set_terminated(UNKNOWN),
        "unknown run, delete": lambda: client.delete_run(UNKNOWN),
        "unknown run, restore": lambda: client.restore_run(UNKNOWN),
        "changed param": lambda: client.log_param(run_id, "p", 2),
        "changed in batch": lambda: client.log_batch(
            run_id, params=[Param("p", "3"), Param("new", "1")]
        ),
        "twice in batch": lambda: client.log_batch(
            run_id, params=[Param("q", "1"), Param("q", "2")]
        ),
        "long key": lambda: client.log_param(run_id, "k" * 251, 1),
        "long value": lambda: client.log_param(run_id, "v", "v" * 6001),
        "long metric": lambda: client.log_metric(run_id, "m" * 251, 1),
        "long tag": lambda: client.set_tag(run_id, "t" * 251, 1),
        "bad metric name": lambda: client.log_metric(run_id, "a\nb", 1),
        "path as a name": lambda: client.log_metric(run_id, "../up", 1),
        "1001 metrics": lambda: client.log_batch(
            run_id, metrics=[Metric("m", 1, 1, step) for step in range(1001)]
        ),
        "101 params": lambda: client.log_batch(
            run_id, params=[Param(f"p{number}", "") for number in range(101)]
        ),
        "101 tags": lambda: client.log_batch(
            run_id, tags=[RunTag(f"t{number}", "") for number in range(101)]
        ),
        "absent tag": lambda: client.delete_tag(run_id, "absent"),
        "bad status": lambda: client.set_terminated(run_id, "DONE"),
        "path upwards": lambda: failure(lambda: client.list_artifacts(run_id, "../..")),
    }
    results = {name: attempt(call) for name, call in calls.items()}
    return results | {"untouched": shown(run_id)["params"]}


def wrong_searches() -> dict[str, Any]:
    filters = [
        "metrics.acc",
        "metrics.acc > 'a'",
        "params.n > 1",
        "params.n = 1",
        "nonsense",
        "attributes.nonsense = 'a'",
        "colours.red = 'a'",
        "metrics.acc > 1 OR metrics.acc < 0",
        "tags.a == 'b'",
        "attributes.status > 'FINISHED'",
        "params.n LIKE",
        "'a' = 'b'",
    ]
    results = {
        filter_string: attempt(lambda filter_string=filter_string: names(filter_string))
        for filter_string in filters
    }
    results["order"] = attempt(lambda: names(order_by=["metrics.acc SIDEWAYS"]))
    results["order by what"] = attempt(lambda: names(order_by=["colours.red"]))
    results["too many"] = attempt(lambda: names(max_results=50_001))
    results["page"] = attempt(lambda: names(page_token="no such page"))
    return results


def wrong_experiments() -> dict[str, Any]:
    calls: dict[str, Callable[[], Any]] = {
        "taken": lambda: client.create_experiment(f"{PREFIX}-skinny"),
        "empty": lambda: client.create_experiment(""),
        "number": lambda: client.create_experiment(5),  # pyright: ignore[reportArgumentType]
        "long": lambda: client.create_experiment("e" * 501),
        "unknown": lambda: client.get_experiment("99999999"),
        "unknown, rename": lambda: client.rename_experiment("99999999", "x"),
        "unknown, delete": lambda: client.delete_experiment("99999999"),
        "unknown, run": lambda: client.create_run("99999999"),
        "unknown, tag": lambda: client.set_experiment_tag("99999999", "a", "b"),
        "no number": lambda: client.get_experiment("abc"),
        "restore active": lambda: client.restore_experiment(experiment),
        "place with a query": lambda: client.create_experiment(
            f"{PREFIX}-place", artifact_location="mlflow-artifacts:/a?b=c"
        ).isdigit(),
        "filter": lambda: client.search_experiments(filter_string="colour = 'red'"),
        "order": lambda: client.search_experiments(order_by=["colour"]),
    }
    return {name: attempt(call) for name, call in calls.items()}


def wrong_models() -> dict[str, Any]:
    name = f"{PREFIX}-wrong"
    client.create_registered_model(name)
    run_id = new_run("wrong model")
    source = client.get_run(run_id).info.artifact_uri + "/model"
    client.create_model_version(name, source, run_id)
    calls: dict[str, Callable[[], Any]] = {
        "taken": lambda: client.create_registered_model(name),
        "empty": lambda: client.create_registered_model(""),
        "slash": lambda: client.create_registered_model("a/b"),
        "colon": lambda: client.create_registered_model("a:b"),
        "unknown": lambda: client.get_registered_model(f"{name}-absent"),
        "unknown, delete": lambda: client.delete_registered_model(f"{name}-absent"),
        "unknown, rename": lambda: client.rename_registered_model(f"{name}-absent", "x"),
        "unknown, version": lambda: client.create_model_version(f"{name}-absent", source, run_id),
        "no such version": lambda: client.get_model_version(name, "9"),
        "version as a word": lambda: client.get_model_version(name, "nine"),
        "bad stage": lambda: client.transition_model_version_stage(name, "1", "Shipped"),
        "bad stages": lambda: client.get_latest_versions(name, ["Shipped"]),
        "alias v1": lambda: client.set_registered_model_alias(name, "v1", "1"),
        "alias latest": lambda: client.set_registered_model_alias(name, "latest", "1"),
        "alias with a space": lambda: client.set_registered_model_alias(name, "a b", "1"),
        "alias of nothing": lambda: client.set_registered_model_alias(name, "ok", "9"),
        "absent alias": lambda: client.get_model_version_by_alias(name, "absent"),
        "absent alias, delete": lambda: client.delete_registered_model_alias(name, "absent"),
        "absent tag": lambda: client.delete_registered_model_tag(name, "absent"),
        "foreign source": lambda: client.create_model_version(name, "file:///etc", run_id),
        "filter": lambda: client.search_registered_models("colour = 'red'"),
        "versions by what": lambda: client.search_model_versions("colour = 'red'"),
        "too many": lambda: client.search_registered_models(max_results=100_001),
    }
    results = {case: attempt(call) for case, call in calls.items()}
    client.delete_registered_model(name)
    return results


CHECKS = [metrics, params_and_tags, fluent, failing, statuses, life_cycle, experiments, search]
CHECKS += [artifacts, registry, wrong_runs, wrong_searches, wrong_experiments, wrong_models]

if __name__ == "__main__":
    main()
