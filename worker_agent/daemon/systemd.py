"""What a service manager is told (``sd_notify(3)``): that the agent is ready, lives, and stops. Nothing without one."""

import os
import socket
from collections.abc import Mapping

SEND_TIMEOUT_S = 0.2


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send a state to the service manager; return whether there is one that could be told.

    Parameters
    ----------
    state
        Such as ``READY=1``.
    environment
        Where ``NOTIFY_SOCKET`` tells the address: a path, or an abstract name that begins with ``@``.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            # A manager that does not read must not hold the agent up.
            sender.settimeout(SEND_TIMEOUT_S)
            sender.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def watchdog_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return how often to say ``WATCHDOG=1`` (s): half of what the service manager asks for; None if it does not."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 2e6 if text.isascii() and text.isdecimal() and int(text) > 0 else None
