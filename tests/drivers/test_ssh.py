"""The ssh target keeps the contract on real hosts, and says exactly why one cannot be used."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from retarget.core.driver import Driver, Handle, Launch, Phase
from retarget.core.errors import Invalid, TargetUnreachable
from retarget.core.targets import Facts
from retarget.drivers import connect as connect_to
from retarget.drivers import ssh
from retarget.drivers._ssh import parse_place
from retarget.testing import Bench, Connect, DriverContract, Receiver
from tests.runner.workshop import wheel
from tests.testbeds.hosts import PASSWORD, Host, hosts_missing, machines
from tests.testbeds.namespaces import need, wait_until

Check = Callable[..., tuple[Facts, dict[str, Any]]]


class OnAHost:
    """Where the launches of these tests live, and how they are found there."""

    host: Host
    root: str

    @pytest.fixture
    def connect(self, host: Host, tmp_path: Path) -> Iterator[Connect]:
        self.host = host
        self.root = f"~/{tmp_path.name}"
        config = {
            "address": f"{self.host.user}@{self.host.address}",
            "key": self.host.key.read_text(),
            "root": self.root,
            "linger": 30,
        }
        yield lambda: connect_to("ssh", config)
        _release(config)

    @pytest.fixture
    def connect_nowhere(self) -> Connect:
        return lambda: connect_to("ssh", {"address": "127.0.0.1", "port": 9, "timeout": 5})

    def runner_pids(self, handle: Handle) -> list[int]:
        key = handle.partition("@")[0]
        return [
            pid
            for pid, words in self.host.processes()
            if "run" in words and any(word.endswith(f"/launches/{key}") for word in words)
        ]

    def processes_of(self, launch: Launch) -> list[int]:
        mark = f"RETARGET_LAUNCH={launch.key}".encode()
        return [
            pid
            for pid, _ in self.host.processes()
            if mark in _read(Path(f"/proc/{pid}/environ")).split(b"\0")
        ]

    def alive(self, pid: int) -> bool:
        """Tell whether a process of the host is there; `pid` is what the host calls it."""
        return any(_pid_inside(each) == pid for each, _ in self.host.processes())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def traces(self, handle: Handle) -> list[Path]:
        key = handle.partition("@")[0]
        folder = self.host.home / self.root.removeprefix("~/")
        return [path for path in folder.rglob("*") if key in path.name]


@pytest.mark.targets
class TestSsh(OnAHost, DriverContract):
    pass


def _new_key() -> str:
    key = asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]
    return key.export_private_key().decode()


def _at_login(host: Host, commands: str) -> None:
    (host.home_of("ml") / ".bashrc").write_text(f"{commands}\n")


def _release(config: dict[str, Any]) -> None:
    driver = connect_to("ssh", config)
    assert isinstance(driver, ssh.Driver)
    driver.release()


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
    """Each thing that can be wrong is said as what it is."""

    @pytest.fixture
    def check(self, host: Host) -> Iterator[Check]:
        used: list[dict[str, Any]] = []

        def check(**config: Any) -> tuple[Facts, dict[str, Any]]:
            standard = {"address": f"ml@{host.address}", "timeout": 20}
            if "password" not in config:
                standard["key"] = host.key.read_text()
            used.append(standard | config)
            driver = connect_to("ssh", used[-1])
            assert isinstance(driver, ssh.Driver)
            return driver.check(), driver.settle()

        yield check
        for config in used:
            _release(config)

    def test_what_a_host_has_is_told(self, check: Check, host: Host) -> None:
        facts, learnt = check()
        (node,) = facts.nodes
        assert (node.name, node.reason) == (host.address, "")
        assert node.cpus == os.cpu_count()
        assert facts.details["python"].startswith("3.")
        assert facts.details["host key"].startswith("SHA256:")
        assert learnt["pins"][host.address].split()[:2] == host.host_key.split()[:2]

    def test_a_password_opens_it(self, check: Check) -> None:
        facts, _ = check(password=PASSWORD)
        assert facts.nodes[0].cpus

    def test_a_wrong_password_is_said(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match="login was refused: the password is wrong"):
            check(password="not that")

    def test_a_key_that_is_not_accepted_is_said(self, check: Check) -> None:
        other = _new_key()
        with pytest.raises(TargetUnreachable, match="the key is not accepted"):
            check(key=other)

    def test_an_encrypted_key_needs_its_passphrase(self, check: Check, host: Host) -> None:
        key = asyncssh.import_private_key(host.key.read_text())
        locked = key.export_private_key("openssh", passphrase="open sesame", rounds=50).decode()
        with pytest.raises(TargetUnreachable, match="the key is encrypted: give its passphrase"):
            check(key=locked)
        with pytest.raises(TargetUnreachable, match="the passphrase is wrong"):
            check(key=locked, passphrase="open barley")
        assert check(key=locked, passphrase="open sesame")[0].nodes

    def test_what_is_no_key_is_said(self, check: Check) -> None:
        with pytest.raises(Invalid, match="it holds no private key"):
            connect_to("ssh", {"address": "lab1", "key": "ssh-ed25519 AAAA of the wrong half"})
        broken = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
        with pytest.raises(TargetUnreachable, match="the key cannot be read"):
            check(key=broken)

    def test_a_python_that_is_not_there_is_said(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match=r"no Python 3\.8 or newer is at /usr/bin/nope"):
            check(python="/usr/bin/nope")

    @pytest.mark.parametrize(
        ("config", "sentence"),
        [
            ({"address": "ml@lab1", "user": "me"}, "the user is in every address already"),
            ({"hosts": ["lab1:22", "lab2:22"], "port": 23}, "the port is in every address"),
            ({"address": "lab1", "hosts": ["lab2"]}, "not both"),
        ],
    )
    def test_what_contradicts_itself_is_said(self, config: dict[str, Any], sentence: str) -> None:
        with pytest.raises(Invalid, match=sentence):
            connect_to("ssh", config)

    def test_the_host_on_the_way_is_named_where_it_is_the_one(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match=r"at 127\.0\.0\.1:1 on the way to it: conn"):
            check(jump="ml@127.0.0.1:1")

    def test_a_port_where_nobody_listens_is_said(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match="connection refused: no SSH server listens at"):
            check(port=2)

    def test_a_name_that_nobody_knows_is_said(self, check: Check) -> None:
        with pytest.raises(TargetUnreachable, match=r"'nowhere\.invalid' cannot be resolved"):
            check(address="nowhere.invalid")

    def test_a_host_that_is_silent_is_said(self, check: Check, host: Host) -> None:
        host.link_down()
        with pytest.raises(TargetUnreachable, match=r"no answer within 2 s \(timeout\)"):
            check(timeout=2)

    def test_a_host_without_python_is_said(self, check: Check, host: Host) -> None:
        host.without_python()
        with pytest.raises(TargetUnreachable, match=r"no Python 3\.8 or newer was found"):
            check()

    def test_a_home_that_is_not_writable_is_said(self, check: Check, host: Host) -> None:
        host.make_home_read_only()
        with pytest.raises(TargetUnreachable, match="is not writable: Read-only file system"):
            check()

    def test_a_changed_host_key_is_refused(self, check: Check, host: Host) -> None:
        _, learnt = check()
        host.new_host_key()
        with pytest.raises(TargetUnreachable, match="its host key has changed"):
            check(pins=learnt["pins"], timeout=19)

    def test_a_slow_login_is_slow_and_not_dead(self, check: Check, host: Host) -> None:
        host.set_login_delay(2)
        assert check(timeout=60)[0].nodes

    def test_a_login_may_print_and_nobody_else_waits(self, check: Check, lab: list[Host]) -> None:
        assert check(address=f"ml@{lab[1].address}")[0].nodes
        _at_login(lab[0], "yes | head -c 1000000; echo 'RETARGET {}'; echo 'RETARGET junk'")
        took: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            noisy = pool.submit(check)
            while not noisy.done():
                start = time.monotonic()
                check(address=f"ml@{lab[1].address}")
                took.append(time.monotonic() - start)
        assert noisy.result()[0].nodes[0].reason == ""
        assert max(took) < 2

    @pytest.mark.parametrize("words", ["yes", "cat /dev/zero"])
    def test_a_login_that_prints_too_much_is_said(
        self, check: Check, host: Host, words: str
    ) -> None:
        _at_login(host, words)
        with pytest.raises(TargetUnreachable, match="the login prints too much"):
            check()

    def test_a_login_that_hangs_is_given_up(self, check: Check, host: Host) -> None:
        _at_login(host, "sleep 1000")
        with pytest.raises(
            TargetUnreachable, match=r"within 3 s \(timeout\): does ~/\.bashrc wait"
        ):
            check(timeout=3)

    @pytest.mark.parametrize("reads", ["read x", "read -n 3 x", "read x; read y"])
    def test_a_login_that_reads_is_said(self, check: Check, host: Host, reads: str) -> None:
        _at_login(host, reads)
        with pytest.raises(TargetUnreachable, match="reads the input that is for the") as caught:
            check()
        assert "Traceback" not in str(caught.value)

    @pytest.mark.parametrize(
        ("config", "match"),
        [
            ({}, "give the address of one machine, or the hosts of a pool"),
            ({"address": "a", "hosts": ["b"]}, "give the address of one machine"),
            ({"address": "a b"}, "'a b' is not an address such as"),
            ({"address": "a:99999"}, "is not an address"),
            ({"address": "a,b"}, "'a,b' is not an address"),
            ({"address": ""}, "'' is not an address"),
            ({"address": "a", "jump": "b,"}, "'' is not an address"),
            ({"address": "a", "pins": {"a": "garbage"}}, "given for 'a' is not a public key"),
            ({"address": "a", "pins": {"a": ""}}, "given for 'a' is not a public key"),
            ({"address": "a", "pins": {"a": _new_key()}}, "given for 'a' is not a public key"),
            ({"address": "a", "pins": {"a": "ssh-rsa AAAA"}}, "is not a public key"),
            ({"address": "a", "root": ""}, "'' is not a path such as"),
            ({"address": "a", "root": "here"}, "'here' is not a path such as"),
            ({"address": "a", "root": "~ml"}, "'~ml' is not a path such as"),
            ({"address": "a", "root": "/a\0b"}, "is not a path such as"),
            ({"address": "a", "root": "~/" + "a/" * 600}, "is not a path such as"),
            ({"address": "a:" + "1" * 5000}, "is not an address such as"),
            ({"address": "a", "root": "/a\ud800b"}, "is not a path such as"),
            ({"hosts": ["a", "a"]}, "one of them is there twice"),
            ({"address": "a", "python": "python3; rm -rf"}, "is not a plain absolute path"),
            ({"address": "a", "port": 0}, "port"),
        ],
    )
    def test_settings_that_make_no_sense_are_refused(
        self, config: dict[str, Any], match: str
    ) -> None:
        with pytest.raises(Invalid, match=match):
            connect_to("ssh", config)

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("lab3", ("lab3", None, None)),
            ("ml@lab2:2222", ("lab2", "ml", 2222)),
            ("ml@[fe80::1]:22", ("fe80::1", "ml", 22)),
            ("10.0.0.7", ("10.0.0.7", None, None)),
        ],
    )
    def test_an_address_is_read(self, text: str, place: tuple[str, str | None, int | None]) -> None:
        found = parse_place(text)
        assert (found.host, found.user, found.port) == place


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    need(hosts_missing())
    with machines(1, where=tmp_path, home_size="20m") as (host,):
        host.fill_disk()
        config = {"address": f"root@{host.address}", "key": host.key.read_text()}
        with pytest.raises(TargetUnreachable, match="the disk is full"):
            connect_to("ssh", config).check()
        _release(config)


def test_on_a_full_disk_work_is_still_seen_to(tmp_path: Path) -> None:
    need(hosts_missing())
    with machines(1, where=tmp_path, home_size="60m") as (host,):
        config = {"address": f"root@{host.address}", "key": host.key.read_text()}
        driver = connect_to("ssh", config)
        launch = Launch.model_validate(
            {"key": "k1", "job": "j1", "name": "n", "command": ["sleep", "600"], "grace": 1.0}
        )
        handle = driver.launch(launch)
        wait_until(lambda: bool(_sleepers(host)), "it runs")
        _release(config)
        host.kill_sshd()
        host.fill_disk()
        host.start_sshd()
        driver = connect_to("ssh", config)
        with pytest.raises(TargetUnreachable, match="the disk is full"):
            driver.check()
        assert driver.poll([handle])[0].phase is Phase.RUNNING
        driver.cancel(handle)
        wait_until(lambda: not _sleepers(host), "its script ends")
        host.free_disk()
        wait_until(lambda: driver.poll([handle])[0].phase is not Phase.RUNNING, "so it is told")
        driver.forget(handle)
        assert driver.poll([handle])[0].phase is Phase.GONE
        _release(config)


def _sleepers(host: Host) -> list[int]:
    return [pid for pid, words in host.processes() if words[1:] == ["600"]]


def test_a_runner_that_a_power_cut_has_left_in_part_is_mended(host: Host) -> None:
    config = {"address": f"root@{host.address}", "key": host.key.read_text()}
    assert connect_to("ssh", config).check().nodes
    _release(config)
    (runner,) = (host.home / ".retarget-host/runners").iterdir()
    whole = runner.read_bytes()
    runner.write_bytes(whole[:1000])
    assert connect_to("ssh", config).check().nodes[0].cpus
    assert runner.read_bytes() == whole
    _release(config)


def test_the_runner_is_brought_again_when_it_was_cleaned_away_at_both_ends(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = {"address": f"root@{host.address}", "key": host.key.read_text()}
    driver = connect_to("ssh", config)
    assert driver.check().nodes
    shutil.rmtree(tmp_path)
    shutil.rmtree(host.home / ".retarget-host/runners")
    host.kill_sshd()
    host.start_sshd()
    assert driver.check().nodes[0].cpus
    assert list((host.home / ".retarget-host/runners").iterdir())
    _release(config)


def test_a_host_behind_another_is_reached_past_it(tmp_path: Path) -> None:
    need(hosts_missing())
    with machines(2, where=tmp_path, behind=True) as (gate, inner):
        config = {
            "address": f"ml@{inner.address}",
            "key": inner.key.read_text(),
            "jump": f"root@{gate.address}",
        }
        facts = connect_to("ssh", config).check()
        assert facts.nodes[0].name == inner.address
        _release(config)


def test_a_program_is_brought_once_and_whole(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many launches want it at once, and through however many servers."""
    program = tmp_path / "uv"
    program.write_bytes(os.urandom(5 << 20))
    monkeypatch.setattr(ssh, "uv_here", lambda: str(program))
    configs = [
        {"address": f"root@{host.address}", "key": host.key.read_text(), "timeout": seconds}
        for seconds in (19, 20)
    ]
    drivers = [connect_to("ssh", configs[number % 2]) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(_bring_uv, driver) for driver in drivers]:
            done.result()
    folder = host.home / ".retarget-host/bin"
    assert os.listdir(folder) == ["uv"]
    assert (folder / "uv").read_bytes() == program.read_bytes()
    for config in configs:
        _release(config)


def _bring_uv(driver: Driver) -> None:
    assert isinstance(driver, ssh.Driver)
    (host,) = driver._hosts.values()  # pyright: ignore[reportPrivateUsage]
    driver._bring_uv(host)  # pyright: ignore[reportPrivateUsage]


def test_a_password_is_not_shown_to_a_host_on_the_way(tmp_path: Path) -> None:
    need(hosts_missing())
    with machines(2, where=tmp_path, behind=True) as (gate, inner):
        config = {
            "address": f"ml@{inner.address}",
            "password": PASSWORD,
            "jump": f"ml@{gate.address}",
            "timeout": 20,
        }
        refused = rf"at {gate.address} on the way to it: the login was refused: no key"
        with pytest.raises(TargetUnreachable, match=refused):
            connect_to("ssh", config).check()
        _release(config)
        assert "password for ml" not in (tmp_path / "lab1/sshd.log").read_text()
        config["key"] = gate.key.read_text()
        assert connect_to("ssh", config).check().nodes[0].cpus
        _release(config)


def test_a_changed_key_of_a_host_on_the_way_is_refused(tmp_path: Path) -> None:
    need(hosts_missing())
    with machines(2, where=tmp_path, behind=True) as (gate, inner):
        config: dict[str, Any] = {
            "address": f"ml@{inner.address}",
            "key": inner.key.read_text(),
            "jump": f"root@{gate.address}",
        }
        driver = connect_to("ssh", config)
        assert isinstance(driver, ssh.Driver)
        details = driver.check().details
        learnt = driver.settle()
        driver.release()
        pins = learnt["pins"]
        assert {name: pin.split()[1] for name, pin in pins.items()} == {
            host.address: host.host_key.split()[1] for host in (gate, inner)
        }
        assert [name for name in details if "host key" in name] == ["host key"]
        gate.new_host_key()
        changed = rf"at {gate.address} on the way to it: its host key has changed"
        with pytest.raises(TargetUnreachable, match=changed):
            connect_to("ssh", config | learnt).check()
        _release(config | learnt)


@pytest.mark.targets
class TestLosses(OnAHost, Bench):
    """What is lost between here and a host is found again, and nothing of it twice."""

    def _talking(self, driver: Driver, receiver: Receiver) -> tuple[Launch, Handle]:
        talk = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; exit 4"
        launch = self.launch_of(receiver, "sh", "-c", talk)
        handle = driver.launch(launch)
        self.hear_line(receiver, launch)
        return launch, handle

    def _all_is_told(self, receiver: Receiver, launch: Launch) -> None:
        heard = self.hear(receiver, launch, lambda heard: "finished" in heard.kinds)
        assert heard.stream().decode().splitlines() == [f"line {n}" for n in range(40)]
        assert heard.finished["exit_code"] == 4
        assert heard.kinds.count("started") == 1

    def test_an_agent_that_is_killed_is_replaced(self, driver: Driver, receiver: Receiver) -> None:
        launch, _ = self._talking(driver, receiver)
        for pid, words in self.host.processes():
            if "agent" in words:
                os.kill(pid, signal.SIGKILL)
        self._all_is_told(receiver, launch)

    def test_sshd_may_be_killed_and_come_back(self, driver: Driver, receiver: Receiver) -> None:
        launch, handle = self._talking(driver, receiver)
        self.host.kill_sshd()
        self.see(lambda: driver.poll([handle])[0].phase is Phase.SILENT)
        self.host.start_sshd()
        self._all_is_told(receiver, launch)

    def test_a_link_may_be_down_for_a_while(self, driver: Driver, receiver: Receiver) -> None:
        launch, _ = self._talking(driver, receiver)
        self.host.link_down()
        time.sleep(6)  # longer than the script takes
        self.host.link_up()
        self._all_is_told(receiver, launch)

    def test_a_host_that_was_rebooted_says_that_its_work_is_lost(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch, handle = self._talking(driver, receiver)
        self.host.reboot()
        self.wait(driver, handle, Phase.DEAD)
        driver.launch(launch)
        heard = self.hear(receiver, launch, lambda heard: "finished" in heard.kinds)
        assert heard.finished["outcome"] == "lost"
        assert heard.kinds.count("started") == 1


@pytest.mark.targets
class TestPool(Bench):
    """Several hosts as one target."""

    @pytest.fixture
    def connect(self, lab: list[Host], tmp_path: Path) -> Iterator[Connect]:
        self.hosts = lab
        config = {
            "hosts": [f"ml@{host.address}" for host in lab],
            "key": lab[0].key.read_text(),
            "root": f"~/{tmp_path.name}",
            "timeout": 3,
        }
        yield lambda: connect_to("ssh", config)
        _release(config)

    def _shares(self, *numbers: int) -> list[dict[str, Any]]:
        return [{"node": self.hosts[number].address} for number in numbers]

    def test_a_host_that_does_not_answer_is_set_aside_and_taken_back(self, driver: Driver) -> None:
        assert [node.reason for node in driver.check().nodes] == ["", "", ""]
        self.hosts[1].kill_sshd()
        reasons: list[str] = []

        def noticed() -> bool:
            reasons[:] = [node.reason for node in driver.check().nodes]
            return reasons[1] != ""

        self.see(noticed)
        assert reasons[0] == reasons[2] == ""
        self.see(lambda: "connection refused" in driver.check().nodes[1].reason)
        self.hosts[1].start_sshd()
        self.see(lambda: [node.reason for node in driver.check().nodes] == ["", "", ""])

    def test_every_node_of_a_launch_knows_its_place(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        names = "RANK LOCAL_RANK NODE_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"
        say = "echo " + " ".join(f"${name}" for name in names.split())
        launch = self.launch_of(
            receiver,
            "sh",
            "-c",
            say,
            nodes=2,
            processes_per_node=2,
            shares=self._shares(1, 2),
        )
        handle = driver.launch(launch)
        self.finish(driver, handle)
        streams = receiver.heard(launch.key).streams
        said = {name: bytes(held).decode().split() for name, held in streams.items()}
        port = said["rank-0"][5]
        master = [self.hosts[1].address, port]
        assert said["rank-0"] == ["0", "0", "0", "4", *master]
        assert said["rank-1"] == ["1", "1", "0", "4", *master]
        assert said["rank-2"] == ["2", "0", "1", "4", *master]
        assert said["rank-3"] == ["3", "1", "1", "4", *master]
        assert handle.endswith(f"@{self.hosts[1].address},{self.hosts[2].address}")

    def test_a_silent_node_makes_the_launch_silent(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        launch = self.launch_of(receiver, "sleep", "60", nodes=2, shares=self._shares(0, 2))
        handle = driver.launch(launch)
        self.wait(driver, handle, Phase.RUNNING)
        self.hosts[2].kill_sshd()
        seen = self.wait(driver, handle, Phase.SILENT)
        assert self.hosts[2].address in seen.reason
        self.hosts[2].start_sshd()
        self.wait(driver, handle, Phase.RUNNING)


@pytest.mark.targets
class TestEnvironments(OnAHost, Bench):
    """What jobs need is brought to a host once."""

    def test_an_environment_is_built_with_the_uv_that_was_brought_along(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        assert driver.check().nodes
        built = wheel(self.host.home, "carried", "1.0")
        inside = f"/root/{built.name}"
        environment = {"kind": "system", "pip": [f"carried @ file://{inside}"]}
        said: list[bytes] = []
        for _ in range(2):
            launch = self.launch_of(
                receiver, "python", "-c", "import carried; print('ok')", environment=environment
            )
            heard = self.run(driver, receiver, launch)
            assert heard.stream() == b"ok\n", heard.stream("prepare").decode()
            said.append(heard.stream("prepare"))
        assert b"building" in said[0]
        assert said[1] == b""
        uv = self.host.home / self.root.removeprefix("~/") / "bin/uv"
        assert os.access(uv, os.X_OK)

    def test_the_second_run_of_a_folder_fetches_nothing(
        self, driver: Driver, receiver: Receiver
    ) -> None:
        snapshot = receiver.snapshot({"a.sh": b"cat data", "data": b"content\n"})
        for _ in range(2):
            launch = self.launch_of(receiver, "sh", "a.sh", snapshot=snapshot)
            assert self.run(driver, receiver, launch).stream() == b"content\n"
        asked = [each for each in receiver.requests if "blobs" in each]
        changed = receiver.snapshot({"a.sh": b"cat data", "data": b"other\n"})
        launch = self.launch_of(receiver, "sh", "a.sh", snapshot=changed)
        assert self.run(driver, receiver, launch).stream() == b"other\n"
        again = [each for each in receiver.requests if "blobs" in each]
        assert len(asked) == 2  # the list of its files, and those that were not there
        assert len(again) == 4


class TestAsOpenSsh:
    """What a user has told OpenSSH holds here, too."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        folder = tmp_path / ".ssh"
        folder.mkdir(mode=0o700)
        return folder

    def _check(self, **config: Any) -> Facts:
        try:
            return connect_to("ssh", config).check()
        finally:
            _release(config)

    def test_a_host_of_its_configuration_is_found(self, folder: Path, lab: list[Host]) -> None:
        (folder / "config").write_text(
            f"Host gpu\n HostName {lab[0].address}\n User ml\n IdentityFile {lab[0].key}\n"
        )
        assert self._check(address="gpu").nodes[0].name == "gpu"

    def test_a_jump_of_its_configuration_is_made(self, folder: Path, tmp_path: Path) -> None:
        need(hosts_missing())
        (place := tmp_path / "lab").mkdir()
        with machines(2, where=place, behind=True) as (gate, inner):
            (folder / "config").write_text(
                f"Host *\n IdentityFile {gate.key}\n"
                f"Host inner\n HostName {inner.address}\n ProxyJump root@{gate.address}\n User ml\n"
            )
            assert self._check(address="inner").nodes[0].cpus

    def test_a_key_that_it_knows_to_be_another_is_refused(
        self, folder: Path, lab: list[Host]
    ) -> None:
        (folder / "known_hosts").write_text(f"{lab[0].address} {lab[1].host_key}\n")
        with pytest.raises(TargetUnreachable, match="its host key is not the one in"):
            self._check(address=f"ml@{lab[0].address}", key=lab[0].key.read_text())

    def test_its_agent_holds_the_key(
        self, lab: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        socket = tmp_path / "agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
        try:
            wait_until(socket.exists, "the agent listens")
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            subprocess.run(["ssh-add", "-q", str(lab[0].key)], check=True)
            assert self._check(address=f"ml@{lab[0].address}").nodes[0].cpus
        finally:
            agent.terminate()
            agent.wait()
