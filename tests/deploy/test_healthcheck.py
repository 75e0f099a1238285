"""The images' health check asks whoever serves there, over a port, a socket, or TLS."""

import http.server
import os
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rendered import ROOT

CHECK = ROOT / "deploy" / "image" / "healthcheck.py"


class _Answers(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def address_string(self) -> str:
        return "here"

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


class _Fails(_Answers):
    status = 503


class _UnixServer(socketserver.UnixStreamServer):
    pass


def _code(address: str, **environment: str) -> int:
    return subprocess.run(
        [sys.executable, CHECK, address],
        env={**os.environ, **environment},
        timeout=30,
        check=False,
    ).returncode


def _while_served(server: Any, check: Callable[[], int]) -> int:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        return check()
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()


@pytest.mark.parametrize(("handler", "code"), [(_Answers, 0), (_Fails, 1)])
def test_a_port_and_a_socket_are_healthy_if_they_answer_200(handler: type[_Answers], code: int, tmp_path: Path) -> None:
    by_port = http.server.HTTPServer(("127.0.0.1", 0), handler)
    assert _while_served(by_port, lambda: _code(str(by_port.server_port), HYDRAULIS_TLS_CERT="")) == code
    by_socket = _UnixServer(str(tmp_path / "a.sock"), handler)
    assert _while_served(by_socket, lambda: _code(f"unix:{tmp_path / 'a.sock'}")) == code


def test_nobody_is_not_healthy(tmp_path: Path) -> None:
    assert _code(f"unix:{tmp_path / 'nobody.sock'}") == 1
    assert _code("9", HYDRAULIS_TLS_CERT="") == 1


def test_a_planner_with_a_certificate_is_asked_by_tls_whoever_signed_it(tmp_path: Path) -> None:
    made = subprocess.run(
        ["openssl", "req",  # noqa: S607 - wherever it is
         "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=planner", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server = http.server.HTTPServer(("127.0.0.1", 0), _Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    port = str(server.server_port)
    assert _while_served(server, lambda: _code(port, HYDRAULIS_TLS_CERT=str(tmp_path / "cert.pem"))) == 0
