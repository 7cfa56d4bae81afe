"""What a user sees of an SSH host at first, and what Retarget leaves there."""

from tests.conftest import Cli
from tests.testbeds.hosts import SshHost


def test_the_accepted_host_key_is_shown(retarget: Cli, ssh_host: SshHost) -> None:
    ssh = ("--kind", "ssh", "--key", ssh_host.key, "--user", "ml", "--address", ssh_host.address)
    attached = retarget("target", "attach", "box", *ssh)
    assert attached.returncode == 0, attached.stderr
    [line] = [line for line in attached.stderr.splitlines() if line.startswith("host key: SHA256:")]
    assert line.endswith("; Retarget accepts no other from now on")
    assert line.split()[2].rstrip(";") in retarget("target", "show", "box").stdout
    changed = retarget("target", "update", "box", "--lost-after", "200")
    assert (changed.returncode, "accepts no other" in changed.stderr) == (0, False)
    assert retarget("target", "detach", "box").returncode == 0


def test_the_cache_of_uv_is_in_the_folder_of_retarget(retarget: Cli, ssh_host: SshHost) -> None:
    ssh = ("--kind", "ssh", "--key", ssh_host.key, "--user", "ml", "--address", ssh_host.address)
    assert retarget("target", "attach", "box", *ssh).returncode == 0
    show = ("--", "sh", "-c", "echo $UV_CACHE_DIR")
    ran = retarget("run", "-t", "box", *show)
    assert ran.stdout.endswith("/.retarget-host/uv\n"), ran.stderr
    assert retarget("target", "detach", "box").returncode == 0
