"""What the calls of `track` write, and what they refuse."""

import json
import subprocess

import pytest

from tests.track.conftest import TrackHarness


def test_metrics_have_a_step_and_a_time(harness: TrackHarness) -> None:
    harness.run("track.log(loss=0.5, acc=1, step=3); track.log({'val/loss': 2.5}, step=4, lr=1e-9)")
    harness.run("track.log('val/loss', 0.5, step=5)")
    third, *_ = [line for line in harness.lines() if line["s"] == 5]
    assert third["m"] == {"val/loss": 0.5}
    first, second = [line for line in harness.lines() if line["s"] != 5]
    assert (first["m"], first["s"]) == ({"loss": 0.5, "acc": 1.0}, 3)
    assert (second["m"], second["s"]) == ({"val/loss": 2.5, "lr": 1e-9}, 4)
    assert 1.7e12 < first["t"] <= second["t"]


def test_without_a_step_every_metric_counts_its_own_steps(harness: TrackHarness) -> None:
    harness.run(
        "for n in range(4):\n    track.log(loss=n)\n    if n % 2: track.log(loss=9, acc=n)\n"
        "track.log(loss=0, step=100); track.log(loss=1)"
    )
    assert [step for step, _ in harness.points("loss")] == [0, 1, 2, 3, 4, 5, 100, 101]
    assert [step for step, _ in harness.points("acc")] == [0, 1]


def test_numbers_that_json_lacks_are_written_as_strings(
    harness: TrackHarness,
) -> None:
    harness.run(
        "track.log(a=float('nan'), b=float('inf'), c=-float('inf'), d=1e308, e=-0.0, f=True)"
    )
    values = harness.lines()[0]["m"]
    assert [values[name] for name in "abcdf"] == ["NaN", "Infinity", "-Infinity", 1e308, 1.0]
    assert str(values["e"]) == "-0.0"


def test_values_are_anything_that_float_accepts(harness: TrackHarness) -> None:
    harness.run(
        "class Scalar:\n"
        "    def __float__(self): return 0.25\n"
        "    def __int__(self): return 7\n"
        "    def __eq__(self, other): return other == 7\n"
        "from fractions import Fraction\n"
        "track.log(tensor=Scalar(), part=Fraction(1, 4), step=Scalar())"
    )
    line = harness.lines()[0]
    assert (line["m"], line["s"]) == ({"tensor": 0.25, "part": 0.25}, 7)


def test_params_and_tags_are_strings(harness: TrackHarness) -> None:
    harness.run(
        "track.param(lr=0.1, layers=[1, 2]); track.param('a/b', None)\n"
        "track.param({'x y': 'ü\\n'})\n"
        "track.tag(stage='dev'); track.tag('key', 'by name'); track.tag({'odd': '\\udcff\"'})"
    )
    params = {key: value for line in harness.lines() for key, value in line.get("p", {}).items()}
    tags = {key: value for line in harness.lines() for key, value in line.get("g", {}).items()}
    assert params == {"lr": "0.1", "layers": "[1, 2]", "a/b": "None", "x y": "ü\n"}
    assert tags == {"stage": "dev", "key": "by name", "odd": '\\udcff"'}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("track.log(loss='high')", "loss: 'high' is not a number"),
        ("track.log(loss=None)", "loss: None is not a number"),
        ("track.log(loss=10 ** 400)", "is not a number"),
        ("track.log(loss=[1, 2])", "loss: [1, 2] is not a number"),
        ("track.log('loss', step=1)", "track.log: pass a dict or name=value, got 'loss'"),
        ("track.log({'a': 1, 'b*': 2})", "the name 'b*' may have letters, digits"),
        ("track.log({'../a': 1})", "the name '../a' must be a relative path"),
        ("track.log({'a//b': 1})", "the name 'a//b' must be a relative path"),
        ("track.log({'a\\n': 1})", "may have letters, digits"),
        ("track.log({'': 1})", "must have 1 to 250 characters"),
        ("track.log({'a' * 251: 1})", "must have 1 to 250 characters"),
        ("track.log({3: 1})", "a name must be a string, got 3"),
        ("track.log(a=1, step=1.5)", "step: 1.5 is not a 64-bit integer"),
        ("track.log(a=1, step=2 ** 63)", "is not a 64-bit integer"),
        ("track.log(a=1, step='last')", "step: 'last' is not an integer"),
        ("track.param('lr', 1, 2)", "track.param: pass a name and a value, a dict, or name=value"),
        ("track.param(lr='x' * 6001)", "lr: the value of a param may have 6000 characters"),
        ("track.tag(note='x' * 8001)", "note: the value of a tag may have 8000 characters"),
        ("track.artifact(__file__, name='../up')", "name: '../up' must be a path below"),
        ("track.image('a', object())", "image: pass a path, bytes, a PIL image"),
        ("track.table('t', 3)", "rows: pass a list of dicts, a dict of columns"),
        ("track.log('a', 1, 2)", "track.log: pass a name and a value, a dict, or name=value"),
        ("track.table('t', [1, 2])", "rows: pass a list of dicts, a dict of columns"),
        ("track.table('t', {'a': [1], 'b': []})", "rows: the columns differ in length"),
    ],
)
def test_invalid_arguments_are_refused_at_the_call(
    current_harness: TrackHarness, call: str, message: str
) -> None:
    (current_harness.folder / "file").touch()
    assert message in current_harness.run_failing(call.replace("__file__", "'file'"))
    assert current_harness.lines() == []


def test_names_may_be_in_any_script(harness: TrackHarness) -> None:
    harness.run("track.log({'Präzision': 1, '損失': 2, 'a b:c-d.e': 3})")
    assert set(harness.lines()[0]["m"]) == {"Präzision", "損失", "a b:c-d.e"}


def test_thousands_of_metrics_in_one_call_become_several_lines(
    current_harness: TrackHarness,
) -> None:
    current_harness.run("track.log({f'm{n}': n for n in range(2500)}, step=1)")
    assert [len(line["m"]) for line in current_harness.lines()] == [1000, 1000, 500]


def test_a_child_process_writes_to_its_own_file(harness: TrackHarness) -> None:
    harness.run(
        "import os\n"
        "track.log(a=1)\n"
        "for _ in range(2):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        for n in range(500): track.log(b=n, step=n)\n"
        "        os._exit(0)\n"
        "for n in range(500): track.log(a=n, step=n)\n"
        "assert [os.wait()[1] for _ in range(2)] == [0, 0]"
    )
    assert len(list(harness.track.glob("*.jsonl"))) == 3
    assert (len(harness.points("a")), len(harness.points("b"))) == (501, 1000)


def test_a_fork_while_other_threads_log_does_not_hang(current_harness: TrackHarness) -> None:
    current_harness.run(
        "import os, signal, threading\n"
        "going = True\n"
        "def work():\n"
        "    while going: track.log(a=1)\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(50):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        signal.alarm(20)\n"
        "        track.log(b=1)\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "going = False\n"
        "for thread in threads: thread.join()"
    )
    assert len(current_harness.points("b")) == 50
    steps = [step for step, _ in current_harness.points("a")]
    assert sorted(steps) == list(range(len(steps)))


def test_a_signal_handler_may_log_too(current_harness: TrackHarness) -> None:
    current_harness.run(
        "import os, signal\n"
        "signal.signal(signal.SIGALRM, lambda *_: track.log(handled=1))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "for n in range(20000): track.log(a=n, step=n)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)"
    )
    assert [step for step, _ in current_harness.points("a")] == list(range(20000))
    assert current_harness.points("handled")


def test_data_of_a_call_that_returned_survives_sigkill(harness: TrackHarness) -> None:
    with pytest.raises(AssertionError):
        harness.run(
            "import os\nfor n in range(100): track.log(a=n, step=n)\nos.kill(os.getpid(), 9)"
        )
    assert harness.points("a") == [(n, float(n)) for n in range(100)]


def test_a_line_that_does_not_fit_on_the_disk_is_removed(current_harness: TrackHarness) -> None:
    current_harness.run(
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "track.param(first=1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "try: track.param(long='x' * 200)\n"
        "except OSError as error: assert 'disk is full' in str(error), error\n"
        "else: raise SystemExit('no error')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "track.param(last=1); track.flush()"
    )
    assert current_harness.lines() == [{"p": {"first": "1"}}, {"p": {"last": "1"}}]


def test_outside_of_a_job_it_writes_to_the_current_folder_and_prints_that_once(
    harness: TrackHarness,
) -> None:
    stderr = harness.run(
        "import os\n"
        "track.log(a=1); track.table('t', {'a': [1]})\n"
        "if os.fork() == 0: track.log(a=2); os._exit(0)\n"
        "assert os.wait()[1] == 0",
        RETARGET_TRACK="",
    )
    assert stderr == "retarget.track: not running in a Retarget job; writing to retarget-track/\n"
    folder = harness.folder / "retarget-track"
    assert len(list(folder.glob("*.jsonl"))) == 2
    assert len(list(folder.glob("*/t.json"))) == 1
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_missing_track_folder_is_not_an_error(
    current_harness: TrackHarness,
) -> None:
    stderr = current_harness.run("track.log(a=1)", RETARGET_TRACK="/nowhere/at/all")
    assert "folder /nowhere/at/all not found; writing to retarget-track/" in stderr


def test_the_import_alone_writes_nothing_and_loads_little(harness: TrackHarness) -> None:
    code = (
        "import sys; before = set(sys.modules)\nfrom retarget import track\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    env = {"PYTHONPATH": str(desk_source()), "RETARGET_TRACK": ""}
    loaded = subprocess.check_output(
        [harness.python, "-S", "-c", code], cwd=harness.folder, env=env, text=True
    ).split()
    assert {"typing", "re", "json", "shutil", "threading", "subprocess"}.isdisjoint(loaded), loaded
    assert not list(harness.folder.iterdir())


def desk_source() -> str:
    import retarget

    return str(retarget.__path__[0]).rpartition("/")[0]


def test_it_is_an_attribute_of_the_package_too(current_harness: TrackHarness) -> None:
    current_harness.run("import retarget\nassert retarget.track is track\nretarget.track.log(a=1)")
    assert current_harness.points("a") == [(0, 1.0)]


def test_a_table_has_the_format_of_mlflow_clients(harness: TrackHarness) -> None:
    harness.run(
        "import datetime\n"
        "track.table('eval/rows', [{'q': 'a', 'n': 1}, {'q': 'b', 'x': float('nan')}])\n"
        "track.table('columns.json', {'a': [1, 2], 'b': (datetime.date(2026, 1, 2), None)})\n"
        "class Frame:\n"
        "    def to_dict(self, orient): return {'list': {'c': [3]}}[orient]\n"
        "track.table('frame', Frame())"
    )
    assert json.loads(harness.artifact("eval/rows.json")) == {
        "columns": ["q", "n", "x"],
        "data": [["a", 1, None], ["b", None, None]],
    }
    assert json.loads(harness.artifact("columns.json")) == {
        "columns": ["a", "b"],
        "data": [[1, "2026-01-02"], [2, None]],
    }
    assert json.loads(harness.artifact("frame.json")) == {"columns": ["c"], "data": [[3]]}
    paths = [line["a"] for line in harness.lines()]
    assert paths[0] == {"path": "eval/rows.json", "type": "table"}
