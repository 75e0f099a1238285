"""Requests that a web page makes a browser send to a service that asks for no token. Pure decisions.

Such a service trusts whoever reaches it, and a browser on the same machine reaches it on behalf of any page that is
open in it: by a form or script that posts to the service (the browser names the page in ``Origin``), or by a name of
the page's own that suddenly resolves to the service's address (the browser names it in ``Host``).
"""

import ipaddress
import re
from urllib.parse import urlsplit

_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]*))(?::\d*)?")


def is_foreign(*, host: str, origin: str | None) -> bool:
    """Tell whether a request comes from a page that is not the service's own.

    Parameters
    ----------
    host
        The request's ``Host``; empty if it has none.
    origin
        The request's ``Origin``; None if it has none, as what is no browser sends none.
    """
    return not _is_own_name(host) or (origin is not None and not _is_same(origin, host))


def _is_own_name(host: str) -> bool:
    name = _name(host)
    if name is None:
        return False
    # A page's owner can give addresses to names below a domain, but not to a machine's bare name or to an address.
    return "." not in name or name.endswith(".localhost") or _is_address(name)


def _is_same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _name(host: str) -> str | None:
    found = _HOST.fullmatch(host)
    return None if found is None else (found["address"] or found["name"]).rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
