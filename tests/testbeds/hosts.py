"""Real SSH hosts on this machine: each has an address, a name, processes, homes and an sshd.

The hosts and the switch that connects them are namespaces. One cable leads from the switch to the
network of this machine, so that a server under test reaches the hosts at 10.211.X.11 and up. The
hosts reach each other and nothing else. Two users can log in: root, and `ml` without privileges;
both with the key, `ml` also with a password. The hosts see the files of this machine, but each has
its own homes, /tmp, /run, /dev/shm and /etc/ssh.
"""

import ipaddress
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import ENOSPC
from pathlib import Path

from tests.testbeds.namespaces import Namespace, missing_for_namespaces, run, wait_until

PASSWORD = "learning"
USERS = {"root": "/root", "ml": "/home/ml"}
_PASSWORD_HASH = (
    "$6$retarget$oufYxMtxL4IGIzi9rONGHerZQ07pAmwg1D/qI1Oq6cn/"
    "lGiCnRFlvqEH.TXpi1ew65i80ZI.bBPMinOKEGj1O0"
)
_ML_UID = 2000  # uid and gid
_PORT = 22
_SSHD = "/usr/sbin/sshd"

_SSHD_CONFIG = """\
HostKey /etc/ssh/host_key
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication yes
AuthorizedKeysFile none
AuthorizedKeysCommand /etc/ssh/keys
AuthorizedKeysCommandUser root
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
PidFile none
"""
# The keys are outside of the homes, so that logins work when a home is wiped, full or read-only.
_AUTHORIZED_KEYS_COMMAND = """\
#!/bin/sh
sleep "$(cat /etc/ssh/login_delay)"
cat /etc/ssh/authorized_keys
"""
_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
_HIDE_PYTHON = """\
layers=/run/without$1
mkdir -p "$layers"
mount -t tmpfs none "$layers"
mkdir "$layers/upper" "$layers/work"
mount -t overlay -o "lowerdir=$1,upperdir=$layers/upper,workdir=$layers/work" none "$1"
rm -f "$1"/python*
umount -l "$layers"
"""
# Files are mounted from /mnt, because their own folders may be hidden by earlier mounts.
_SETUP = """\
echo "$NAME" > /proc/sys/kernel/hostname
mount --rbind "$FOLDER" /mnt
mount -t tmpfs -o mode=755 none /run
mkdir /run/sshd
mount -t tmpfs -o mode=755 none /home
mkdir /home/ml
for user in root ml; do
    home=/root
    [ $user = root ] || home=/home/ml
    if [ -n "$SIZE" ]; then
        mount -t tmpfs -o "size=$SIZE,mode=700,uid=$(stat -c %u /mnt/$user)" none $home
    else
        mount --bind /mnt/$user $home
    fi
done
for name in passwd shadow group hosts; do mount --bind /mnt/etc/$name /etc/$name; done
mount --bind /mnt/ssh /etc/ssh
mount --bind /mnt/boot_id /proc/sys/kernel/random/boot_id
mount -t tmpfs -o mode=1777 none /dev/shm
mount --bind /mnt/tmp /tmp
umount -l /mnt
ip link set lo up
"""


def missing_for_ssh_hosts() -> str | None:
    """Say what this machine lacks for SSH hosts; None if nothing."""
    return missing_for_namespaces("sshd", "ssh", "ssh-keygen")


@contextmanager
def start_ssh_hosts(
    count: int = 3,
    *,
    folder: Path,
    home_size: str | None = None,
    first_is_gateway: bool = False,
    sshd_options: Sequence[str] = (),
) -> Generator[list["SshHost"]]:
    """Start hosts lab1, lab2 …; afterwards only their files in `folder` remain.

    `home_size`, such as 20m, makes each home a disk of that size. With `first_is_gateway`, this
    machine reaches only the first host, and the first reaches the others. `sshd_options` are added
    to the configuration of sshd.
    """
    with ExitStack() as stack:
        switch = stack.enter_context(_switch(first_is_gateway=first_is_gateway))
        key = folder / "id_ed25519"
        _make_key(key, "retarget")
        addresses = switch.addresses(count)
        names = "".join(f"{addresses[i]} lab{i + 1}\n" for i in range(count))
        hosts: list[SshHost] = []
        for number, address in enumerate(addresses, 1):
            host_folder = folder / f"lab{number}"
            _write_files(
                host_folder, key, names=f"127.0.0.1 localhost\n{names}", sshd_options=sshd_options
            )
            host = SshHost(
                f"lab{number}", address, host_folder, key, switch=switch, home_size=home_size
            )
            stack.callback(host.close)
            hosts.append(host)
        for number, host in enumerate(hosts, 1):
            switch.plug(host, inner=first_is_gateway and number > 1)
        if first_is_gateway:
            switch.plug_inner(hosts[0])
        for host in hosts:
            host.start_sshd()
        yield hosts


class SshHost:
    """One host. `restore` undoes what a test does to it."""

    user = "root"
    port = _PORT

    def __init__(
        self,
        name: str,
        address: str,
        folder: Path,
        key: Path,
        *,
        switch: "Switch",
        home_size: str | None,
    ) -> None:
        self.name = name
        self.address = address
        self.key = key
        self._folder = folder
        self._switch = switch
        self._sshd: subprocess.Popen[bytes] | None = None
        self._hidden_folders: list[str] = []
        setup = {"NAME": name, "FOLDER": str(folder), "SIZE": home_size or ""}
        self.namespace = Namespace(_SETUP, setup)

    @property
    def home(self) -> Path:
        """The home of root, as a path on this machine."""
        return self.home_of(self.user)

    def home_of(self, user: str) -> Path:
        return self.path(USERS[user])

    def path(self, inside: str) -> Path:
        """Return the path on this machine of a file of the host."""
        return Path(f"/proc/{self.namespace.pid}/root") / inside.lstrip("/")

    @property
    def host_key(self) -> str:
        return " ".join((self._folder / "ssh/host_key.pub").read_text().split()[:2])

    @property
    def known_hosts(self) -> str:
        """The line of this host in a known_hosts file."""
        return f"{self.address} {self.host_key}\n"

    @property
    def boot_id(self) -> str:
        return (self._folder / "boot_id").read_text().strip()

    def run(self, *argv: str) -> str:
        """Run a command on the host as root, without SSH."""
        return self.namespace.run(*argv)

    def processes(self) -> list[tuple[int, list[str]]]:
        """Return all processes, including sshd, with their pids on this machine."""
        return self.namespace.processes()

    def link_down(self) -> None:
        """Pull the cable: packets to the host are lost without an error."""
        self._switch.link(self.name, "down")

    def link_up(self) -> None:
        self._switch.link(self.name, "up")

    def set_login_delay(self, seconds: float) -> None:
        """Delay every key lookup by this long; a login has one or two."""
        (self._folder / "ssh/login_delay").write_text(f"{seconds}\n")

    def start_sshd(self) -> None:
        """Start sshd unless it runs, and return when it listens."""
        if self._sshd is None:
            log = self._folder / "sshd.log"
            self._sshd = self.namespace.popen(_SSHD, "-D", "-e", log=log)
            wait_until(self._listens, f"{self.name}'s sshd listens; see {log}")

    def kill_sshd(self) -> None:
        """Kill the daemon and all sessions. Processes started in them continue."""
        self.namespace.kill(_is_sshd)
        self._forget_sshd()

    def new_host_key(self) -> None:
        self.kill_sshd()
        _make_key(self._folder / "ssh/host_key", self.name)
        self.start_sshd()

    def kill_everything(self) -> None:
        """Kill every process, including sshd."""
        self.namespace.kill()
        self._forget_sshd()

    def reboot(self) -> None:
        """Restart with a new boot id and pids from 1 up. Homes stay."""
        self.kill_everything()
        _empty(self._folder / "tmp")
        _empty(self.path("/dev/shm"))
        (self._folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self.run("sh", "-c", "echo 1 > /proc/sys/kernel/ns_last_pid")
        self.start_sshd()

    def fill_disk(self) -> None:
        """Fill the homes, which must have a size."""
        for user in USERS:
            if not os.path.ismount(self.home_of(user)):
                raise ValueError("fill_disk needs start_ssh_hosts(home_size=…)")
            _fill(self.home_of(user) / ".filler")

    def free_disk(self) -> None:
        for user in USERS:
            (self.home_of(user) / ".filler").unlink(missing_ok=True)

    def make_home_read_only(self) -> None:
        self._remount("ro")

    def make_home_writable(self) -> None:
        self._remount("rw")

    def hide_python(self) -> None:
        """Hide Python in every folder of PATH."""
        for folder in _PROGRAM_FOLDERS:
            if folder not in self._hidden_folders and any(Path(folder).glob("python*")):
                self.run("sh", "-euc", _HIDE_PYTHON, "sh", folder)
                self._hidden_folders.append(folder)

    def restore_python(self) -> None:
        while self._hidden_folders:
            self.run("umount", "-l", self._hidden_folders.pop())

    def restore(self) -> None:
        """Kill all processes, empty the homes and undo all changes. Only the keys stay."""
        self.link_up()
        self.set_login_delay(0)
        self.kill_everything()
        self.restore_python()
        self.make_home_writable()
        for inside in ("/tmp", "/dev/shm", *USERS.values()):
            _empty(self.path(inside))
        self.start_sshd()

    def close(self) -> None:
        self.namespace.close()
        self._forget_sshd()

    def _remount(self, mode: str) -> None:
        for home in USERS.values():
            self.run("mount", "-o", f"remount,bind,{mode}", home)

    def _forget_sshd(self) -> None:
        if self._sshd:
            self._sshd.wait(200)
        self._sshd = None

    def _listens(self) -> bool:
        assert self._sshd
        if self._sshd.poll() is not None:
            raise RuntimeError((self._folder / "sshd.log").read_text())
        sockets = Path(f"/proc/{self.namespace.pid}/net/tcp").read_text()
        return f"00000000:{_PORT:04X} 00000000:0000 0A" in sockets


class Switch:
    """The bridge that connects the hosts, and a second one for hosts behind a gateway."""

    def __init__(
        self, network: ipaddress.IPv4Network, cable: str, *, first_is_gateway: bool
    ) -> None:
        self._network = network
        self._first_is_gateway = first_is_gateway
        self.cable = cable
        self._namespace = Namespace("ip link set lo up")
        for name in ("outer", "inner"):
            self._ip("link", "add", name, "type", "bridge")
            self._ip("link", "set", name, "up")
        peer = ["peer", "name", "machine", "netns", str(self._namespace.pid)]
        run(["ip", "link", "add", cable, "type", "veth", *peer])
        # The whole network is at this cable, so that no other route leads behind the gateway.
        run(["ip", "address", "add", f"{network[1]}/{network.prefixlen}", "dev", cable])
        run(["ip", "link", "set", cable, "up"])
        self._ip("link", "set", "machine", "master", "outer", "up")

    def addresses(self, count: int) -> list[str]:
        inner = 128 if self._first_is_gateway else 0
        return [str(self._network[11 + number + bool(number) * inner]) for number in range(count)]

    def plug(self, host: SshHost, *, inner: bool) -> None:
        self._plug(host, "eth0", host.name, "inner" if inner else "outer")
        self._address(host, host.address, "eth0")

    def plug_inner(self, host: SshHost) -> None:
        """Give the gateway a second cable, to the hosts behind it."""
        self._plug(host, "eth1", f"{host.name}-in", "inner")
        self._address(host, str(self._network[129]), "eth1")

    def link(self, port: str, state: str) -> None:
        self._ip("link", "set", port, state)

    def close(self) -> None:
        with suppress(RuntimeError):
            run(["ip", "link", "delete", self.cable])
        self._namespace.close()

    def _plug(self, host: SshHost, name: str, port: str, bridge: str) -> None:
        self._ip(
            *("link", "add", port, "type", "veth"),
            *("peer", "name", name, "netns", str(host.namespace.pid)),
        )
        self._ip("link", "set", port, "master", bridge, "up")

    def _address(self, host: SshHost, address: str, device: str) -> None:
        width = 25 if self._first_is_gateway else 24
        host.run("ip", "address", "add", f"{address}/{width}", "dev", device)
        host.run("ip", "link", "set", device, "up")

    def _ip(self, *argv: str) -> str:
        # Enter only the network namespace of the switch: the pids of the hosts are this machine's.
        return run(["nsenter", f"--net=/proc/{self._namespace.pid}/ns/net", "ip", *argv])


@contextmanager
def _switch(*, first_is_gateway: bool) -> Generator[Switch]:
    claim, number = _claim_network()
    with claim:
        network = ipaddress.IPv4Network(f"10.211.{number}.0/24")
        switch = Switch(network, f"rt{os.getpid()}-{number}", first_is_gateway=first_is_gateway)
        try:
            yield switch
        finally:
            switch.close()


def _claim_network() -> tuple[socket.socket, int]:
    """Claim an unused network number with an abstract socket, which ends with this process."""
    addresses = run(["ip", "-o", "-4", "address"])
    for number in range(256):
        claim = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            claim.bind(f"\0retarget-network-{number}")
            if f" 10.211.{number}." not in addresses:
                return claim, number
        claim.close()
    raise RuntimeError("every network from 10.211.0.0 to 10.211.255.0 is taken")


def _write_files(folder: Path, key: Path, *, names: str, sshd_options: Sequence[str]) -> None:
    for name, owner, mode in (
        ("root", 0, 0o700),
        ("ml", _ML_UID, 0o700),
        ("tmp", 0, 0o1777),
        ("ssh", 0, 0o755),
        ("etc", 0, 0o755),
    ):
        (folder / name).mkdir(parents=True)
        os.chown(folder / name, owner, owner)
        (folder / name).chmod(mode)
    (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    (folder / "etc/hosts").write_text(names)
    _add_user(folder / "etc")
    ssh = folder / "ssh"
    _make_key(ssh / "host_key", folder.name)
    (ssh / "sshd_config").write_text(_SSHD_CONFIG + "".join(f"{line}\n" for line in sshd_options))
    (ssh / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    (ssh / "login_delay").write_text("0\n")
    (ssh / "keys").write_text(_AUTHORIZED_KEYS_COMMAND)
    (ssh / "keys").chmod(0o755)


def _add_user(etc: Path) -> None:
    for name, line, mode in (
        ("passwd", f"ml:x:{_ML_UID}:{_ML_UID}::/home/ml:/bin/bash", 0o644),
        ("shadow", f"ml:{_PASSWORD_HASH}:19000:0:99999:7:::", 0o600),
        ("group", f"ml:x:{_ML_UID}:", 0o644),
    ):
        lines = Path("/etc", name).read_text().splitlines()
        others = [other for other in lines if not other.startswith("ml:")]
        (etc / name).write_text("\n".join([*others, line, ""]))
        (etc / name).chmod(mode)


def _make_key(path: Path, comment: str) -> None:
    path.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def _is_sshd(pid: int) -> bool:
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("sshd")
    return False


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                size = min(size, file.write(bytes(size)))
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                size //= 2
