"""What a node is called unless somebody says otherwise: pure but for the host's name."""

import re
import socket


def default_node() -> str:
    """Return this machine's host name as a node's name: what names cannot hold is replaced by ``-``."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:128] or "node"
