"""The SSH hosts of the tests behave like real ones, and leave nothing behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbeds.hosts import PASSWORD, SshHost, missing_for_ssh_hosts, start_ssh_hosts
from tests.testbeds.namespaces import require, wait_until

_QUIET = ("-oLogLevel=ERROR", "-oConnectTimeout=30")


def ssh(host: SshHost, command: str, *options: str, user: str = "root") -> tuple[int, str]:
    """Run the OpenSSH client, which knows only the key of this host."""
    known_hosts = host.key.with_name(f"known-{host.name}")
    known_hosts.write_text(host.known_hosts)
    trust = ("-F/dev/null", "-oStrictHostKeyChecking=yes", f"-oUserKnownHostsFile={known_hosts}")
    login = ("-oBatchMode=yes", f"-i{host.key}")
    completed = subprocess.run(
        ["ssh", *options, *_QUIET, *trust, *login, f"{user}@{host.address}", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return completed.returncode, completed.stdout + completed.stderr


def test_hosts_have_their_own_names_addresses_and_homes(ssh_hosts: list[SshHost]) -> None:
    for host in ssh_hosts:
        assert ssh(host, "uname -n; pwd") == (0, f"{host.name}\n/root\n")
        assert ssh(host, "echo text > note; pwd", user="ml") == (0, "/home/ml\n")
    assert (
        len({host.address for host in ssh_hosts}) == len({host.boot_id for host in ssh_hosts}) == 3
    )
    assert [host.home_of("ml").joinpath("note").read_text() for host in ssh_hosts] == ["text\n"] * 3
    assert (ssh_hosts[0].home_of("ml") / "note").stat().st_uid == 2000
    assert not Path("/home/ml").exists()


def test_hosts_are_reset_after_every_test(ssh_hosts: list[SshHost]) -> None:
    assert [list(host.home_of("ml").iterdir()) for host in ssh_hosts] == [[], [], []]


def test_a_password_is_accepted_for_one_account_only(
    ssh_hosts: list[SshHost], tmp_path: Path
) -> None:
    askpass = tmp_path / "askpass"
    askpass.write_text(f"#!/bin/sh\necho {PASSWORD}\n")
    askpass.chmod(0o755)

    def login(user: str) -> str:
        trust = ("-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null")
        method = ("-oPreferredAuthentications=password", "-oNumberOfPasswordPrompts=1")
        return subprocess.run(
            [
                "ssh",
                "-F/dev/null",
                *_QUIET,
                *trust,
                *method,
                f"{user}@{ssh_hosts[0].address}",
                "id -un",
            ],
            env=os.environ | {"SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        ).stdout

    assert login("ml") == "ml\n"
    assert login("root") == ""


def test_hosts_reach_each_other_and_nothing_else(ssh_hosts: list[SshHost]) -> None:
    connect = f"bash -c 'head -c 4 < /dev/tcp/{ssh_hosts[1].address}/22'"
    assert ssh(ssh_hosts[0], connect) == (0, "SSH-")
    routes = ssh(ssh_hosts[0], "ip route")[1].splitlines()
    assert [line.split()[0] for line in routes] == [
        f"{ssh_hosts[0].address.rsplit('.', 1)[0]}.0/24"
    ]


def test_a_pulled_cable_causes_silence_until_it_is_back(ssh_hosts: list[SshHost]) -> None:
    with socket.create_connection((ssh_hosts[0].address, 22), timeout=200) as connection:
        assert connection.recv(4) == b"SSH-"
        ssh_hosts[0].link_down()
        with pytest.raises(OSError, match=r"timed out|No route to host"):
            socket.create_connection((ssh_hosts[0].address, 22), timeout=0.2)
        assert ssh(ssh_hosts[1], "uname -n") == (0, "lab2\n")
        ssh_hosts[0].link_up()
        assert ssh(ssh_hosts[0], "uname -n") == (0, "lab1\n")
        connection.sendall(b"SSH-2.0-test\r\n")
        assert connection.recv(1)


def test_processes_outlive_their_session_and_sshd(ssh_hosts: list[SshHost]) -> None:
    host = ssh_hosts[0]
    assert ssh(host, "setsid sleep 4321 > /dev/null 2>&1 < /dev/null &")[0] == 0
    host.kill_sshd()
    assert [argv for _, argv in host.processes()] == [["sleep", "4321"]]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.address, 22), timeout=200)
    host.start_sshd()
    assert ssh(host, "pgrep -f 4321 > /dev/null && echo running") == (0, "running\n")
    os.kill(host.processes()[0][0], 0)  # the pids are those of this machine


def test_a_reboot_ends_all_processes_and_keeps_the_homes(ssh_hosts: list[SshHost]) -> None:
    host, before = ssh_hosts[0], ssh_hosts[0].boot_id
    start = "echo kept > note; echo lost > /tmp/note; echo $$; exec sleep 4321"
    with subprocess.Popen(host.namespace.enter("sh", "-c", start), stdout=-1, cwd="/") as work:
        assert work.stdout
        assert work.stdout.readline()
        host.reboot()
    assert host.boot_id != before
    result = ssh(
        host, "cat /proc/sys/kernel/random/boot_id; ls /tmp; pgrep -fx 'sleep 4321'; echo end"
    )
    assert result == (0, f"{host.boot_id}\nend\n")


def test_a_new_host_key_is_noticed(ssh_hosts: list[SshHost]) -> None:
    known = ssh_hosts[0].host_key
    ssh_hosts[0].new_host_key()
    assert ssh_hosts[0].host_key != known
    assert ssh(ssh_hosts[0], "true") == (0, "")
    known_file = ssh_hosts[0].key.with_name("known-old")
    known_file.write_text(f"{ssh_hosts[0].address} {known}\n")
    code, output = ssh(ssh_hosts[0], "true", f"-oUserKnownHostsFile={known_file}")
    assert code == 255
    assert "IDENTIFICATION HAS CHANGED" in output


def test_a_slow_login_waits_for_its_key(ssh_hosts: list[SshHost]) -> None:
    ssh_hosts[0].set_login_delay(4321)
    login = subprocess.Popen(
        [
            *("ssh", "-F/dev/null", *_QUIET, "-oBatchMode=yes", f"-i{ssh_hosts[0].key}"),
            *("-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null"),
            *(f"root@{ssh_hosts[0].address}", "true"),
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(
        lambda: ["sleep", "4321"] in [argv for _, argv in ssh_hosts[0].processes()], "it waits"
    )
    ssh_hosts[0].kill_sshd()
    assert login.wait(200) == 255


def test_a_host_without_python(ssh_hosts: list[SshHost]) -> None:
    ssh_hosts[0].hide_python()
    code, output = ssh(ssh_hosts[0], "command -v python3; ls /usr/bin/python3*; python3 -V")
    assert code == 127
    assert not [line for line in output.splitlines() if line.startswith("/")]
    assert ssh(ssh_hosts[1], "python3 -c 'print(1)'") == (0, "1\n")
    ssh_hosts[0].restore_python()
    assert ssh(ssh_hosts[0], "python3 -c 'print(1)'") == (0, "1\n")


def test_a_home_that_is_read_only(ssh_hosts: list[SshHost]) -> None:
    ssh_hosts[0].make_home_read_only()
    assert "Read-only file system" in ssh(ssh_hosts[0], "touch note")[1]
    assert "Read-only file system" in ssh(ssh_hosts[0], "touch note", user="ml")[1]
    ssh_hosts[0].make_home_writable()
    assert ssh(ssh_hosts[0], "touch note") == (0, "")


def test_a_disk_that_is_full_and_a_host_behind_another(tmp_path: Path) -> None:
    require(missing_for_ssh_hosts())
    with start_ssh_hosts(2, folder=tmp_path, home_size="1m", first_is_gateway=True) as (
        first,
        second,
    ):
        first.fill_disk()
        assert "No space left" in ssh(first, "echo much > note")[1]
        first.free_disk()
        assert ssh(first, "echo much > note") == (0, "")
        with pytest.raises(OSError, match=r"timed out|No route to host"):
            socket.create_connection((second.address, 22), timeout=0.2)
        inner = f"bash -c 'head -c 4 < /dev/tcp/{second.address}/22'"
        assert ssh(first, inner) == (0, "SSH-")


def test_hosts_leave_nothing_behind(tmp_path: Path) -> None:
    require(missing_for_ssh_hosts())
    before = _cables(os.getpid())
    with start_ssh_hosts(2, folder=tmp_path) as hosts:
        assert _cables(os.getpid()) != before
        pids = [pid for host in hosts for pid, _ in host.processes()]
        pids += [host.namespace.pid for host in hosts]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert _cables(os.getpid()) == before
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_killed_process_leaves_nothing_behind(tmp_path: Path) -> None:
    require(missing_for_ssh_hosts())
    script = (
        "import pathlib, sys, time\n"
        "from tests.testbeds.hosts import start_ssh_hosts\n"
        "with start_ssh_hosts(1, folder=pathlib.Path(sys.argv[1])) as hosts:\n"
        "    print(hosts[0].namespace.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout
        keeper = Path("/proc", process.stdout.readline().decode().strip())
        assert keeper.exists()
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not keeper.exists(), "the host ends")
    wait_until(lambda: not _cables(process.pid), "its cable is gone")


def _cables(pid: int) -> list[str]:
    return [name for _, name in socket.if_nameindex() if name.startswith(f"rt{pid}-")]
