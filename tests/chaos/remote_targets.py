"""Chaos servers whose jobs run elsewhere: on SSH hosts, and in containers of an engine."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.chaos_server import ChaosServer, Kill, Part, Submitted, eventually
from tests.chaos.processes import Process, kill_together, read_process
from tests.testbeds.engines import IMAGE, Engine
from tests.testbeds.hosts import SshHost

_ROOT = ".retarget-host"
LOST_AFTER = 10.0  # seconds: the smallest allowed value


class OnHosts(ChaosServer):
    """Jobs run on the first host, or on the pool of the others."""

    target = "lab"

    def __init__(self, root: Path, hosts: list[SshHost]) -> None:
        super().__init__(root)
        self.hosts = hosts
        # Hosts see this machine's files, except those in /tmp.
        self.records = Path(tempfile.mkdtemp(prefix="retarget-chaos-", dir="/var/tmp"))
        self.remote_records = str(self.records)

    @property
    def host(self) -> SshHost:
        return self.hosts[0]

    def attach(self) -> None:
        first, *others = (f"{host.user}@{host.address}" for host in self.hosts)
        config = {"key": self.host.key.read_text(), "linger": 30, "timeout": 5}
        pool = {"hosts": others, "lost_after": LOST_AFTER}
        for name, addresses in (("lab", {"address": first}), ("pool", pool)):
            target = {"name": name, "kind": "ssh", "config": config | addresses}
            self.call("POST", "/api/targets", target)

    def launches(self) -> list[Path]:
        folders = [host.home / _ROOT / "launches" for host in self.hosts]
        return [entry for folder in folders for entry in folder.glob("*")]

    def folder_of(self, runner: Process) -> Path:
        pids = [[pid for pid, _ in host.processes()] for host in self.hosts]
        hosts = (host for host, own in zip(self.hosts, pids, strict=True) if runner.pid in own)
        host = next(hosts, self.host)  # any host if the runner has ended
        return host.path(runner.arguments[1])

    def processes(self) -> list[Process]:
        pids = [pid for host in self.hosts for pid, _ in host.processes()]
        remote = [process for pid in pids if (process := read_process(pid)) and process.is_alive]
        return [*(process for process in super().processes() if process.pid not in pids), *remote]

    def agents(self, host: SshHost | None = None) -> list[Process]:
        """List the agents on a host."""
        inspected = [read_process(pid) for pid, _ in (host or self.host).processes()]
        return [
            process for process in inspected if process and process.is_alive and _is_agent(process)
        ]

    def belongs_to_server(self, process: Process) -> bool:
        agents = [agent.pid for host in self.hosts for agent in self.agents(host)]
        fork_servers = self.fork_servers()
        direct = [process.pid for process in fork_servers if process.parent in agents]
        return (
            super().belongs_to_server(process)
            or process.pid in agents
            or (process in fork_servers and process.parent in (*agents, *direct))
            or _is_sshd(process)
        )

    def kill_everything(self, host: SshHost, job: Submitted, *, reboot: bool = False) -> None:
        """Kill all processes on a host, which stays up or reboots."""
        pids = {pid for pid, _ in host.processes()}
        runners = [process for process in self.runners(job) if process.pid in pids]
        work = [
            process for process in self.processes() if process.pid in pids and not _is_sshd(process)
        ]
        kill_together(work)  # so that no runner reports the end of its script
        host.kill_everything()
        folders = [(process, host.path(process.arguments[1])) for process in runners]
        self.kills += [self.describe_kill(process, job, folder) for process, folder in folders]
        host.reboot() if reboot else host.start_sshd()

    def silence(self, host: SshHost, job: Submitted) -> None:
        """Cut a host off from the network."""
        launch = self.launch_of(job)
        assert launch is not None
        host.link_down()
        self.kills.append(Kill("host", job.id, launch.name))

    def record_of(self, job: Submitted) -> Path:
        """Return the record of what the first process of its current launch has written."""
        launch = self.launch_of(job)
        assert launch is not None
        return self.records / f"{launch.name}.0"

    def start_times(self, job: Submitted) -> list[float]:
        lines = [line.split() for line in (self.records / "starts").read_text().splitlines()]
        return [float(line[3]) for line in lines if line[2] == job.name]

    def leftovers(self) -> list[str]:
        leftovers = super().leftovers()
        for host in self.hosts:
            leftovers += [f"{host.name}: {path}" for path in host.home.glob("**/*.part")]
            leftovers += [f"{host.name}: {path}" for path in host.path("/tmp").iterdir()]
        return leftovers

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.records)


class InContainers(ChaosServer):
    """Jobs run in containers of one engine."""

    target = "box"

    def __init__(self, root: Path, engine: Engine) -> None:
        super().__init__(root)
        self.engine = engine
        self.remote_records = "/retarget/cache/chaos"  # in the volume that all containers mount

    def attach(self) -> None:
        config = {"engine": self.engine.url, "image": IMAGE, "linger": 30}
        self.call("POST", "/api/targets", {"name": "box", "kind": "container", "config": config})

    def submit(self, kind: str, **options: Any) -> Submitted:
        self._make_records()
        return super().submit(kind, **options)

    def _make_records(self) -> None:
        """Create the folder of the records in the volume, which may be new."""
        self.engine.cli("volume", "create", "retarget-cache")
        at = ("volume", "inspect", "--format={{.Mountpoint}}", "retarget-cache")
        self.records = Path(self.engine.cli(*at).strip()) / "chaos"
        self.records.mkdir(exist_ok=True)

    def containers(self, job: Submitted | None = None) -> list[str]:
        which = ("--filter", f"label=retarget.job={job.name}") if job else ()
        return self.engine.cli("ps", "--all", "--no-trunc", "--quiet", *which).split()

    def launches(self) -> list[Path]:
        """List the launch folders in running containers."""
        return [self.folder_of(process) for process in self.processes() if _is_runner(process)]

    def folder_of(self, runner: Process) -> Path:
        return Path(f"/proc/{runner.pid}/root{runner.arguments[1]}")

    def processes(self) -> list[Process]:
        pids = [pid for pid, _ in self.engine.namespace.processes()]
        inspected = [read_process(pid) for pid in pids]
        inside = [
            process
            for process in inspected
            if process and process.is_alive and _is_in_container(process)
        ]
        return [*(process for process in super().processes() if process.pid not in pids), *inside]

    def agents(self) -> list[Process]:
        return [process for process in self.processes() if _is_agent(process)]

    def kill(
        self, parts: Iterable[Part], job: Submitted, *, scripts: list[Process] | None = None
    ) -> list[Kill]:
        """Kill these parts. The files of a container are read first: they end with it."""
        targets = set(parts)
        if "runner" not in targets:
            return super().kill(targets, job, scripts=scripts)
        runners = self.runners(job)
        states = self._halt(runners, job)
        killed = kill_together(runners)
        kills = [kill for process, kill in zip(runners, states, strict=True) if process in killed]
        self.kills += kills
        rest = targets - {"runner", "script"}  # a script ends with its container
        return kills + super().kill(rest, job)

    def stop_runners(self, job: Submitted) -> list[Kill]:
        """Halt the runners of a job, and return how far they have come."""
        return self._halt(self.runners(job), job)

    def _halt(self, runners: list[Process], job: Submitted) -> list[Kill]:
        for process in runners:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
        eventually(lambda: all(_is_halted(process) for process in runners), "they are halted")
        return [self.describe_kill(process, job, self.folder_of(process)) for process in runners]

    def leftovers(self) -> list[str]:
        return super().leftovers() + [f"container {container}" for container in self.containers()]


def _is_sshd(process: Process) -> bool:
    return "sshd" in process.command[0]


def _is_agent(process: Process) -> bool:
    return process.arguments[:1] == ("agent",)


def _is_runner(process: Process) -> bool:
    return process.arguments[:1] == ("run",)


def _is_in_container(process: Process) -> bool:
    """Return whether a process runs in a container, and is not part of the engine."""
    return _is_runner(process) or _is_agent(process) or "CHAOS" in process.environ


def _is_halted(process: Process) -> bool:
    now: Any = read_process(process.pid)
    return now is None or now.state in "TZX"
