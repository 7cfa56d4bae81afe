"""How objects of the SDK look in a terminal, in a notebook and in completion."""

import inspect
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from retarget import Environment, Invalid, RetargetError, ServerUnreachable, Workspace, track
from retarget.sdk.display import Listing
from retarget.sdk.records import Output, Target, Transition, record
from retarget.sdk.submission import Options

UNREACHABLE = "http://127.0.0.1:1"


def html(value: Any) -> str:
    return value._repr_html_()


def completions(value: Any) -> list[str]:
    return value._ipython_key_completions_()


def test_collections_show_tables_and_complete_names(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = Workspace()
    job = workspace.submit(["sh", "-c", "echo '<b>' > outputs/b"], name="first", experiment="a<b")
    job.wait()
    job.register_model("iris", "outputs/b").alias("champion")
    assert repr(workspace) == f"<Workspace of this machine ({home})>"
    assert repr(workspace.jobs) == f"<Jobs of this machine ({home})>"
    assert repr(job) == "<Job first succeeded>"
    assert repr(workspace.targets["local"]) == "<Target local (local)>"
    assert repr(workspace.experiments["a<b"]) == "<Experiment a<b: 1 run>"
    for shown in (job, workspace.jobs, workspace.jobs.list()):
        assert "<td" in html(shown)
        assert "a&lt;b" in html(shown)
        assert "a<b" not in html(shown)
    assert "a&lt;b" in html(workspace.experiments["a<b"])
    assert "succeeded=1" in html(workspace)
    assert "outputs/b" in html(job.outputs())
    assert "<p>none</p>" in html(workspace.environments)
    assert completions(workspace.jobs) == ["first"]
    assert completions(workspace.targets) == ["local"]
    assert "a<b" in completions(workspace.experiments)
    assert completions(workspace.models) == ["iris"]
    assert completions(workspace.models["iris"]) == ["champion", "latest"]
    assert completions(workspace.environments) == []


def test_an_environment_shows_only_what_is_set() -> None:
    environment = Environment(requirements=Path("a.txt"), packages=["numpy>=2"], name="names")
    text = "Environment(requirements='a.txt', packages=['numpy>=2'], name='names')"
    assert repr(environment) == text
    assert eval(text) == replace(environment, requirements="a.txt")
    assert repr(Environment()) == "Environment()"
    assert "numpy&gt;=2" in html(environment)
    assert "conda" not in html(environment)


def test_an_unreachable_server_does_not_break_the_display() -> None:
    workspace = Workspace(UNREACHABLE, "token")
    assert repr(workspace.models) == f"<Models of {UNREACHABLE}>"
    assert (html(workspace), html(workspace.jobs), completions(workspace.jobs)) == (None, None, [])


def test_long_cells_are_shortened() -> None:
    assert "…" in html(Listing([Output("x" * 1000, 1, "d")]))


def test_times_are_aware_and_in_utc() -> None:
    raw = {"version": 1, "event": "started", "state": "running", "reason": ""}
    transition = record(Transition, raw | {"at": "2024-05-06T09:08:09.000001+02:00"})
    assert transition.at == datetime(2024, 5, 6, 7, 8, 9, 1, tzinfo=UTC)
    assert transition.at.tzinfo is UTC
    for wrong in ("2024-05-06T07:08:09", "soon", 1.5, None, "0001-01-01T00:00:00+14:00"):
        with pytest.raises(ServerUnreachable, match="the field 'at'"):
            record(Transition, raw | {"at": wrong})


def test_a_target_without_an_answer_shows_its_problem() -> None:
    target = Target("lab", "ssh", {}, {}, None, None, "no route to host", {"queued": 0}, {})
    assert repr(target) == "<Target lab (ssh): no route to host>"
    assert "no route to host" in html(target)


def test_submit_spells_out_and_documents_every_option() -> None:
    parameters = inspect.signature(Workspace.submit).parameters
    assert set(Options.__annotations__) <= set(parameters)
    assert not any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    text = Workspace.submit.__doc__ or ""
    assert [name for name in parameters if name != "self" and f" {name}: " not in text] == []


def test_track_offers_only_its_public_names() -> None:
    assert sorted(dir(track)) == sorted(track.__all__)


def test_a_notebook_shows_one_frame_of_the_user() -> None:
    def call() -> None:
        Workspace(UNREACHABLE, "\n")

    error = raised_by(call)
    [source, line, blank, message] = render(error)
    assert source.startswith(f"File {__file__}, line ")
    assert source.endswith(", in call")
    assert (line.strip(), blank) == ('Workspace(UNREACHABLE, "\\n")', "")
    assert message.startswith("Invalid: the token")
    assert render(Invalid("two\nlines")) == ["Invalid: two", "lines"]


def test_a_notebook_shows_the_public_class_of_an_error() -> None:
    error = raised_by(lambda: Workspace(UNREACHABLE).jobs["x"])
    assert render(error)[-1].startswith("ServerUnreachable: ")


def test_ipython_itself_shows_one_frame() -> None:
    code = "from retarget import Workspace\nWorkspace(3)"
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert "Workspace(3)\n\nInvalid: url: 3 is not a string" in done.stdout
    assert "sdk/workspace.py" not in done.stdout


def raised_by(call: Any) -> RetargetError:
    with pytest.raises(RetargetError) as raised:
        call()
    return raised.value


def render(error: Any) -> list[str]:
    return error._render_traceback_()
