"""The other places in which jobs are killed: hosts with SSH, and containers of an engine."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.arena import Arena, Kill, Part, Submitted, eventually
from tests.chaos.processes import Process, kill_together, look
from tests.testbeds.engines import IMAGE, Engine
from tests.testbeds.hosts import Host

_ROOT = ".retarget-host"
FENCE = 10.0  # seconds: the least there can be


class OnHosts(Arena):
    """Jobs run on the first host, or on the pool of the others."""

    target = "lab"

    def __init__(self, root: Path, hosts: list[Host]) -> None:
        super().__init__(root)
        self.hosts = hosts
        # Hosts see this machine's files, but for those in /tmp.
        self.records = Path(tempfile.mkdtemp(prefix="retarget-chaos-", dir="/var/tmp"))
        self.records_there = str(self.records)

    @property
    def host(self) -> Host:
        return self.hosts[0]

    def attach(self) -> None:
        first, *others = (f"{host.user}@{host.address}" for host in self.hosts)
        config = {"key": self.host.key.read_text(), "linger": 30, "timeout": 5}
        pool = {"hosts": others, "fence": FENCE}
        for name, more in (("lab", {"address": first}), ("pool", pool)):
            new = {"name": name, "kind": "ssh", "config": config | more}
            self.call("POST", "/api/targets", new)

    def launches(self) -> list[Path]:
        folders = [host.home / _ROOT / "launches" for host in self.hosts]
        return [entry for folder in folders for entry in folder.glob("*")]

    def folder_of(self, runner: Process) -> Path:
        pids = [[pid for pid, _ in host.processes()] for host in self.hosts]
        found = (host for host, there in zip(self.hosts, pids, strict=True) if runner.pid in there)
        host = next(found, self.host)  # anywhere, if it has ended
        return host.path(runner.told[1])

    def processes(self) -> list[Process]:
        pids = [pid for host in self.hosts for pid, _ in host.processes()]
        there = [found for pid in pids if (found := look(pid)) is not None and found.is_alive]
        return [*(each for each in super().processes() if each.pid not in pids), *there]

    def agents(self, host: Host | None = None) -> list[Process]:
        """List the hands of the server on a host."""
        found = [look(pid) for pid, _ in (host or self.host).processes()]
        return [each for each in found if each is not None and each.is_alive and _is_agent(each)]

    def may_stay(self, process: Process) -> bool:
        agents = [agent.pid for host in self.hosts for agent in self.agents(host)]
        nurseries = self.nurseries()
        first = [each.pid for each in nurseries if each.parent in agents]
        return (
            super().may_stay(process)
            or process.pid in agents
            or (process in nurseries and process.parent in (*agents, *first))
            or _is_sshd(process)
        )

    def kill_everything(self, host: Host, job: Submitted, *, reboot: bool = False) -> None:
        """Kill all that runs on a host, which stays up or comes up again."""
        there = {pid for pid, _ in host.processes()}
        runners = [each for each in self.runners(job) if each.pid in there]
        work = [each for each in self.processes() if each.pid in there and not _is_sshd(each)]
        kill_together(work)  # so that no runner tells of its script's end
        host.kill_everything()
        seen = [(each, host.path(each.told[1])) for each in runners]
        self.kills += [self.account_of(each, job, folder) for each, folder in seen]
        host.reboot() if reboot else host.start_sshd()

    def silence(self, host: Host, job: Submitted) -> None:
        """Let nothing be heard of a host any more."""
        launch = self.launch_of(job)
        assert launch is not None
        host.link_down()
        self.kills.append(Kill("host", job.id, launch.name))

    def record_of(self, job: Submitted) -> Path:
        """Return what the first process of its present launch has said."""
        launch = self.launch_of(job)
        assert launch is not None
        return self.records / f"{launch.name}.0"

    def start_times(self, job: Submitted) -> list[float]:
        lines = [line.split() for line in (self.records / "starts").read_text().splitlines()]
        return [float(line[3]) for line in lines if line[2] == job.name]

    def remains(self) -> list[str]:
        left = super().remains()
        for host in self.hosts:
            left += [f"{host.name}: {path}" for path in host.home.glob("**/*.part")]
            left += [f"{host.name}: {path}" for path in host.path("/tmp").iterdir()]
        return left

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.records)


class InContainers(Arena):
    """Jobs run in containers of one engine."""

    target = "box"

    def __init__(self, root: Path, engine: Engine) -> None:
        super().__init__(root)
        self.engine = engine
        self.records_there = "/retarget/cache/chaos"  # in the volume that all containers have

    def attach(self) -> None:
        config = {"engine": self.engine.url, "image": IMAGE, "linger": 30}
        self.call("POST", "/api/targets", {"name": "box", "kind": "container", "config": config})

    def submit(self, kind: str, **options: Any) -> Submitted:
        self._make_records()
        return super().submit(kind, **options)

    def _make_records(self) -> None:
        """Have the records in the volume, which may be new."""
        self.engine.cli("volume", "create", "retarget-cache")
        at = ("volume", "inspect", "--format={{.Mountpoint}}", "retarget-cache")
        self.records = Path(self.engine.cli(*at).strip()) / "chaos"
        self.records.mkdir(exist_ok=True)

    def containers(self, job: Submitted | None = None) -> list[str]:
        which = ("--filter", f"label=retarget.job={job.name}") if job else ()
        return self.engine.cli("ps", "--all", "--no-trunc", "--quiet", *which).split()

    def launches(self) -> list[Path]:
        """List those of containers that run."""
        return [self.folder_of(each) for each in self.processes() if _is_runner(each)]

    def folder_of(self, runner: Process) -> Path:
        return Path(f"/proc/{runner.pid}/root{runner.told[1]}")

    def processes(self) -> list[Process]:
        pids = [pid for pid, _ in self.engine.namespace.processes()]
        found = [look(pid) for pid in pids]
        inside = [each for each in found if each is not None and each.is_alive and _is_ours(each)]
        return [*(each for each in super().processes() if each.pid not in pids), *inside]

    def agents(self) -> list[Process]:
        return [each for each in self.processes() if _is_agent(each)]

    def kill(
        self, parts: Iterable[Part], job: Submitted, *, scripts: list[Process] | None = None
    ) -> list[Kill]:
        """Kill as elsewhere; but what a container has in it cannot be seen when it is dead."""
        wanted = set(parts)
        if "runner" not in wanted:
            return super().kill(wanted, job, scripts=scripts)
        victims = self.runners(job)
        told = self._halt(victims, job)
        hit = kill_together(victims)
        kills = [kill for each, kill in zip(victims, told, strict=True) if each in hit]
        self.kills += kills
        rest = wanted - {"runner", "script"}  # a script ends with its container
        return kills + super().kill(rest, job)

    def stop_runners(self, job: Submitted) -> list[Kill]:
        """Halt the runners of a job, and tell how far they have come."""
        return self._halt(self.runners(job), job)

    def _halt(self, victims: list[Process], job: Submitted) -> list[Kill]:
        for each in victims:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGSTOP)
        eventually(lambda: all(_is_halted(each) for each in victims), "they are halted")
        return [self.account_of(each, job, self.folder_of(each)) for each in victims]

    def remains(self) -> list[str]:
        return super().remains() + [f"container {each}" for each in self.containers()]


def _is_sshd(process: Process) -> bool:
    return "sshd" in process.command[0]


def _is_agent(process: Process) -> bool:
    return process.told[:1] == ("agent",)


def _is_runner(process: Process) -> bool:
    return process.told[:1] == ("run",)


def _is_ours(process: Process) -> bool:
    """Tell what is in a container from what the engine is made of."""
    return _is_runner(process) or _is_agent(process) or "CHAOS" in process.environ


def _is_halted(process: Process) -> bool:
    now: Any = look(process.pid)
    return now is None or now.state in "TZX"
