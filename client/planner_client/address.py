"""Where a planner is and how it is spoken to: its address, the token, whom to trust."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx

MAX_PORT = 65_535


def checked_address(base_url: str) -> httpx.URL:
    """Read a planner's address.

    Raises
    ------
    ValueError
        If it is none, or holds a user name or password, which would end up in logs.
    """
    try:
        # httpx takes hosts such as `[bad`, which the standard library refuses.
        urlsplit(base_url)
        url = httpx.URL(base_url)
    except (ValueError, httpx.InvalidURL) as error:
        raise ValueError(
            f"planner address {base_url!r} cannot be read ({error}); give one like http://host:8000"
        ) from error
    if url.userinfo:
        raise ValueError(f"planner address for {url.host!r} holds a user name or password; give token= instead")
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"planner address {base_url!r} is not an http URL; give one like http://host:8000")
    if url.port is not None and not 0 < url.port <= MAX_PORT:
        raise ValueError(f"planner address {base_url!r} has port {url.port}; ports go from 1 to {MAX_PORT}")
    return url


def bearer(token: str | None) -> dict[str, str]:
    """Return the header that a token is sent in; none without a token.

    Raises
    ------
    ValueError
        If no header can hold it; the message does not repeat it.
    """
    if token is None:
        return {}
    if not token or not all("!" <= character <= "~" for character in token):
        raise ValueError(
            "the token is empty or holds spaces, line ends or characters that no header can carry; "
            "give it as `hydraulis tokens create` printed it"
        )
    return {"Authorization": f"Bearer {token}"}


def trusting(url: httpx.URL, ca_file: str | Path | None) -> ssl.SSLContext | None:
    """Return what checks the planner's certificate; None for an address without TLS.

    Raises
    ------
    ValueError
        If the file of certificates cannot be read, or the address would not use it.
    """
    if url.scheme != "https":
        if ca_file is not None:
            raise ValueError(f"ca_file is given but {str(url)!r} is not an https address; write https://")
        return None
    if ca_file is None:
        return httpx.create_ssl_context()
    try:
        context = ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"ca_file {str(ca_file)!r} cannot be read as PEM certificates ({error})") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
