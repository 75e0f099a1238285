"""The certificate that `hydraulis serve` shows: looked at before the server listens."""

import ssl
import stat
from pathlib import Path


class CertificateUnusable(Exception):  # noqa: N818 - names what the operator ran into
    """The server cannot speak TLS with these files; the message says which, why, and what to do."""


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what the server speaks TLS with, version 1.2 or later; None if no files are given.

    Raises
    ------
    CertificateUnusable
        If one of the two is missing, cannot be read, is locked with a passphrase, or does not belong to the other.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, lacking = ("--tls-key", "--tls-cert") if certificate is None else ("--tls-cert", "--tls-key")
        raise CertificateUnusable(f"{given} is given without {lacking}; give both, or neither for plain HTTP")
    for option, path in (("--tls-cert", certificate), ("--tls-key", key)):
        _refuse_unreadable(option, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without a function of ours a locked key would be asked for on the terminal, and nobody sits there.
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except CertificateUnusable:
        raise CertificateUnusable(
            f"the key {key} is locked with a passphrase; give one that is not (openssl pkey -in {key} -out ...), "
            "readable by this service's user alone"
        ) from None
    except (ssl.SSLError, ValueError) as error:
        raise CertificateUnusable(_why(error, certificate, key)) from error
    return context


def is_readable_by_others(key: Path) -> bool:
    """Tell whether users other than the owner and its group can read the key."""
    return bool(key.stat().st_mode & stat.S_IROTH)


def _refuse_unreadable(option: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise CertificateUnusable(
            f"{option} {path} cannot be read: {error.strerror or error}; give the path of a PEM file that this "
            "service's user can read"
        ) from error


def _no_passphrase() -> str:
    raise CertificateUnusable


def _why(error: Exception, certificate: Path, key: Path) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"the key {key} does not belong to the first certificate in {certificate}; give the one it was made with"
    try:
        holds_certificate = "-----BEGIN CERTIFICATE-----" in certificate.read_text("ascii")
    except UnicodeDecodeError:
        holds_certificate = False
    if not holds_certificate:
        return (
            f"--tls-cert {certificate} holds no certificate in PEM; give the certificate and those it was signed with"
        )
    reason = getattr(error, "reason", None) or str(error)
    return (
        f"{certificate} and {key} cannot be used for TLS ({reason}); give a certificate chain and its key, both in PEM"
    )
