"""The engines of the tests are real, enforce limits, and leave nothing behind."""

import os
from pathlib import Path

import pytest

from tests.testbeds.engines import IMAGE, Engine, docker_engine, missing_for_engines, podman_engine
from tests.testbeds.namespaces import require

_ALLOCATE = "x = bytearray(200 << 20); print('allocated', len(x))"


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


def test_a_container_runs_python_and_a_shell(engine: Engine) -> None:
    output = engine.cli(
        "run", "--rm", IMAGE, "sh", "-c", "python -c 'print(6 * 7)'; id -un; ls /tmp"
    )
    assert output == "42\nroot\n"


def test_containers_are_removed_after_a_test(engine: Engine) -> None:
    engine.cli("run", "--detach", "--name", "leftover", IMAGE, "sleep", "4321")
    engine.restore()
    assert engine.cli("ps", "--all", "--quiet") == ""
    assert not [argv for _, argv in engine.namespace.processes() if argv == ["sleep", "4321"]]


def test_a_memory_limit_is_enforced(engine: Engine) -> None:
    engine.cli("run", "--detach", "--name", "fat", "--memory=64m", IMAGE, "python", "-c", _ALLOCATE)
    assert engine.cli("wait", "fat").strip() == "137"
    assert engine.cli("logs", "fat") == ""


def test_a_cpu_limit_is_set(engine: Engine) -> None:
    old, new = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max"
    read_quota = f"if [ -e {new} ]; then cat {new}; else cat {old}; fi"
    output = engine.cli("run", "--rm", "--cpus=0.5", IMAGE, "sh", "-c", read_quota)
    assert output.split()[0] == "50000"


def test_a_killed_daemon_comes_back_with_its_containers(engine: Engine) -> None:
    stop_signal = "--stop-signal=KILL"  # at its start, Docker stops running containers
    engine.cli("run", "--detach", "--name", "lasting", stop_signal, IMAGE, "sleep", "4321")
    engine.kill()
    with pytest.raises(RuntimeError):
        engine.cli("ps")
    assert [argv for _, argv in engine.namespace.processes() if argv == ["sleep", "4321"]]
    engine.start()
    running = engine.cli("inspect", "--format={{.State.Running}}", "lasting").strip()
    assert running == ("false" if engine.name == "docker" else "true")


def test_docker_can_keep_containers_running(tmp_path: Path) -> None:
    require(missing_for_engines("docker"))
    with docker_engine(tmp_path, live_restore=True) as engine:
        engine.cli("run", "--detach", "--name", "lasting", engine.load_image(), "sleep", "4321")
        engine.restart()
        assert engine.cli("inspect", "--format={{.State.Running}}", "lasting").strip() == "true"


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_engines_leave_nothing_behind(name: str, tmp_path: Path) -> None:
    require(missing_for_engines(name))
    start = {"docker": docker_engine, "podman": podman_engine}[name]
    before = _cgroups()
    with start(tmp_path) as engine:
        engine.cli("run", "--detach", engine.load_image(), "sleep", "4321")
        processes = engine.namespace.processes()
        assert ["sleep", "4321"] in [argv for _, argv in processes]
    assert not [pid for pid, _ in processes if Path("/proc", str(pid)).exists()]
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert _cgroups() == before


def _cgroups() -> list[Path]:
    return sorted(Path("/sys/fs/cgroup").glob(f"**/rt{os.getpid()}-docker*"))
