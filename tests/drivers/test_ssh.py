"""The ssh target keeps the contract on real hosts, and says exactly why one cannot be used."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from retarget.core.driver import Handle, Launch
from retarget.core.errors import Invalid, TargetUnreachable
from retarget.core.targets import Facts
from retarget.drivers import connect as connect_to
from retarget.drivers import ssh
from retarget.drivers._ssh import parse_place
from retarget.testing import Connect, DriverContract
from tests.testbeds.hosts import PASSWORD, Host, hosts_missing, machines
from tests.testbeds.namespaces import need

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
        with pytest.raises(TargetUnreachable, match="the key cannot be read"):
            check(key="ssh-ed25519 AAAA of the wrong half")

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

    @pytest.mark.parametrize(
        ("config", "match"),
        [
            ({}, "give the address of one machine, or the hosts of a pool"),
            ({"address": "a", "hosts": ["b"]}, "give the address of one machine"),
            ({"address": "a b"}, "'a b' is not an address such as"),
            ({"address": "a:99999"}, "is not an address"),
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
