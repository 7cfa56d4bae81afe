"""uv uses the certificates of the machine and the user's settings of pip, and hides credentials."""

import base64
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from retarget.core.environments import Environment
from retarget.runner.uv_settings import cache_variables, uv_variables
from retarget.testing import Receiver
from tests.runner.harness import RunnerHarness, wheel

_PASSWORD = "s3cr3t-passw0rd"
_SHOW = "import tinypkg; print(tinypkg.VERSION)"


class _PrivateIndex(SimpleHTTPRequestHandler):
    """A simple index that asks for a password."""

    def do_GET(self) -> None:
        login = base64.b64encode(f"alice:{_PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {login}":
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _serving(folder: Path, context: ssl.SSLContext | None = None) -> Generator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_PrivateIndex, directory=str(folder)))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who has configured nothing yet."""
    for name in ("PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_CERT", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    (tmp_path / "home/.config/pip").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    wheel(tmp_path / "index/simple/tinypkg")
    return tmp_path / "index"


def _write_pip_conf(home: Path, text: str) -> None:
    (home / ".config/pip/pip.conf").write_text(f"[global]\n{text}\n")


def _everything(harness: RunnerHarness) -> bytes:
    """Return everything that the runner wrote, without its input."""
    files = [path for path in harness.root.rglob("*") if path.is_file() and not path.is_symlink()]
    return b"".join(path.read_bytes() for path in files if path.name != "launch.json")


def test_the_index_of_pip_is_used_and_its_password_appears_nowhere(
    harness: RunnerHarness, home: Path, index: Path
) -> None:
    with _serving(index) as port:
        address = f"http://alice:{_PASSWORD}@127.0.0.1:{port}/simple"
        _write_pip_conf(home, f"index-url = {address}")
        environment = Environment(kind="system", pip=("tinypkg",))
        reports = harness.run("python", "-c", _SHOW, environment=environment)
        assert reports.stream() == b"1.0\n", reports.stream("prepare").decode()
        assert _PASSWORD.encode() not in reports.stream("prepare") + _everything(harness)
        assert _PASSWORD not in str(reports.events)


def test_a_wrong_password_is_named_as_the_reason_and_not_shown(
    harness: RunnerHarness, home: Path, index: Path
) -> None:
    with _serving(index) as port:
        _write_pip_conf(home, f"index-url = http://alice:wr0ng-pw@127.0.0.1:{port}/simple")
        environment = Environment(kind="system", pip=("tinypkg",))
        reports = harness.run("true", environment=environment)
    assert "401 Unauthorized" in reports.finished["reason"]
    assert "wr0ng-pw" not in str(reports.events) + reports.stream("prepare").decode()


def test_a_variable_of_the_job_is_put_into_an_address(
    harness: RunnerHarness, home: Path, index: Path
) -> None:
    assert home.exists()
    with _serving(index) as port:
        line = f"--index-url http://alice:${{INDEX_TOKEN}}@127.0.0.1:{port}/simple"
        environment = Environment(kind="system", pip=(line, "tinypkg"))
        variables = {"INDEX_TOKEN": _PASSWORD, "OTHER": "x"}
        reports = harness.run("python", "-c", _SHOW, environment=environment, variables=variables)
    assert reports.stream() == b"1.0\n", reports.stream("prepare").decode()
    assert _PASSWORD.encode() not in reports.stream("prepare") + _everything(harness)


def test_a_secret_of_the_job_is_put_into_an_address(
    harness: RunnerHarness, home: Path, index: Path, receiver: Receiver
) -> None:
    assert home.exists()
    receiver.secrets = {"INDEX_TOKEN": _PASSWORD}
    with _serving(index) as port:
        line = f"--index-url http://alice:${{INDEX_TOKEN}}@127.0.0.1:{port}/simple"
        environment = Environment(kind="system", pip=(line, "tinypkg"))
        secrets = ("INDEX_TOKEN",)
        reports = harness.run("python", "-c", _SHOW, environment=environment, secrets=secrets)
    assert reports.stream() == b"1.0\n", reports.stream("prepare").decode()
    assert _PASSWORD.encode() not in reports.stream("prepare") + _everything(harness)


def test_an_authority_that_the_user_trusts_is_trusted(
    harness: RunnerHarness, home: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that re-signs: its authority is in a file that pip is configured to trust."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    authority, certificate = _write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    environment = Environment(kind="system", pip=("tinypkg",))
    with _serving(index, context) as port:
        address = f"index-url = https://alice:{_PASSWORD}@127.0.0.1:{port}/simple"
        _write_pip_conf(home, address)
        refused = harness.run("true", environment=environment)
        _write_pip_conf(home, f"{address}\ncert = {authority}")
        reports = harness.run("python", "-c", _SHOW, environment=environment)
    assert "certificate" in refused.finished["reason"].lower()
    assert reports.stream() == b"1.0\n", reports.stream("prepare").decode()


def _write_certificates(folder: Path) -> tuple[Path, Path]:
    """Write an authority, and a certificate of it for 127.0.0.1 with its key."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate(
        "authority", key=authority_key, signer=authority_key, is_authority=True
    )
    certificate = _certificate("127.0.0.1", key=key, signer=authority_key, is_authority=False)
    options = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    paths = folder / "authority.pem", folder / "server.pem"
    paths[0].write_bytes(authority.public_bytes(Encoding.PEM))
    paths[1].write_bytes(certificate.public_bytes(Encoding.PEM) + key.private_bytes(*options))
    return paths


def _certificate(
    name: str,
    *,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    is_authority: bool,
) -> x509.Certificate:
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, "authority")
    )
    now, constraints = datetime.now(UTC), x509.BasicConstraints(is_authority, None)
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(constraints, critical=True)
        .sign(signer, SHA256())
    )


def test_settings_of_uv_go_before_those_of_pip(home: Path) -> None:
    _write_pip_conf(home, "index-url = https://pip.example/simple\ntrusted-host = a\n  b")
    environ = {"HOME": str(home)}
    assert uv_variables(environ)["UV_INDEX_URL"] == "https://pip.example/simple"
    assert uv_variables(environ)["UV_INSECURE_HOST"] == "a b"
    assert "UV_INDEX_URL" not in uv_variables(environ | {"UV_DEFAULT_INDEX": "https://uv.example"})
    (home / ".config/uv").mkdir()
    (home / ".config/uv/uv.toml").write_text("[[index]]\nurl = 'https://uv.example'\n")
    assert "UV_INDEX_URL" not in uv_variables(environ)


def test_a_cache_that_the_user_chose_stays(home: Path) -> None:
    environ = {"HOME": str(home)}
    assert cache_variables(environ, "/root") == {"UV_CACHE_DIR": "/root/uv"}
    assert cache_variables(environ | {"UV_CACHE_DIR": "/big"}, "/root") == {}
    (home / ".config/uv").mkdir()
    (home / ".config/uv/uv.toml").write_text("cache-dir = '/big'\n")
    assert cache_variables(environ, "/root") == {}


def test_several_indexes_are_searched_as_pip_does(home: Path) -> None:
    _write_pip_conf(home, "extra-index-url = https://a.example https://b.example")
    variables = uv_variables({"HOME": str(home), "PIP_INDEX_URL": "https://c.example"})
    assert variables["UV_INDEX_URL"] == "https://c.example"
    assert variables["UV_EXTRA_INDEX_URL"] == "https://a.example https://b.example"
    assert variables["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_a_file_of_pip_that_cannot_be_read_is_skipped(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("no section\n")
    assert "UV_INDEX_URL" not in uv_variables({"HOME": str(home)})


def test_the_certificates_of_the_machine_are_used(home: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "proxy.pem"
    bundle.touch()
    variables = uv_variables({"HOME": str(home), "SSL_CERT_FILE": str(bundle)})
    assert (variables["UV_SYSTEM_CERTS"], variables["UV_NATIVE_TLS"]) == ("1", "1")
    _write_pip_conf(home, f"cert = {bundle}")
    assert uv_variables({"HOME": str(home)})["SSL_CERT_FILE"] == str(bundle)
    assert "UV_SYSTEM_CERTS" not in uv_variables({"HOME": str(home), "UV_SYSTEM_CERTS": "0"})
