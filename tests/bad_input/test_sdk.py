"""The SDK with wrong arguments: our own error, which names the argument."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retarget import Environment, Invalid, NotFound, Workspace
from tests.bad_input.conftest import unchanged
from tests.server.conftest import Api


class Thing:
    """A type that no argument accepts."""


WRONG: dict[str, list[Any]] = {
    "variables": [[1], "A=1", 3, [("A", "1")], {1: "x"}, {b"A": "x"}, {"A": None}, {"A": b"x"}],
    "args": ["a b", 3, {"a": 1}, {"a"}, b"x", [None], [b"x"], [["x"]]],
    "cpus": ["two", "2", [1], True, b"1", Thing(), float("nan"), -1, 10**400, 10**5000],
    "memory": ["3x", "-1", [1], True, b"2g", Thing(), float("nan"), -1, 0, 10**400],
    "gpus": ["one", 1.5, True, [0], -1, 10**400],
    "nodes": ["x", 1.5, 0, True],
    "processes_per_node": ["x", {}, 0, 1025],
    "retries": ["x", 1.5, True, -1, 101],
    "timeout": ["soon", [1], True, b"1", Thing(), float("nan"), 0, -1, 10**400],
    "priority": ["x", 1.5, 1001],
    "name": [3, b"x", ["x"], Thing(), "", "a/b", "\ud800"],
    "experiment": [3, b"x", ["x"], "", "\x1b"],
    "display_name": [3, b"x", ["x"], "", "\x1b", "\ud800"],
    "description": [3, ["x"], "\ud800"],
    "tags": [3, "a=b", ["a"], {1: "x"}, {"a": None}, {"a": ["x"]}, {"a=b": "x"}, {"mlflow.x": 1}],
    "properties": [3, "a=b", {1: "x"}, {"a": None}, {"a=b": "x"}],
    "target": [3, b"local", ["local"], Thing(), "mars", ""],
    "code": [3, b".", ["x"], Thing(), "a\0b", "x" * 5000, "", "hello.py"],
    "environment": [3, {"kind": "user"}, b"x", ["numpy"], Environment, Thing()],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(name, value, id=f"{name}-{number}") for name, values in WRONG.items()
     for number, value in enumerate(values)],
)  # fmt: skip
def test_a_wrong_argument_is_named(
    api: Api, workspace: Workspace, code: Path, name: str, value: Any
) -> None:
    with unchanged(api), pytest.raises(Invalid, match=rf"^{name}\b") as raised:
        workspace.plan("hello.py", **{name: value})
    assert str(raised.value.field).startswith(name)


@pytest.mark.parametrize(
    "script",
    [
        *(3, None, b"hello.py", [], [None], [["x"]], {"a": 1}, {"x"}, Thing()),
        *("", " ", "x" * 5000, "a\0b", "\ud800", "nope.py", "."),
    ],
)
def test_an_invalid_script_is_named(workspace: Workspace, code: Path, script: Any) -> None:
    with pytest.raises(Invalid, match="script"):
        workspace.plan(script)


def test_an_unknown_option_is_refused(workspace: Workspace, code: Path) -> None:
    options: dict[str, Any] = {"gpu": 1}
    with pytest.raises(Invalid, match=r"unknown option 'gpu'; did you mean 'gpus'\?"):
        workspace.plan("hello.py", **options)
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpu'"):
        workspace.submit("hello.py", **options)


CALLS: list[tuple[str, Callable[[Any], Any]]] = [
    ("url", lambda workspace: Workspace(url=3)),  # type: ignore[arg-type]
    ("token", lambda workspace: Workspace(url="http://127.0.0.1:1", token=b"x")),  # type: ignore[arg-type]
    ("token", lambda workspace: Workspace(url="http://127.0.0.1:1", token="\ud800")),
    ("name of a job", lambda workspace: workspace.jobs[3]),
    ("name of a job", lambda workspace: workspace.jobs[""]),
    ("name of a job", lambda workspace: workspace.jobs["a/b"]),
    ("name of a job", lambda workspace: workspace.jobs["x" * 100_000]),
    ("name of a target", lambda workspace: workspace.targets[None]),
    ("name of an environment", lambda workspace: workspace.environments[b"x"]),
    ("name of a model", lambda workspace: workspace.models[3]),
    ("name", lambda workspace: workspace.experiments[3]),
    ("limit", lambda workspace: workspace.jobs.list(limit="x")),
    ("limit", lambda workspace: workspace.jobs.list(limit=0)),
    ("limit", lambda workspace: workspace.experiments.get("Default", limit="x")),
    ("state", lambda workspace: workspace.jobs.list(state="zzz")),
    ("keep_seconds", lambda workspace: workspace.prune(keep_seconds="x")),
    ("environment", lambda workspace: workspace.submit(["true"], environment={"zzz": 1})),
    ("environment", lambda workspace: workspace.submit(["true"], environment=["numpy"])),
    ("packages", lambda _: Environment(packages=3)),  # type: ignore[arg-type]
    ("packages", lambda _: Environment(packages="numpy")),
    ("packages", lambda _: Environment(packages=[b"numpy"]).to_json()),  # type: ignore[list-item]
    ("python", lambda _: Environment(python=3.11)),  # type: ignore[arg-type]
    ("conda", lambda _: Environment(conda={"dependencies": []})),  # type: ignore[arg-type]
    ("requirements", lambda _: Environment(requirements=["numpy"])),  # type: ignore[arg-type]
    ("name", lambda _: Environment(name=3)),  # type: ignore[arg-type]
    ("path", lambda _: Environment.from_file(3)),  # type: ignore[arg-type]
    ("cannot be read", lambda _: Environment.from_file("a\0.txt").to_json()),
    ("cannot be read", lambda _: Environment.from_file("x" * 5000 + ".txt").to_json()),
]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_wrong_argument_of_another_call_is_named(
    workspace: Workspace, name: str, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(Invalid, match=name):
        call(workspace)


def test_wrong_arguments_about_a_job_are_named(workspace: Workspace, code: Path) -> None:
    job: Any = workspace.submit(["true"])
    job.wait()
    for name, call in {
        "attempt": lambda: job.logs(attempt="x"),
        "path": lambda: job.download(3),
        "to": lambda: job.download(to=3),
        "key": lambda: job.metric_history(3),
        "points": lambda: job.metric_history("x", points="y"),
        "timeout": lambda: job.wait(timeout="x"),
        "name": lambda: job.register_model(3, "outputs"),
        "tags": lambda: job.register_model("m", "outputs", tags=[1]),
        "tags.a": lambda: job.register_model("m", "outputs", tags={"a": 1}),
        "description": lambda: job.register_model("m", "outputs", description=3),
        "target": lambda: job.rerun(target=b"x"),
        "args": lambda: job.rerun(args="--lr 2"),
        "cpus": lambda: job.rerun(cpus="many"),
    }.items():
        with pytest.raises(Invalid, match=name):
            call()
    for name in ("\ud800", "none", "..", "a\0b"):
        with pytest.raises(NotFound):
            workspace.jobs[name]
