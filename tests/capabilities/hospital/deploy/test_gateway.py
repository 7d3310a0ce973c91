"""The written gateway, run for real: nginx on loopback before an HTTPS server that says what reached it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from grandrounds.capabilities.hospital.deploy import renewal
from grandrounds.capabilities.hospital.deploy.nginx import FLEET
from grandrounds.capabilities.hospital.deploy.pki import IssuedCertificate, certificate_pem, issue, new_authority
from tests.capabilities.hospital.deploy.consortia import free_port, provisioned

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")


class _Upstream(BaseHTTPRequestHandler):
    """Stands where the SuperLink does: answers with the path and the size of what reached it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        size = len(self.rfile.read(int(self.headers["Content-Length"] or 0)))
        body = json.dumps({"path": self.path, "size": size}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


class Gateway:
    """A running gateway with the folders behind it."""

    def __init__(self, folder: Path) -> None:
        self.port, link = free_port(), free_port()
        self.folders = provisioned(folder, port=self.port, link=link)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folders.pki / "superlink.pem", self.folders.pki / "superlink.key")
        self._upstream = ThreadingHTTPServer(("127.0.0.1", link), _Upstream)
        self._upstream.socket = context.wrap_socket(self._upstream.socket, server_side=True)
        threading.Thread(target=self._upstream.serve_forever, daemon=True).start()
        self._nginx = subprocess.Popen([self.folders.server / "gateway.sh"], stderr=subprocess.PIPE)
        self._wait(lambda: self.ask("/") is not None)

    def ask(
        self,
        path: str,
        *,
        certificate: Path | None = None,
        method: str = "POST",
        body: bytes = b"x",
        host: str = "127.0.0.1",
    ) -> tuple[int, dict]:
        """Status and JSON of one call over TLS that trusts the server's authority alone."""
        context = ssl.create_default_context(cafile=self.folders.pki / "server-ca.pem")
        if certificate is not None:
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        connection = http.client.HTTPSConnection(host, self.port, context=context, timeout=10)
        try:
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if answer.status == 200 else {}
        finally:
            connection.close()

    def reload(self) -> None:
        subprocess.run([self.folders.server / "gateway.sh", "reload"], check=True, capture_output=True)

    def _wait(self, there) -> None:
        for _ in range(100):
            if self._nginx.poll() is not None:
                raise AssertionError(self._nginx.stderr.read().decode())
            try:
                there()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the gateway does not answer")

    def until(self, status: int, path: str, certificate: Path) -> int:
        """The status once it is this one; the last that was seen where it never is (a reload takes a moment)."""
        seen = 0
        for _ in range(100):
            seen = self.ask(path, certificate=certificate)[0]
            if seen == status:
                break
            time.sleep(0.05)
        return seen

    def stop(self) -> None:
        self._nginx.send_signal(signal.SIGTERM)
        self._nginx.wait(timeout=10)
        self._upstream.shutdown()
        self._upstream.server_close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    running = Gateway(tmp_path_factory.mktemp("gateway"))
    yield running
    running.stop()


@pytest.fixture
def operator(gateway) -> Path:
    return gateway.folders.operator("operator") / "operator.pem"


CONTROL = "/v1/control/list-runs"


@pytest.mark.parametrize("route", FLEET)
def test_anybody_reaches_a_fleet_route(gateway, route):
    assert gateway.ask(f"/v1/fleet/{route}") == (200, {"path": f"/v1/fleet/{route}", "size": 1})


def test_a_stranger_reaches_no_control_route(gateway):
    for route in ("list-runs", "start-run", "register-node", "unregister-node", "stream-logs", "stop-run"):
        assert gateway.ask(f"/v1/control/{route}")[0] == 403
    assert gateway.ask("/health", method="GET")[0] == 403


def test_an_operator_reaches_control_routes(gateway, operator):
    assert gateway.ask(CONTROL, certificate=operator) == (200, {"path": CONTROL, "size": 1})
    assert gateway.ask("/health", certificate=operator, method="GET")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runtime/acquire-task",
        "/v1/runtime/responses",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/",
        "/v1/fleet/pull-messages/more",
        "/",
        "/docs",
        "/openapi.json",
    ],
)
def test_nobody_reaches_other_routes(gateway, operator, path):
    assert gateway.ask(path)[0] == 404
    assert gateway.ask(path, certificate=operator)[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1//control/list-runs",
        "//v1/control/list-runs",
        "/v1/%63ontrol/list-runs",
        "/v1/control/list-runs/",
        "/v1/control/%2e%2e/runtime/acquire-task",
        "/v1/fleet/%2e%2e/runtime/acquire-task",
        "/v1/fleet/pull-messages%00/../../control/list-runs",
        "/v1/CONTROL/list-runs",
    ],
)
def test_no_spelling_of_a_path_gets_round_the_gateway(gateway, path):
    assert gateway.ask(path)[0] in (400, 403, 404)


def test_the_superlink_sees_the_path_that_was_judged(gateway, operator):
    """A path that means a fleet route in a roundabout way arrives as that route, never as it was written."""
    assert gateway.ask("/v1/control/../fleet/get-run") == (200, {"path": "/v1/fleet/get-run", "size": 1})
    assert gateway.ask("/v1/control/list-runs?a=/../x", certificate=operator)[1]["path"] == CONTROL


def test_only_post_passes(gateway, operator):
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        assert gateway.ask("/v1/fleet/pull-messages", method=method)[0] == 403
        assert gateway.ask(CONTROL, method=method, certificate=operator)[0] == 403


def test_a_foreign_authority_is_refused(gateway, tmp_path):
    issue(new_authority("heart", "operator CA"), "operator", days=5).save(tmp_path, "foreign")
    assert gateway.ask(CONTROL, certificate=tmp_path / "foreign.pem")[0] == 400


def test_the_servers_own_authority_makes_no_operators(gateway, tmp_path):
    issue(IssuedCertificate.load(gateway.folders.pki, "server-ca"), "operator", days=5).save(tmp_path, "wrong")
    assert gateway.ask(CONTROL, certificate=tmp_path / "wrong.pem")[0] == 400
    assert gateway.ask(CONTROL, certificate=gateway.folders.pki / "gateway.pem")[0] == 400


def test_an_expired_operator_is_refused(gateway, tmp_path):
    authority = IssuedCertificate.load(gateway.folders.pki, "operator-ca")
    issue(authority, "late", days=1, now=datetime.now(UTC) - timedelta(days=2)).save(tmp_path, "late")
    issue(authority, "late", days=1).save(tmp_path, "fresh")
    assert gateway.ask(CONTROL, certificate=tmp_path / "late.pem")[0] == 400
    assert gateway.ask(CONTROL, certificate=tmp_path / "fresh.pem")[0] == 200


def test_a_sites_key_opens_no_control_route(gateway, tmp_path):
    """All that a site holds is its SuperNode's key: a certificate that it makes of it is of no authority."""
    data = (gateway.folders.site("cleveland") / "keys" / "node").read_bytes()
    key = serialization.load_ssh_private_key(data, password=None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    (tmp_path / "site.pem").write_bytes(certificate_pem(made.sign(key, hashes.SHA256())))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "site.key").write_bytes(key.private_bytes(*form))
    assert gateway.ask(CONTROL, certificate=tmp_path / "site.pem")[0] == 400


def test_a_revoked_operator_is_refused_after_a_reload_and_others_are_not(gateway, operator):
    mallory = renewal.add_operator(gateway.folders.out, "mallory") / "operator.pem"
    assert gateway.ask(CONTROL, certificate=mallory)[0] == 200
    renewal.revoke_operator(gateway.folders.out, "mallory")
    gateway.reload()
    assert gateway.until(400, CONTROL, mallory) == 400
    assert gateway.ask(CONTROL, certificate=operator)[0] == 200


def test_a_client_tells_another_server_from_the_gateway(gateway, tmp_path):
    """A site that knows another authority does not speak to this gateway."""
    (tmp_path / "ca.pem").write_bytes(certificate_pem(new_authority("heart", "server CA").certificate))
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, context=context, timeout=10)
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("POST", "/v1/fleet/get-run")


def test_no_session_is_resumed(gateway, operator):
    """A resumed session would not be held against the list of revoked certificates."""
    context = ssl.create_default_context(cafile=gateway.folders.pki / "server-ca.pem")
    context.load_cert_chain(operator, operator.with_suffix(".key"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as a:
        first = context.wrap_socket(a, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as b:
        second = context.wrap_socket(b, server_hostname="127.0.0.1", session=first.session)
        assert second.version() == "TLSv1.2" and not second.session_reused


def test_a_piece_of_a_model_passes_and_touches_no_disk(gateway):
    piece = os.urandom(6 * 2**20)
    assert gateway.ask("/v1/fleet/push-object", body=piece)[1]["size"] == len(piece)
    assert not any(p.is_file() for p in (gateway.folders.server / "run" / "body").rglob("*"))
    log = (gateway.folders.server / "logs" / "error.log").read_text()
    assert "buffered to a temporary file" not in log


def test_a_huge_request_is_refused(gateway):
    assert gateway.ask("/v1/fleet/push-object", body=bytes(9 * 2**20))[0] == 413


def test_the_log_says_who_called_what_and_nothing_of_the_body(gateway, operator):
    gateway.ask(CONTROL, certificate=operator, body=b"patient-17")
    log = gateway.folders.server / "logs" / "access.log"
    for _ in range(100):  # nginx writes the line after it has answered
        if '"CN=operator,O=heart"' in log.read_text():
            break
        time.sleep(0.05)
    text = log.read_text()
    assert '"CN=operator,O=heart"' in text and CONTROL in text and "patient-17" not in text


def test_the_operators_proxy_adds_the_certificate(gateway, tmp_path):
    folder, port = shutil.copytree(gateway.folders.operator("operator"), tmp_path / "operator"), free_port()
    config = folder / "nginx.conf"
    config.write_text(config.read_text().replace("127.0.0.1:9444", f"127.0.0.1:{port}"))
    proxy = subprocess.Popen([folder / "gateway.sh"], stderr=subprocess.PIPE)
    try:
        answer = None
        for _ in range(100):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request("POST", CONTROL, body=b"xy")
                answer = connection.getresponse()
                break
            except ConnectionError:
                time.sleep(0.05)
        assert answer is not None and answer.status == 200
        assert json.loads(answer.read()) == {"path": CONTROL, "size": 2}
        connection.request("POST", "/v1/fleet/get-run")
        assert connection.getresponse().status == 404
    finally:
        proxy.send_signal(signal.SIGTERM)
        proxy.wait(timeout=10)


def test_nginx_finds_no_fault_with_a_gateway_under_a_dns_name(tmp_path):
    folders = provisioned(tmp_path, address="fl.example.org")
    done = subprocess.run([folders.server / "gateway.sh", "test"], capture_output=True, text=True)
    assert done.returncode == 0 and "warn" not in done.stderr, done.stderr
