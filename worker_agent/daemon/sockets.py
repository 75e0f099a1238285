"""Where an agent listens: a Unix socket that its group may use, and a port of this machine alone."""

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET_MODE = 0o660
LOOPBACK = "127.0.0.1"
_LOOK_TIMEOUT_S = 1.0
_LOCK_TIMEOUT_S = 5.0
_LOCK_PAUSE_S = 0.02
_BACKLOG = 1024

FileIdentity = tuple[int, int]
"""Device and inode of a file."""


class AddressTaken(Exception):  # noqa: N818 - names what the operator met
    """Somebody else listens there."""


class AddressUnusable(Exception):  # noqa: N818 - as above
    """Nothing can listen there."""


def listen_on_socket(path: Path) -> socket.socket:
    """Listen on a Unix socket, in the place of one that a killed agent left behind.

    Raises
    ------
    AddressTaken
        If another process listens there.
    AddressUnusable
        If no socket can be there; it says why and what to do.
    """
    with _alone_in(path.parent):
        _remove_left_behind(path)
        return _bound(path)


def identity_of(path: Path) -> FileIdentity:
    """Return which file is at a path."""
    found = path.stat(follow_symlinks=False)
    return found.st_dev, found.st_ino


def remove_socket(path: Path, identity: FileIdentity) -> None:
    """Remove an agent's own socket; what another one put in its place stays."""
    try:
        is_own = identity_of(path) == identity
    except OSError:
        return
    if is_own:
        path.unlink(missing_ok=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let one agent at a time look for a socket left behind and take its place: two that start at once both find it."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise AddressUnusable(
            f"cannot look into {folder}: {error.strerror or error}; give a --socket in a folder of this user"
        ) from None
    ends_at = time.monotonic() + _LOCK_TIMEOUT_S
    try:
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_at:
                    raise AddressTaken(
                        f"another process keeps {folder} locked for {_LOCK_TIMEOUT_S:g} s; stop it, or give a --socket "
                        "in another folder"
                    ) from None
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(opened)


def _bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Nobody else may connect between its making and its getting its mode.
    before = os.umask(0o777 & ~SOCKET_MODE)
    try:
        listener.bind(str(path))
        path.chmod(SOCKET_MODE)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(f"{path} is taken; stop who uses it, or give another --socket") from None
        raise AddressUnusable(
            f"cannot listen on {path}: {error.strerror or error}; give a --socket in a folder that this user may "
            "write to, of at most 100 characters"
        ) from None
    finally:
        os.umask(before)
    return listener


def listen_on_port(port: int) -> socket.socket:
    """Listen on a port of the loopback address; 0 takes any free one.

    Raises
    ------
    AddressTaken
        If another process listens there.
    AddressUnusable
        If nothing can.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(
                f"port {port} is taken; stop who uses it, give another --port, or --port -1 for none"
            ) from None
        raise AddressUnusable(f"cannot listen on port {port}: {error.strerror or error}; give another --port") from None
    return listener


def _remove_left_behind(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AddressUnusable(f"cannot look at {path}: {error.strerror or error}; give another --socket") from None
    if not is_socket:
        raise AddressUnusable(f"{path} is there and no socket; give another --socket, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_LOOK_TIMEOUT_S)
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise AddressUnusable(f"cannot look at {path}: {error.strerror or error}; give another --socket") from None
    raise AddressTaken(f"an agent listens on {path} already; stop it, or give another --socket")
