"""The Makefile where the network re-signs all certificates, and after an interruption."""

import http.server
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import uv
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.runner.harness import wheel
from tests.testbeds.namespaces import missing_for_namespaces, require

_ROOT = Path(__file__).parents[2]
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
_PROJECT = """\
[project]
name = "tiny"
version = "1"
requires-python = ">=3.11"
dependencies = ["tinypkg"]
[dependency-groups]
dev = []
"""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a key and a certificate for localhost, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = (
        builder.not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = tmp_path / "certificate.pem"
    path.write_bytes(private + signed.public_bytes(Encoding.PEM))
    return path


@pytest.fixture
def index(tmp_path: Path, certificate: Path) -> Iterator[str]:
    """The URL of a package index over HTTPS, with a `uv` that runs the real one."""
    for package in (wheel(tmp_path / "simple/tinypkg"), _uv_wheel(tmp_path / "simple/uv")):
        (package.parent / "index.html").write_text(f'<a href="{package.name}">{package.name}</a>')
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://localhost:{server.server_port}/simple"
    server.shutdown()
    server.server_close()
    thread.join()


def test_pip_and_uv_trust_the_certificates_of_the_system(
    tmp_path: Path, certificate: Path, index: str
) -> None:
    require(missing_for_namespaces("make"))
    bundle = next(path for path in map(Path, _BUNDLES) if path.exists())
    both = tmp_path / "bundle.pem"
    both.write_text(bundle.read_text() + certificate.read_text().partition("KEY-----\n")[2])
    clone = tmp_path / "clone"
    shutil.copytree(_ROOT / "scripts", clone / "scripts")
    shutil.copytree(_ROOT / "src/retarget/runner", clone / "src/retarget/runner")
    shutil.copy(_ROOT / "Makefile", clone)
    (clone / "pyproject.toml").write_text(_PROJECT)
    make = f"make -C {clone} PYTHON={_base_python()} requirements/dev.txt"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", f"mount --bind {both} {bundle}; exec {make}"],
        env={
            "HOME": str(tmp_path),
            "PATH": os.defpath,
            "PIP_INDEX_URL": index,
            "UV_DEFAULT_INDEX": index,
            "PIP_CONFIG_FILE": os.devnull,
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tinypkg==1.0" in (clone / "requirements/dev.txt").read_text()
    assert done.stderr == ""


def test_an_interrupted_setup_is_repaired_by_the_next(tmp_path: Path) -> None:
    """A virtual environment whose pip is half installed is not completed by Python itself."""
    clone, interrupted = _clone(tmp_path), tmp_path / "interrupted"
    script = f"{_base_python()} -m venv .venv; rm .venv/bin/pip*; touch .venv/left; kill $PPID"
    interrupted.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\n{script}\nexit 1\n')
    interrupted.chmod(0o755)
    assert _make_setup(clone, str(interrupted)).returncode != 0
    assert not (clone / ".venv/bin/pip").exists()
    done = _make_setup(clone, _base_python())
    assert done.returncode == 0, done.stdout + done.stderr
    assert (clone / ".venv/bin/pip").exists()
    assert not (clone / ".venv/left").exists()
    assert (clone / ".venv/.ready").exists()
    (clone / ".venv/kept").touch()
    os.utime(clone / "pyproject.toml", (2**31, 2**31))  # newer than `.ready`
    assert "venv .venv" in _make_setup(clone, _base_python()).stdout
    assert (clone / ".venv/kept").exists()


def _clone(folder: Path) -> Path:
    """Return a clone whose setup installs nothing: its uv does nothing."""
    clone = folder / "clone"
    (clone / "scripts").mkdir(parents=True)
    (clone / "requirements").mkdir()
    shutil.copytree(_ROOT / "src/retarget/runner", clone / "src/retarget/runner")
    shutil.copy(_ROOT / "Makefile", clone)
    (clone / "pyproject.toml").write_text(_PROJECT)
    (clone / "requirements/dev.txt").touch()
    install = clone / "scripts/install-uv.sh"
    install.write_text("#!/bin/sh\n.venv/bin/pip --version && ln -sf /bin/true .venv/bin/uv\n")
    install.chmod(0o755)
    return clone


def _make_setup(clone: Path, python: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-C", str(clone), f"PYTHON={python}", "setup"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def _base_python() -> str:
    return getattr(sys, "_base_executable", sys.executable)


def _uv_wheel(folder: Path) -> Path:
    program = uv.find_uv_bin()
    script = f"#!python\nimport os, sys\nos.execv({program!r}, [{program!r}, *sys.argv[1:]])\n"
    return wheel(folder, "uv", files={"uv-1.0.data/scripts/uv": script})
