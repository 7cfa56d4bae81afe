"""The hosts of the tests are real enough, and leave nothing behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbeds.hosts import PASSWORD, Host, hosts_missing, machines
from tests.testbeds.namespaces import need, wait_until

_QUIET = ("-oLogLevel=ERROR", "-oConnectTimeout=30")


def ssh(host: Host, command: str, *more: str, user: str = "root") -> tuple[int, str]:
    """Run the OpenSSH client, which knows the host's key and no other."""
    known = host.key.with_name(f"known-{host.name}")
    known.write_text(host.known_hosts)
    trust = ("-F/dev/null", "-oStrictHostKeyChecking=yes", f"-oUserKnownHostsFile={known}")
    who = ("-oBatchMode=yes", f"-i{host.key}")
    done = subprocess.run(
        ["ssh", *more, *_QUIET, *trust, *who, f"{user}@{host.address}", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_hosts_have_names_addresses_and_homes_of_their_own(lab: list[Host]) -> None:
    for host in lab:
        assert ssh(host, "uname -n; pwd") == (0, f"{host.name}\n/root\n")
        assert ssh(host, "echo mine > note; pwd", user="ml") == (0, "/home/ml\n")
    assert len({host.address for host in lab}) == len({host.boot_id for host in lab}) == 3
    assert [host.home_of("ml").joinpath("note").read_text() for host in lab] == ["mine\n"] * 3
    assert (lab[0].home_of("ml") / "note").stat().st_uid == 2000
    assert not Path("/home/ml").exists()


def test_hosts_are_as_new_for_every_test(lab: list[Host]) -> None:
    assert [list(host.home_of("ml").iterdir()) for host in lab] == [[], [], []]


def test_a_password_opens_one_account_and_not_the_other(lab: list[Host], tmp_path: Path) -> None:
    asked = tmp_path / "ask"
    asked.write_text(f"#!/bin/sh\necho {PASSWORD}\n")
    asked.chmod(0o755)

    def login(user: str) -> str:
        trust = ("-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null")
        only = ("-oPreferredAuthentications=password", "-oNumberOfPasswordPrompts=1")
        return subprocess.run(
            ["ssh", "-F/dev/null", *_QUIET, *trust, *only, f"{user}@{lab[0].address}", "id -un"],
            env=os.environ | {"SSH_ASKPASS": str(asked), "SSH_ASKPASS_REQUIRE": "force"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    assert login("ml") == "ml\n"
    assert login("root") == ""


def test_hosts_reach_each_other_and_nothing_else(lab: list[Host]) -> None:
    talk = f"bash -c 'head -c 4 < /dev/tcp/{lab[1].address}/22'"
    assert ssh(lab[0], talk) == (0, "SSH-")
    routes = ssh(lab[0], "ip route")[1].splitlines()
    assert [line.split()[0] for line in routes] == [f"{lab[0].address.rsplit('.', 1)[0]}.0/24"]


def test_a_pulled_cable_is_silence_until_it_is_back(lab: list[Host]) -> None:
    with socket.create_connection((lab[0].address, 22), timeout=30) as talk:
        assert talk.recv(4) == b"SSH-"
        lab[0].link_down()
        with pytest.raises(OSError, match=r"timed out|No route to host"):
            socket.create_connection((lab[0].address, 22), timeout=0.2)
        assert ssh(lab[1], "uname -n") == (0, "lab2\n")
        lab[0].link_up()
        assert ssh(lab[0], "uname -n") == (0, "lab1\n")
        talk.sendall(b"SSH-2.0-test\r\n")
        assert talk.recv(1)


def test_work_outlives_its_session_and_sshd(lab: list[Host]) -> None:
    host = lab[0]
    assert ssh(host, "setsid sleep 4321 > /dev/null 2>&1 < /dev/null &")[0] == 0
    host.kill_sshd()
    assert [argv for _, argv in host.processes()] == [["sleep", "4321"]]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.address, 22), timeout=30)
    host.start_sshd()
    assert ssh(host, "pgrep -f 4321 > /dev/null && echo there") == (0, "there\n")
    os.kill(host.processes()[0][0], 0)  # the pids are this machine's


def test_a_reboot_ends_all_work_and_keeps_the_homes(lab: list[Host]) -> None:
    host, before = lab[0], lab[0].boot_id
    start = "echo kept > note; echo lost > /tmp/note; echo $$; exec sleep 4321"
    with subprocess.Popen(host.namespace.enter("sh", "-c", start), stdout=-1, cwd="/") as work:
        assert work.stdout
        assert work.stdout.readline()
        host.reboot()
    assert host.boot_id != before
    seen = ssh(
        host, "cat /proc/sys/kernel/random/boot_id; ls /tmp; pgrep -fx 'sleep 4321'; echo end"
    )
    assert seen == (0, f"{host.boot_id}\nend\n")


def test_a_new_host_key_is_noticed(lab: list[Host]) -> None:
    known = lab[0].host_key
    lab[0].new_host_key()
    assert lab[0].host_key != known
    assert ssh(lab[0], "true") == (0, "")
    known_file = lab[0].key.with_name("known-old")
    known_file.write_text(f"{lab[0].address} {known}\n")
    code, said = ssh(lab[0], "true", f"-oUserKnownHostsFile={known_file}")
    assert code == 255
    assert "IDENTIFICATION HAS CHANGED" in said


def test_a_slow_login_waits_for_its_key(lab: list[Host]) -> None:
    lab[0].set_login_delay(4321)
    login = subprocess.Popen(
        [
            *("ssh", "-F/dev/null", *_QUIET, "-oBatchMode=yes", f"-i{lab[0].key}"),
            *("-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null"),
            *(f"root@{lab[0].address}", "true"),
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: ["sleep", "4321"] in [argv for _, argv in lab[0].processes()], "it waits")
    lab[0].kill_sshd()
    assert login.wait(60) == 255


def test_a_host_without_python(lab: list[Host]) -> None:
    lab[0].without_python()
    code, said = ssh(lab[0], "command -v python3; ls /usr/bin/python3*; python3 -V")
    assert code == 127
    assert not [line for line in said.splitlines() if line.startswith("/")]
    assert ssh(lab[1], "python3 -c 'print(1)'") == (0, "1\n")
    lab[0].with_python()
    assert ssh(lab[0], "python3 -c 'print(1)'") == (0, "1\n")


def test_a_home_that_is_read_only(lab: list[Host]) -> None:
    lab[0].make_home_read_only()
    assert "Read-only file system" in ssh(lab[0], "touch note")[1]
    assert "Read-only file system" in ssh(lab[0], "touch note", user="ml")[1]
    lab[0].make_home_writable()
    assert ssh(lab[0], "touch note") == (0, "")


def test_a_disk_that_is_full_and_a_host_behind_another(tmp_path: Path) -> None:
    need(hosts_missing())
    with machines(2, where=tmp_path, home_size="1m", behind=True) as (first, second):
        first.fill_disk()
        assert "No space left" in ssh(first, "echo much > note")[1]
        first.free_disk()
        assert ssh(first, "echo much > note") == (0, "")
        with pytest.raises(OSError, match=r"timed out|No route to host"):
            socket.create_connection((second.address, 22), timeout=0.2)
        inner = f"bash -c 'head -c 4 < /dev/tcp/{second.address}/22'"
        assert ssh(first, inner) == (0, "SSH-")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    need(hosts_missing())
    before = _cables(os.getpid())
    with machines(2, where=tmp_path) as hosts:
        assert _cables(os.getpid()) != before
        pids = [pid for host in hosts for pid, _ in host.processes()]
        pids += [host.namespace.pid for host in hosts]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert _cables(os.getpid()) == before
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_nothing_is_left_behind_by_a_run_that_was_killed(tmp_path: Path) -> None:
    need(hosts_missing())
    script = (
        "import pathlib, sys, time\n"
        "from tests.testbeds.hosts import machines\n"
        "with machines(1, where=pathlib.Path(sys.argv[1])) as hosts:\n"
        "    print(hosts[0].namespace.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as doomed:
        assert doomed.stdout
        keeper = Path("/proc", doomed.stdout.readline().decode().strip())
        assert keeper.exists()
        doomed.send_signal(signal.SIGKILL)
    wait_until(lambda: not keeper.exists(), "the host ends")
    wait_until(lambda: not _cables(doomed.pid), "its cable is gone")


def _cables(pid: int) -> list[str]:
    return [name for _, name in socket.if_nameindex() if name.startswith(f"rt{pid}-")]
