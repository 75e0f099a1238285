#!/opt/hydraulis/bin/python
"""Exit with 0 if what runs in this container answers /healthz, else with 1.

    healthcheck [unix:SOCKET | PORT]

Without an argument it asks the planner at port 8000, by HTTPS where ``HYDRAULIS_TLS_CERT`` is set. It asks over the
loopback address, where certificates name nobody, so it does not verify them.
"""

import http.client
import os
import socket
import ssl
import sys

TIMEOUT_S = 3.0
PLANNER_PORT = "8000"
UNIX = "unix:"


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection through a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def connection_to(address: str) -> http.client.HTTPConnection:
    """Return a connection to a port at the loopback address, or to a Unix socket."""
    if address.startswith(UNIX):
        return UnixConnection(address.removeprefix(UNIX))
    if os.environ.get("HYDRAULIS_TLS_CERT"):
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", int(address), timeout=TIMEOUT_S, context=unverified)
    return http.client.HTTPConnection("127.0.0.1", int(address), timeout=TIMEOUT_S)


def is_healthy(address: str) -> bool:
    """Tell whether who listens at an address says that it is alive."""
    connection = connection_to(address)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if is_healthy(sys.argv[1] if len(sys.argv) > 1 else PLANNER_PORT) else 1)
