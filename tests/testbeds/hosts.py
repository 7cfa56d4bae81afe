"""Real hosts with SSH on this machine: an address, a name, processes, homes and an sshd each.

A lab is one switch and its hosts, all in namespaces. The switch has one cable to the machine's own
network, so that a server under test reaches the hosts at 10.211.X.11 and on, and they each other;
no host has a route to anywhere else. Two users can log in: root, and `ml` who has no rights; both
with the key, `ml` also with a password. The machine's own files are seen below, but for the homes,
/tmp, /run, /dev/shm and /etc/ssh, which each host has for itself.
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

from tests.testbeds.namespaces import Namespace, namespaces_missing, run, wait_until

PASSWORD = "learning"
USERS = {"root": "/root", "ml": "/home/ml"}
_HASH = (
    "$6$retarget$oufYxMtxL4IGIzi9rONGHerZQ07pAmwg1D/qI1Oq6cn/"
    "lGiCnRFlvqEH.TXpi1ew65i80ZI.bBPMinOKEGj1O0"
)
_ML = 2000  # uid and gid
_PORT = 22
_SSHD = "/usr/sbin/sshd"

_CONFIG = """\
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
# The keys lie outside of the homes: they outlive a home that is wiped, full or read-only.
_KEYS = """\
#!/bin/sh
sleep "$(cat /etc/ssh/login_delay)"
cat /etc/ssh/authorized_keys
"""
_PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
_HIDE_PYTHON = """\
layers=/run/without$1
mkdir -p "$layers"
mount -t tmpfs none "$layers"
mkdir "$layers/upper" "$layers/work"
mount -t overlay -o "lowerdir=$1,upperdir=$layers/upper,workdir=$layers/work" none "$1"
rm -f "$1"/python*
umount -l "$layers"
"""
# Sources are taken from /mnt, because what they lie under may be covered one by one.
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


def hosts_missing() -> str | None:
    """Say what this machine lacks for hosts with SSH."""
    return namespaces_missing("sshd", "ssh", "ssh-keygen")


@contextmanager
def machines(
    count: int = 3,
    *,
    where: Path,
    home_size: str | None = None,
    behind: bool = False,
    sshd: Sequence[str] = (),
) -> Generator[list["Host"]]:
    """Start hosts lab1, lab2 …; at the end nothing of them is left but their files in `where`.

    `home_size`, such as 20m, makes each home a disk of that size. With `behind` only the first is
    reached from this machine, and the others from the first. `sshd` are more lines of its
    configuration.
    """
    with ExitStack() as stack:
        switch = stack.enter_context(_switch(behind=behind))
        key = where / "id_ed25519"
        _make_key(key, "retarget")
        addresses = switch.addresses(count)
        names = "".join(f"{addresses[i]} lab{i + 1}\n" for i in range(count))
        hosts: list[Host] = []
        for number, address in enumerate(addresses, 1):
            folder = where / f"lab{number}"
            _write_files(folder, key, names=f"127.0.0.1 localhost\n{names}", sshd=sshd)
            host = Host(f"lab{number}", address, folder, key, switch=switch, home_size=home_size)
            stack.callback(host.close)
            hosts.append(host)
        for number, host in enumerate(hosts, 1):
            switch.plug(host, inner=behind and number > 1)
        if behind:
            switch.plug_inner(hosts[0])
        for host in hosts:
            host.start_sshd()
        yield hosts


class Host:
    """One host. What a test does to it, `restore` undoes."""

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
        self._covered: list[str] = []
        setup = {"NAME": name, "FOLDER": str(folder), "SIZE": home_size or ""}
        self.namespace = Namespace(_SETUP, setup)

    @property
    def home(self) -> Path:
        """Root's home, as this machine sees it."""
        return self.home_of(self.user)

    def home_of(self, user: str) -> Path:
        return self.path(USERS[user])

    def path(self, inside: str) -> Path:
        """Return where a file of the host is found from this machine."""
        return Path(f"/proc/{self.namespace.pid}/root") / inside.lstrip("/")

    @property
    def host_key(self) -> str:
        return " ".join((self._folder / "ssh/host_key.pub").read_text().split()[:2])

    @property
    def known_hosts(self) -> str:
        """The line of a known_hosts file."""
        return f"{self.address} {self.host_key}\n"

    @property
    def boot_id(self) -> str:
        return (self._folder / "boot_id").read_text().strip()

    def run(self, *argv: str) -> str:
        """Run a command on the host as root, without SSH."""
        return self.namespace.run(*argv)

    def processes(self) -> list[tuple[int, list[str]]]:
        """Return all processes with their pids on this machine, sshd among them."""
        return self.namespace.processes()

    def link_down(self) -> None:
        """Pull the cable: what is sent to the host is lost, and nobody is told."""
        self._switch.link(self.name, "down")

    def link_up(self) -> None:
        self._switch.link(self.name, "up")

    def set_login_delay(self, seconds: float) -> None:
        """Let every look at a key take this long; a login has one or two."""
        (self._folder / "ssh/login_delay").write_text(f"{seconds}\n")

    def start_sshd(self) -> None:
        """Start sshd unless it runs, and return when it listens."""
        if self._sshd is None:
            log = self._folder / "sshd.log"
            self._sshd = self.namespace.popen(_SSHD, "-D", "-e", log=log)
            wait_until(self._listens, f"{self.name}'s sshd listens; see {log}")

    def kill_sshd(self) -> None:
        """Kill the daemon and all sessions; what was started in them goes on."""
        self.namespace.kill(_is_sshd)
        self._forget_sshd()

    def new_host_key(self) -> None:
        self.kill_sshd()
        _make_key(self._folder / "ssh/host_key", self.name)
        self.start_sshd()

    def kill_everything(self) -> None:
        """Kill every process, sshd too."""
        self.namespace.kill()
        self._forget_sshd()

    def reboot(self) -> None:
        """Come up again with another boot id and process ids from the beginning; homes stay."""
        self.kill_everything()
        _empty(self._folder / "tmp")
        _empty(self.path("/dev/shm"))
        (self._folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self.run("sh", "-c", "echo 1 > /proc/sys/kernel/ns_last_pid")
        self.start_sshd()

    def fill_disk(self) -> None:
        """Leave no room in the homes, which must have been given a size."""
        for user in USERS:
            if not os.path.ismount(self.home_of(user)):
                raise ValueError("fill_disk needs machines(home_size=…)")
            _fill(self.home_of(user) / ".filler")

    def free_disk(self) -> None:
        for user in USERS:
            (self.home_of(user) / ".filler").unlink(missing_ok=True)

    def make_home_read_only(self) -> None:
        self._remount("ro")

    def make_home_writable(self) -> None:
        self._remount("rw")

    def without_python(self) -> None:
        """Let there be no python in any folder of PATH."""
        for folder in _PROGRAMS:
            if folder not in self._covered and any(Path(folder).glob("python*")):
                self.run("sh", "-euc", _HIDE_PYTHON, "sh", folder)
                self._covered.append(folder)

    def with_python(self) -> None:
        while self._covered:
            self.run("umount", "-l", self._covered.pop())

    def restore(self) -> None:
        """Be as new: all work killed, homes empty, everything undone. Only the keys stay."""
        self.link_up()
        self.set_login_delay(0)
        self.kill_everything()
        self.with_python()
        self.make_home_writable()
        for inside in ("/tmp", "/dev/shm", *USERS.values()):
            _empty(self.path(inside))
        self.start_sshd()

    def close(self) -> None:
        self.namespace.close()
        self._forget_sshd()

    def _remount(self, how: str) -> None:
        for home in USERS.values():
            self.run("mount", "-o", f"remount,bind,{how}", home)

    def _forget_sshd(self) -> None:
        if self._sshd:
            self._sshd.wait(30)
        self._sshd = None

    def _listens(self) -> bool:
        assert self._sshd
        if self._sshd.poll() is not None:
            raise RuntimeError((self._folder / "sshd.log").read_text())
        sockets = Path(f"/proc/{self.namespace.pid}/net/tcp").read_text()
        return f"00000000:{_PORT:04X} 00000000:0000 0A" in sockets


class Switch:
    """The bridge the hosts are plugged into, and a second one for those behind the first."""

    def __init__(self, network: ipaddress.IPv4Network, cable: str, *, behind: bool) -> None:
        self._network = network
        self._behind = behind
        self.cable = cable
        self._namespace = Namespace("ip link set lo up")
        for name in ("outer", "inner"):
            self._ip("link", "add", name, "type", "bridge")
            self._ip("link", "set", name, "up")
        peer = ["peer", "name", "machine", "netns", str(self._namespace.pid)]
        run(["ip", "link", "add", cable, "type", "veth", *peer])
        # All of the network is at this cable: what is behind is not looked for elsewhere.
        run(["ip", "address", "add", f"{network[1]}/{network.prefixlen}", "dev", cable])
        run(["ip", "link", "set", cable, "up"])
        self._ip("link", "set", "machine", "master", "outer", "up")

    def addresses(self, count: int) -> list[str]:
        inner = 128 if self._behind else 0
        return [str(self._network[11 + number + bool(number) * inner]) for number in range(count)]

    def plug(self, host: Host, *, inner: bool) -> None:
        self._plug(host, "eth0", host.name, "inner" if inner else "outer")
        self._address(host, host.address, "eth0")

    def plug_inner(self, host: Host) -> None:
        """Give the host a second cable, to those behind it."""
        self._plug(host, "eth1", f"{host.name}-in", "inner")
        self._address(host, str(self._network[129]), "eth1")

    def link(self, port: str, state: str) -> None:
        self._ip("link", "set", port, state)

    def close(self) -> None:
        with suppress(RuntimeError):
            run(["ip", "link", "delete", self.cable])
        self._namespace.close()

    def _plug(self, host: Host, name: str, port: str, bridge: str) -> None:
        self._ip(
            *("link", "add", port, "type", "veth"),
            *("peer", "name", name, "netns", str(host.namespace.pid)),
        )
        self._ip("link", "set", port, "master", bridge, "up")

    def _address(self, host: Host, address: str, device: str) -> None:
        width = 25 if self._behind else 24
        host.run("ip", "address", "add", f"{address}/{width}", "dev", device)
        host.run("ip", "link", "set", device, "up")

    def _ip(self, *argv: str) -> str:
        # Only the network is the switch's: the pids of the hosts are this machine's.
        return run(["nsenter", f"--net=/proc/{self._namespace.pid}/ns/net", "ip", *argv])


@contextmanager
def _switch(*, behind: bool) -> Generator[Switch]:
    claim, number = _claim_network()
    with claim:
        network = ipaddress.IPv4Network(f"10.211.{number}.0/24")
        switch = Switch(network, f"rt{os.getpid()}-{number}", behind=behind)
        try:
            yield switch
        finally:
            switch.close()


def _claim_network() -> tuple[socket.socket, int]:
    """Take a number nobody has: a socket without a file, which ends with this process."""
    taken = run(["ip", "-o", "-4", "address"])
    for number in range(256):
        claim = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            claim.bind(f"\0retarget-lab-{number}")
            if f" 10.211.{number}." not in taken:
                return claim, number
        claim.close()
    raise RuntimeError("every network from 10.211.0.0 to 10.211.255.0 is taken")


def _write_files(folder: Path, key: Path, *, names: str, sshd: Sequence[str]) -> None:
    for name, owner, mode in (
        ("root", 0, 0o700),
        ("ml", _ML, 0o700),
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
    (ssh / "sshd_config").write_text(_CONFIG + "".join(f"{line}\n" for line in sshd))
    (ssh / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    (ssh / "login_delay").write_text("0\n")
    (ssh / "keys").write_text(_KEYS)
    (ssh / "keys").chmod(0o755)


def _add_user(etc: Path) -> None:
    for name, line, mode in (
        ("passwd", f"ml:x:{_ML}:{_ML}::/home/ml:/bin/bash", 0o644),
        ("shadow", f"ml:{_HASH}:19000:0:99999:7:::", 0o600),
        ("group", f"ml:x:{_ML}:", 0o644),
    ):
        others = Path("/etc", name).read_text().splitlines()
        kept = [other for other in others if not other.startswith("ml:")]
        (etc / name).write_text("\n".join([*kept, line, ""]))
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
