"""The ssh driver keeps the contract on real hosts, and reports exactly why a host is unusable."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from retarget.core.driver import Driver, Handle, Launch, Phase
from retarget.core.errors import Invalid, TargetUnreachable
from retarget.core.links import Links
from retarget.core.targets import Inventory
from retarget.drivers import connect as connect_to
from retarget.drivers import ssh
from retarget.drivers._ssh_transport import parse_address
from retarget.testing import Connect, ContractHarness, DriverContract, Receiver
from tests.runner.harness import wheel
from tests.testbeds.hosts import PASSWORD, SshHost, missing_for_ssh_hosts, start_ssh_hosts
from tests.testbeds.namespaces import require, wait_until

_CARRIED_VERSION = """
try:
    import carried
    print(carried.VERSION)
except ImportError:
    print("none")
"""
Check = Callable[..., tuple[Inventory, dict[str, Any]]]


class SshHarness:
    """Finds the launches of these tests and their processes on an SSH host."""

    ssh_host: SshHost
    root: str

    @pytest.fixture
    def connect(self, ssh_host: SshHost, tmp_path: Path, links: Links) -> Connect:
        self.ssh_host = ssh_host
        self.root = f"~/{tmp_path.name}"
        config = {
            "address": f"{self.ssh_host.user}@{self.ssh_host.address}",
            "key": self.ssh_host.key.read_text(),
            "root": self.root,
            "linger": 30,
        }
        return lambda: connect_to("ssh", config, links)

    @pytest.fixture
    def connect_nowhere(self, links: Links) -> Connect:
        return lambda: connect_to("ssh", {"address": "127.0.0.1", "port": 9, "timeout": 5}, links)

    def runner_pids(self, handle: Handle) -> list[int]:
        key = handle.partition("@")[0]
        return [
            pid
            for pid, argv in self.ssh_host.processes()
            if "run" in argv and any(word.endswith(f"/launches/{key}") for word in argv)
        ]

    def processes_of(self, launch: Launch) -> list[int]:
        variable = f"RETARGET_LAUNCH={launch.key}".encode()
        return [
            pid
            for pid, _ in self.ssh_host.processes()
            if variable in _read(Path(f"/proc/{pid}/environ")).split(b"\0")
        ]

    def alive(self, pid: int) -> bool:
        """Return whether a process of the host runs; `pid` is its pid on the host."""
        return any(_pid_inside(process) == pid for process, _ in self.ssh_host.processes())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def traces(self, handle: Handle) -> list[Path]:
        key = handle.partition("@")[0]
        folder = self.ssh_host.home / self.root.removeprefix("~/")
        return [path for path in folder.rglob("*") if key in path.name]


@pytest.mark.targets
class TestSsh(SshHarness, DriverContract):
    pass


def _new_key() -> str:
    key = asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]
    return key.export_private_key().decode()


def _write_bashrc(ssh_host: SshHost, commands: str) -> None:
    (ssh_host.home_of("ml") / ".bashrc").write_text(f"{commands}\n")


def _pid_inside(pid: int) -> int:
    for line in _read(Path(f"/proc/{pid}/status")).decode().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class TestAttaching:
    """Every problem of a host has its own message."""

    @pytest.fixture
    def check(self, ssh_host: SshHost, links: Links) -> Check:
        def check(**config: Any) -> tuple[Inventory, dict[str, Any]]:
            settings = {"address": f"ml@{ssh_host.address}", "timeout": 20}
            if "password" not in config:
                settings["key"] = ssh_host.key.read_text()
            driver = connect_to("ssh", settings | config, links)
            assert isinstance(driver, ssh.Driver)
            return driver.check(), driver.settle()

        return check

    def test_the_inventory_of_a_host_is_reported(self, check: Check, ssh_host: SshHost) -> None:
        inventory, settings = check()
        (node,) = inventory.nodes
        assert (node.name, node.unavailable) == (ssh_host.address, "")
        assert node.cpus == os.cpu_count()
        assert inventory.details["python"].startswith("3.")
        assert inventory.details["host key"].startswith("SHA256:")
        assert settings["host_keys"][ssh_host.address].split()[:2] == ssh_host.host_key.split()[:2]

    def test_a_password_is_accepted(self, check: Check) -> None:
        inventory, _ = check(password=PASSWORD)
        assert inventory.nodes[0].cpus

    def test_a_wrong_password_is_reported(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match="login was refused: the password is wrong"):
            check(password="not that")

    def test_with_a_password_no_key_is_tried(
        self, check: Check, ssh_host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        key = tmp_path / ".ssh/id_ed25519"
        key.parent.mkdir(mode=0o700)
        key.write_text(ssh_host.key.read_text())
        key.chmod(0o600)
        with pytest.raises(TargetUnreachable, match="login was refused: the password is wrong"):
            check(password="not that")
        assert check(password=PASSWORD)[0].nodes

    def test_a_key_that_is_not_accepted_is_reported(self, check: Check) -> None:
        other = _new_key()
        with pytest.raises(TargetUnreachable, match="the key is not accepted"):
            check(key=other)

    def test_an_encrypted_key_needs_its_passphrase(self, check: Check, ssh_host: SshHost) -> None:
        key = asyncssh.import_private_key(ssh_host.key.read_text())
        locked = key.export_private_key("openssh", passphrase="open sesame", rounds=50).decode()
        with pytest.raises(TargetUnreachable, match="the key is encrypted; pass its passphrase"):
            check(key=locked)
        with pytest.raises(TargetUnreachable, match="the passphrase is wrong"):
            check(key=locked, passphrase="open barley")
        assert check(key=locked, passphrase="open sesame")[0].nodes

    def test_an_invalid_key_is_reported(self, check: Check, links: Links) -> None:
        with pytest.raises(Invalid, match="this is not a private key"):
            connect_to(
                "ssh", {"address": "lab1", "key": "ssh-ed25519 AAAA of the wrong half"}, links
            )
        broken = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
        with pytest.raises(TargetUnreachable, match="the key cannot be read"):
            check(key=broken)

    def test_a_missing_python_is_reported(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match=r"no Python 3\.8 or newer is at /usr/bin/nope"):
            check(python="/usr/bin/nope")

    @pytest.mark.parametrize(
        ("config", "sentence"),
        [
            ({"address": "ml@lab1", "user": "me"}, "every address already has a user"),
            ({"hosts": ["lab1:22", "lab2:22"], "port": 23}, "every address already has a port"),
            ({"address": "lab1", "hosts": ["lab2"]}, "not both"),
        ],
    )
    def test_contradictory_settings_are_refused(
        self, config: dict[str, Any], sentence: str, links: Links
    ) -> None:
        with pytest.raises(Invalid, match=sentence):
            connect_to("ssh", config, links)

    def test_an_unreachable_jump_host_is_named(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match=r"at jump host 127\.0\.0\.1:1: conn"):
            check(jump="ml@127.0.0.1:1")

    def test_a_port_without_a_server_is_reported(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match="connection refused: no SSH server listens at"):
            check(port=2)

    def test_an_unknown_name_is_reported(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match=r"'nowhere\.invalid' cannot be resolved"):
            check(address="nowhere.invalid")

    def test_a_silent_host_is_reported(self, check: Check, ssh_host: SshHost) -> None:
        ssh_host.link_down()
        with pytest.raises(TargetUnreachable, match=r"no answer within 2 s \(timeout\)"):
            check(timeout=2)

    def test_a_host_without_python_is_reported(self, check: Check, ssh_host: SshHost) -> None:
        ssh_host.hide_python()
        with pytest.raises(TargetUnreachable, match=r"no Python 3\.8 or newer was found"):
            check()

    def test_a_read_only_home_is_reported(self, check: Check, ssh_host: SshHost) -> None:
        ssh_host.make_home_read_only()
        with pytest.raises(TargetUnreachable, match="is not writable: Read-only file system"):
            check()

    def test_a_changed_host_key_is_refused(self, check: Check, ssh_host: SshHost) -> None:
        _, settings = check()
        ssh_host.new_host_key()
        with pytest.raises(TargetUnreachable, match="its host key has changed"):
            check(host_keys=settings["host_keys"], timeout=19)

    def test_a_slow_login_succeeds(self, check: Check, ssh_host: SshHost) -> None:
        ssh_host.set_login_delay(2)
        assert check(timeout=60)[0].nodes

    def test_a_login_may_print_and_delays_no_other_host(
        self, check: Check, ssh_hosts: list[SshHost]
    ) -> None:
        assert check(address=f"ml@{ssh_hosts[1].address}")[0].nodes
        _write_bashrc(
            ssh_hosts[0], "yes | head -c 1000000; echo 'RETARGET {}'; echo 'RETARGET junk'"
        )
        durations: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            noisy = pool.submit(check)
            while not noisy.done():
                start = time.monotonic()
                check(address=f"ml@{ssh_hosts[1].address}")
                durations.append(time.monotonic() - start)
        assert noisy.result()[0].nodes[0].unavailable == ""
        assert max(durations) < 10  # with the noisy login in the way it would be the timeout

    @pytest.mark.parametrize("command", ["yes", "cat /dev/zero"])
    def test_a_login_that_prints_too_much_is_reported(
        self, check: Check, ssh_host: SshHost, command: str
    ) -> None:
        _write_bashrc(ssh_host, command)
        with pytest.raises(TargetUnreachable, match="the login prints too much"):
            check()

    def test_a_login_that_hangs_times_out(self, check: Check, ssh_host: SshHost) -> None:
        _write_bashrc(ssh_host, "sleep 1000")
        with pytest.raises(
            TargetUnreachable, match=r"within 3 s \(timeout\); check whether ~/\.bashrc waits"
        ):
            check(timeout=3)

    @pytest.mark.parametrize("command", ["read x", "read -n 3 x", "read x; read y"])
    def test_a_login_that_reads_the_input_is_reported(
        self, check: Check, ssh_host: SshHost, command: str
    ) -> None:
        _write_bashrc(ssh_host, command)
        with pytest.raises(
            TargetUnreachable, match="reads the input meant for the agent"
        ) as caught:
            check()
        assert "Traceback" not in str(caught.value)

    @pytest.mark.parametrize(
        ("config", "match"),
        [
            (
                {},
                r"set the address of one machine \(--address\), or the hosts of a pool \(--host\)",
            ),
            ({"address": "a", "hosts": ["b"]}, "set the address of one machine"),
            ({"address": "a b"}, "'a b' is not an address such as"),
            ({"address": "a:99999"}, "is not an address"),
            ({"address": "a,b"}, "'a,b' is not an address"),
            ({"address": ""}, "'' is not an address"),
            ({"address": "a", "jump": "b,"}, "'' is not an address"),
            ({"address": "a", "host_keys": {"a": "garbage"}}, "the key of 'a' is not a public key"),
            ({"address": "a", "host_keys": {"a": ""}}, "the key of 'a' is not a public key"),
            (
                {"address": "a", "host_keys": {"a": _new_key()}},
                "the key of 'a' is not a public key",
            ),
            ({"address": "a", "host_keys": {"a": "ssh-rsa AAAA"}}, "is not a public key"),
            ({"address": "a", "root": ""}, "'' is not a path such as"),
            ({"address": "a", "root": "here"}, "'here' is not a path such as"),
            ({"address": "a", "root": "~ml"}, "'~ml' is not a path such as"),
            ({"address": "a", "root": "/a\0b"}, "is not a path such as"),
            ({"address": "a", "root": "~/" + "a/" * 600}, "is not a path such as"),
            ({"address": "a:" + "1" * 5000}, "is not an address such as"),
            ({"address": "a", "root": "/a\ud800b"}, "is not a path such as"),
            ({"hosts": ["a", "a"]}, "the same host is listed twice"),
            ({"address": "a", "python": "python3; rm -rf"}, "is not a plain absolute path"),
            ({"address": "a", "port": 0}, "port"),
        ],
    )
    def test_invalid_settings_are_refused(
        self, config: dict[str, Any], match: str, links: Links
    ) -> None:
        with pytest.raises(Invalid, match=match):
            connect_to("ssh", config, links)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("lab3", ("lab3", None, None)),
            ("ml@lab2:2222", ("lab2", "ml", 2222)),
            ("ml@[fe80::1]:22", ("fe80::1", "ml", 22)),
            ("10.0.0.7", ("10.0.0.7", None, None)),
        ],
    )
    def test_an_address_is_parsed(
        self, text: str, expected: tuple[str, str | None, int | None]
    ) -> None:
        address = parse_address(text)
        assert (address.host, address.user, address.port) == expected


def test_a_full_disk_is_reported(tmp_path: Path, links: Links) -> None:
    require(missing_for_ssh_hosts())
    with start_ssh_hosts(1, folder=tmp_path, home_size="20m") as (ssh_host,):
        ssh_host.fill_disk()
        config = {"address": f"root@{ssh_host.address}", "key": ssh_host.key.read_text()}
        with pytest.raises(TargetUnreachable, match="the disk is full"):
            connect_to("ssh", config, links).check()


def test_a_launch_on_a_full_disk_can_be_polled_and_canceled(tmp_path: Path, links: Links) -> None:
    require(missing_for_ssh_hosts())
    with start_ssh_hosts(1, folder=tmp_path, home_size="60m") as (ssh_host,):
        config = {"address": f"root@{ssh_host.address}", "key": ssh_host.key.read_text()}
        launch = Launch.model_validate(
            {
                "key": "k1",
                "job": "j1",
                "name": "n",
                "command": ["sleep", "600"],
                "grace_seconds": 1.0,
            }
        )
        with closing(Links()) as earlier:
            handle = connect_to("ssh", config, earlier).launch(launch)
            wait_until(lambda: bool(_sleepers(ssh_host)), "it runs")
        ssh_host.kill_sshd()
        ssh_host.fill_disk()
        ssh_host.start_sshd()
        driver = connect_to("ssh", config, links)
        with pytest.raises(TargetUnreachable, match="the disk is full"):
            driver.check()
        assert driver.poll([handle])[0].phase is Phase.RUNNING
        driver.cancel(handle)
        wait_until(lambda: not _sleepers(ssh_host), "its script ends")
        ssh_host.free_disk()
        wait_until(
            lambda: driver.poll([handle])[0].phase is not Phase.RUNNING, "the end is reported"
        )
        driver.forget(handle)
        assert driver.poll([handle])[0].phase is Phase.GONE


def _sleepers(ssh_host: SshHost) -> list[int]:
    return [pid for pid, argv in ssh_host.processes() if argv[1:] == ["600"]]


def test_a_runner_file_truncated_by_a_power_cut_is_replaced(
    ssh_host: SshHost, links: Links
) -> None:
    config = {"address": f"root@{ssh_host.address}", "key": ssh_host.key.read_text()}
    with closing(Links()) as earlier:
        assert connect_to("ssh", config, earlier).check().nodes
    (runner,) = (ssh_host.home / ".retarget-host/runners").iterdir()
    content = runner.read_bytes()
    runner.write_bytes(content[:1000])
    assert connect_to("ssh", config, links).check().nodes[0].cpus
    assert runner.read_bytes() == content


def test_other_users_of_a_host_cannot_read_what_is_stored_there(
    ssh_host: SshHost, links: Links
) -> None:
    config = {"address": f"root@{ssh_host.address}", "key": ssh_host.key.read_text()}
    root = ssh_host.home / ".retarget-host"
    earlier = [root / name for name in ("blobs", "environments")]  # by an earlier version
    for folder in earlier:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    driver = connect_to("ssh", config, links)
    assert driver.check().nodes
    _upload_uv(driver)
    open_to_others = [path for path in root.iterdir() if path.stat().st_mode & 0o077]
    assert (open_to_others, set(earlier) <= set(root.iterdir())) == ([], True)
    [agent] = [pid for pid, argv in ssh_host.processes() if "agent" in argv]
    status = Path(f"/proc/{agent}/status").read_text()
    assert "Umask:\t0077" in status.splitlines()  # of every file of its runners


def test_the_runner_is_uploaded_again_when_it_was_deleted_on_both_sides(
    ssh_host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: Links
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = {"address": f"root@{ssh_host.address}", "key": ssh_host.key.read_text()}
    driver = connect_to("ssh", config, links)
    assert driver.check().nodes
    shutil.rmtree(tmp_path)
    shutil.rmtree(ssh_host.home / ".retarget-host/runners")
    ssh_host.kill_sshd()
    ssh_host.start_sshd()
    assert driver.check().nodes[0].cpus
    assert list((ssh_host.home / ".retarget-host/runners").iterdir())


def test_a_host_is_reached_through_a_jump_host(tmp_path: Path, links: Links) -> None:
    require(missing_for_ssh_hosts())
    with start_ssh_hosts(2, folder=tmp_path, first_is_gateway=True) as (gate, inner):
        config = {
            "address": f"ml@{inner.address}",
            "key": inner.key.read_text(),
            "jump": f"root@{gate.address}",
        }
        inventory = connect_to("ssh", config, links).check()
        assert inventory.nodes[0].name == inner.address


def test_a_program_is_uploaded_once_and_complete(
    tmp_path: Path, ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch, links: Links
) -> None:
    """However many launches need it at the same time, and through however many links."""
    program = tmp_path / "uv"
    program.write_bytes(os.urandom(5 << 20))
    monkeypatch.setattr(ssh, "bundled_uv", lambda: str(program))
    configs = [
        {"address": f"root@{ssh_host.address}", "key": ssh_host.key.read_text(), "timeout": seconds}
        for seconds in (19, 20)
    ]
    drivers = [connect_to("ssh", configs[number % 2], links) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for upload in [pool.submit(_upload_uv, driver) for driver in drivers]:
            upload.result()
    folder = ssh_host.home / ".retarget-host/bin"
    assert os.listdir(folder) == ["uv"]
    assert (folder / "uv").read_bytes() == program.read_bytes()


def _upload_uv(driver: Driver) -> None:
    assert isinstance(driver, ssh.Driver)
    (ssh_host,) = driver._agents.values()  # pyright: ignore[reportPrivateUsage]
    driver._upload_uv(ssh_host)  # pyright: ignore[reportPrivateUsage]


def test_a_password_is_not_sent_to_a_jump_host(tmp_path: Path, links: Links) -> None:
    require(missing_for_ssh_hosts())
    with start_ssh_hosts(2, folder=tmp_path, first_is_gateway=True) as (gate, inner):
        config = {
            "address": f"ml@{inner.address}",
            "password": PASSWORD,
            "jump": f"ml@{gate.address}",
            "timeout": 20,
        }
        refused = rf"at jump host {gate.address}: the login was refused: no key"
        with pytest.raises(TargetUnreachable, match=refused):
            connect_to("ssh", config, links).check()
        assert "password for ml" not in (tmp_path / "lab1/sshd.log").read_text()
        config["key"] = gate.key.read_text()
        assert connect_to("ssh", config, links).check().nodes[0].cpus


def test_a_changed_key_of_a_jump_host_is_refused(tmp_path: Path, links: Links) -> None:
    require(missing_for_ssh_hosts())
    with start_ssh_hosts(2, folder=tmp_path, first_is_gateway=True) as (gate, inner):
        config: dict[str, Any] = {
            "address": f"ml@{inner.address}",
            "key": inner.key.read_text(),
            "jump": f"root@{gate.address}",
        }
        driver = connect_to("ssh", config, links)
        assert isinstance(driver, ssh.Driver)
        details = driver.check().details
        settings = driver.settle()
        driver.release()
        host_keys = settings["host_keys"]
        assert {name: key.split()[1] for name, key in host_keys.items()} == {
            host.address: host.host_key.split()[1] for host in (gate, inner)
        }
        assert [name for name in details if "host key" in name] == ["host key"]
        gate.new_host_key()
        changed = rf"at jump host {gate.address}: its host key has changed"
        with pytest.raises(TargetUnreachable, match=changed):
            connect_to("ssh", config | settings, links).check()


@pytest.mark.targets
class TestLostConnections(SshHarness, ContractHarness):
    """After a lost connection everything is reported, and nothing twice."""

    def _start_printing(self, driver: Driver, receiver: Receiver) -> tuple[Launch, Handle]:
        script = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; exit 4"
        launch = self.new_launch(receiver, "sh", "-c", script)
        handle = driver.launch(launch)
        self.wait_for_words(receiver, launch)
        return launch, handle

    def _assert_everything_is_reported(self, receiver: Receiver, launch: Launch) -> None:
        reports = self.wait_for_reports(
            receiver, launch, lambda reports: "finished" in reports.kinds
        )
        assert reports.stream().decode().splitlines() == [f"line {n}" for n in range(40)]
        assert reports.finished["exit_code"] == 4
        assert reports.kinds.count("started") == 1

    def test_an_agent_that_is_killed_is_replaced(self, driver: Driver, receiver: Receiver) -> None:
        launch, _ = self._start_printing(driver, receiver)
        for pid, argv in self.ssh_host.processes():
            if "agent" in argv:
                os.kill(pid, signal.SIGKILL)
        self._assert_everything_is_reported(receiver, launch)

    def test_sshd_may_be_killed_and_come_back(self, driver: Driver, receiver: Receiver) -> None:
        launch, handle = self._start_printing(driver, receiver)
        self.ssh_host.kill_sshd()
        self.wait_until(lambda: driver.poll([handle])[0].phase is Phase.SILENT)
        self.ssh_host.start_sshd()
        self._assert_everything_is_reported(receiver, launch)

    def test_a_link_may_be_down_for_a_while(self, driver: Driver, receiver: Receiver) -> None:
        launch, _ = self._start_printing(driver, receiver)
        self.ssh_host.link_down()
        time.sleep(6)  # longer than the script takes
        self.ssh_host.link_up()
        self._assert_everything_is_reported(receiver, launch)

    def test_launches_of_a_rebooted_host_are_lost(self, driver: Driver, receiver: Receiver) -> None:
        launch, handle = self._start_printing(driver, receiver)
        self.ssh_host.reboot()
        self.wait_for_phase(driver, handle, Phase.DEAD)
        driver.launch(launch)
        reports = self.wait_for_reports(
            receiver, launch, lambda reports: "finished" in reports.kinds
        )
        assert reports.finished["outcome"] == "lost"
        assert reports.kinds.count("started") == 1


@pytest.mark.targets
class TestPool(ContractHarness):
    """Several hosts as one target."""

    @pytest.fixture
    def connect(self, ssh_hosts: list[SshHost], tmp_path: Path, links: Links) -> Connect:
        self.hosts = ssh_hosts
        config = {
            "hosts": [f"ml@{host.address}" for host in ssh_hosts],
            "key": ssh_hosts[0].key.read_text(),
            "root": f"~/{tmp_path.name}",
            "timeout": 3,
        }
        return lambda: connect_to("ssh", config, links)

    def _allocations(self, *numbers: int) -> list[dict[str, Any]]:
        return [{"node": self.hosts[number].address} for number in numbers]

    def test_a_host_is_unavailable_while_it_does_not_answer(self, driver: Driver) -> None:
        assert [node.unavailable for node in driver.check().nodes] == ["", "", ""]
        self.hosts[1].kill_sshd()
        unavailable: list[str] = []

        def is_noticed() -> bool:
            unavailable[:] = [node.unavailable for node in driver.check().nodes]
            return unavailable[1] != ""

        self.wait_until(is_noticed)
        assert unavailable[0] == unavailable[2] == ""
        self.wait_until(lambda: "connection refused" in driver.check().nodes[1].unavailable)
        self.hosts[1].start_sshd()
        self.wait_until(lambda: [node.unavailable for node in driver.check().nodes] == ["", "", ""])

    def test_every_process_of_a_launch_knows_its_rank(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        names = "RANK LOCAL_RANK NODE_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
        script = "echo " + " ".join(f"${name}" for name in names.split())
        launch = self.new_launch(
            receiver,
            "sh",
            "-c",
            script,
            nodes=2,
            processes_per_node=2,
            allocations=self._allocations(1, 2),
        )
        handle = driver.launch(launch)
        self.finish(driver, handle)
        streams = receiver.reports(launch.key).streams
        words = {name: bytes(stream).decode().split() for name, stream in streams.items()}
        port = words["rank-0"][5]
        master = [self.hosts[1].address, port]
        assert words["rank-0"] == ["0", "0", "0", "4", *master]
        assert words["rank-1"] == ["1", "1", "0", "4", *master]
        assert words["rank-2"] == ["2", "0", "1", "4", *master]
        assert words["rank-3"] == ["3", "1", "1", "4", *master]
        assert handle.endswith(f"@{self.hosts[1].address},{self.hosts[2].address}")

    def test_a_silent_node_makes_the_launch_silent(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.new_launch(
            receiver, "sleep", "60", nodes=2, allocations=self._allocations(0, 2)
        )
        handle = driver.launch(launch)
        self.wait_for_phase(driver, handle, Phase.RUNNING)
        self.hosts[2].kill_sshd()
        observation = self.wait_for_phase(driver, handle, Phase.SILENT)
        assert self.hosts[2].address in observation.reason
        self.hosts[2].start_sshd()
        self.wait_for_phase(driver, handle, Phase.RUNNING)


@pytest.mark.targets
class TestEnvironments(SshHarness, ContractHarness):
    """Everything that jobs need is uploaded to a host once."""

    def test_an_environment_is_built_with_the_uploaded_uv(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        assert driver.check().nodes
        built = wheel(self.ssh_host.home, "carried", "1.0")
        inside = f"/root/{built.name}"
        environment = {"kind": "system", "pip": [f"carried @ file://{inside}"]}
        logs: list[bytes] = []
        for _ in range(2):
            launch = self.new_launch(
                receiver, "python", "-c", "import carried; print('ok')", environment=environment
            )
            reports = self.run(driver, receiver, launch)
            assert reports.stream() == b"ok\n", reports.stream("prepare").decode()
            logs.append(reports.stream("prepare"))
        assert b"building" in logs[0]
        assert logs[1] == b""
        uv = self.ssh_host.home / self.root.removeprefix("~/") / "bin/uv"
        assert os.access(uv, os.X_OK)

    @pytest.mark.parametrize("kind", ["user", "system"])
    def test_pip_in_a_job_changes_its_layer_alone(
        self, driver: Driver, receiver: Receiver, kind: str
    ) -> None:
        """Over the Python of the host and over a built environment, which has no pip."""
        assert driver.check().nodes
        for version in ("1.0", "2.0"):
            wheel(self.ssh_host.home, "carried", version)
        built = "carried @ file:///root/carried-1.0-py3-none-any.whl"
        environment = {"kind": kind, "pip": [built] if kind == "system" else []}
        pip = "pip"
        if kind == "system":  # then uv has been uploaded
            pip = f"{self.root.replace('~', '/root')}/bin/uv pip"
        variables = {"PIP_NO_INDEX": "1", "UV_NO_INDEX": "1", "VERSION": _CARRIED_VERSION}
        steps = [
            "pip install -q --no-index /root/carried-2.0-py3-none-any.whl",
            'python3 -c "$VERSION"', "python -m pip uninstall -q -y carried",
            f"{pip} install -q /root/carried-2.0-py3-none-any.whl",
            'sh -c \'python -c "$VERSION"\'', f"yes | {pip} uninstall -q carried > /dev/null",
            'python -c "$VERSION"',
        ]  # fmt: skip
        launch = self.new_launch(
            receiver, "sh", "-ec", "\n".join(steps), environment=environment, variables=variables
        )
        reports = self.run(driver, receiver, launch)
        last = "1.0" if kind == "system" else "none"
        assert reports.stream().decode().split() == ["2.0", "2.0", last]
        host = self.ssh_host.run("python3", "-c", _CARRIED_VERSION)
        assert host.strip() == "none"

    def test_own_packages_of_the_code_are_imported(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        assert driver.check().nodes
        built = wheel(self.ssh_host.home, "carried", "1.0")
        files = {
            "src/mine.py": b"def main(): print('mine')\n",
            f"w/{built.name}": built.read_bytes(),
        }
        points = {"console_scripts": {"mine": "mine:main"}}
        project = {"path": ".", "name": "mine", "roots": ["src"], "entry_points": points}
        carried = {"path": f"w/{built.name}", "name": "carried", "build": True}
        environment = {"kind": "system", "pip": ["--no-index"]}
        launch = self.new_launch(
            receiver, "sh", "-ec", "mine; python -c 'import carried, mine; print(carried.VERSION)'",
            environment=environment, own_packages=[project, carried],
            snapshot=receiver.add_snapshot(files),
        )  # fmt: skip
        reports = self.run(driver, receiver, launch)
        assert reports.stream() == b"mine\n1.0\n", reports.stream("prepare").decode()

    def test_a_required_package_is_installed_beside_the_python_of_the_host(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        assert driver.check().nodes
        wheel(self.ssh_host.home, "carried", "1.0")
        settings = self.ssh_host.home / ".config/uv/uv.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text('no-index = true\nfind-links = ["/root"]\n')
        launch = self.new_launch(
            receiver, "python", "-c", _CARRIED_VERSION, required_packages=["carried"]
        )
        reports = self.run(driver, receiver, launch)
        assert reports.stream() == b"1.0\n", reports.stream("prepare").decode()
        assert self.ssh_host.run("python3", "-c", _CARRIED_VERSION).strip() == "none"

    def test_the_second_launch_of_a_folder_downloads_nothing(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        snapshot = receiver.add_snapshot({"a.sh": b"cat data", "data": b"content\n"})
        for _ in range(2):
            launch = self.new_launch(receiver, "sh", "a.sh", snapshot=snapshot)
            assert self.run(driver, receiver, launch).stream() == b"content\n"
        first_downloads = [request for request in receiver.requests if "blobs" in request]
        changed = receiver.add_snapshot({"a.sh": b"cat data", "data": b"other\n"})
        launch = self.new_launch(receiver, "sh", "a.sh", snapshot=changed)
        assert self.run(driver, receiver, launch).stream() == b"other\n"
        downloads = [request for request in receiver.requests if "blobs" in request]
        assert len(first_downloads) == 2  # the manifest, and the missing files
        assert len(downloads) == 4


class TestOpenSshConfig:
    """The OpenSSH configuration of the user applies here, too."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        folder = tmp_path / ".ssh"
        folder.mkdir(mode=0o700)
        return folder

    def _check(self, **config: Any) -> Inventory:
        with closing(Links()) as links:
            return connect_to("ssh", config, links).check()

    def test_a_host_in_the_config_file_is_found(
        self, folder: Path, ssh_hosts: list[SshHost]
    ) -> None:
        (folder / "config").write_text(
            f"Host gpu\n HostName {ssh_hosts[0].address}\n User ml\n"
            f" IdentityFile {ssh_hosts[0].key}\n"
        )
        assert self._check(address="gpu").nodes[0].name == "gpu"

    def test_proxy_jump_in_the_config_file_is_used(self, folder: Path, tmp_path: Path) -> None:
        require(missing_for_ssh_hosts())
        (hosts_folder := tmp_path / "hosts").mkdir()
        with start_ssh_hosts(2, folder=hosts_folder, first_is_gateway=True) as (gate, inner):
            (folder / "config").write_text(
                f"Host *\n IdentityFile {gate.key}\n"
                f"Host inner\n HostName {inner.address}\n ProxyJump root@{gate.address}\n User ml\n"
            )
            assert self._check(address="inner").nodes[0].cpus

    def test_a_host_key_that_differs_from_known_hosts_is_refused(
        self, folder: Path, ssh_hosts: list[SshHost]
    ) -> None:
        (folder / "known_hosts").write_text(f"{ssh_hosts[0].address} {ssh_hosts[1].host_key}\n")
        with pytest.raises(TargetUnreachable, match="its host key is not the one in"):
            self._check(address=f"ml@{ssh_hosts[0].address}", key=ssh_hosts[0].key.read_text())

    def test_a_key_of_ssh_agent_is_used(
        self, ssh_hosts: list[SshHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        socket = tmp_path / "agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
        try:
            wait_until(socket.exists, "the agent listens")
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            subprocess.run(["ssh-add", "-q", str(ssh_hosts[0].key)], check=True)
            assert self._check(address=f"ml@{ssh_hosts[0].address}").nodes[0].cpus
        finally:
            agent.terminate()
            agent.wait()
