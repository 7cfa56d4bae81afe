"""The engines of the tests are real, keep to their limits, and leave nothing behind."""

import os
from pathlib import Path

import pytest

from tests.testbeds.engines import IMAGE, Engine, docker_engine, engines_missing, podman_engine
from tests.testbeds.namespaces import need

_EAT = "x = bytearray(200 << 20); print('ate', len(x))"


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


def test_a_container_runs_python_and_a_shell(engine: Engine) -> None:
    said = engine.cli("run", "--rm", IMAGE, "sh", "-c", "python -c 'print(6 * 7)'; id -un; ls /tmp")
    assert said == "42\nroot\n"


def test_containers_go_with_the_test(engine: Engine) -> None:
    engine.cli("run", "--detach", "--name", "left", IMAGE, "sleep", "4321")
    engine.restore()
    assert engine.cli("ps", "--all", "--quiet") == ""
    assert not [argv for _, argv in engine.namespace.processes() if argv == ["sleep", "4321"]]


def test_a_limit_of_memory_holds(engine: Engine) -> None:
    engine.cli("run", "--detach", "--name", "fat", "--memory=64m", IMAGE, "python", "-c", _EAT)
    assert engine.cli("wait", "fat").strip() == "137"
    assert engine.cli("logs", "fat") == ""


def test_a_limit_of_processors_is_set(engine: Engine) -> None:
    old, new = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max"
    look = f"if [ -e {new} ]; then cat {new}; else cat {old}; fi"
    said = engine.cli("run", "--rm", "--cpus=0.5", IMAGE, "sh", "-c", look)
    assert said.split()[0] == "50000"


def test_a_killed_daemon_comes_back_with_its_containers(engine: Engine) -> None:
    quick = "--stop-signal=KILL"  # at its start Docker ends what it finds running
    engine.cli("run", "--detach", "--name", "lasting", quick, IMAGE, "sleep", "4321")
    engine.kill()
    with pytest.raises(RuntimeError):
        engine.cli("ps")
    assert [argv for _, argv in engine.namespace.processes() if argv == ["sleep", "4321"]]
    engine.start()
    running = engine.cli("inspect", "--format={{.State.Running}}", "lasting").strip()
    assert running == ("false" if engine.name == "docker" else "true")


def test_docker_can_leave_containers_alive(tmp_path: Path) -> None:
    need(engines_missing("docker"))
    with docker_engine(tmp_path, live_restore=True) as engine:
        engine.cli("run", "--detach", "--name", "lasting", engine.load_image(), "sleep", "4321")
        engine.restart()
        assert engine.cli("inspect", "--format={{.State.Running}}", "lasting").strip() == "true"


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_nothing_is_left_behind(name: str, tmp_path: Path) -> None:
    need(engines_missing(name))
    start = {"docker": docker_engine, "podman": podman_engine}[name]
    before = _cgroups()
    with start(tmp_path) as engine:
        engine.cli("run", "--detach", engine.load_image(), "sleep", "4321")
        seen = engine.namespace.processes()
        assert ["sleep", "4321"] in [argv for _, argv in seen]
    assert not [pid for pid, _ in seen if Path("/proc", str(pid)).exists()]
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert _cgroups() == before


def _cgroups() -> list[Path]:
    return sorted(Path("/sys/fs/cgroup").glob(f"**/rt{os.getpid()}-docker*"))
