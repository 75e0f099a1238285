"""The secrets of tokens: how they are made, told apart from other text, hashed, and kept out of it."""

import hashlib
import re
import secrets

PREFIX = "hyd_"
"""Lets people and scanners of repositories see what a leaked text is."""

NUM_SECRET_BYTES = 32

_SHAPE = re.compile(r"hyd_[A-Za-z0-9_-]{43}")


def new_secret() -> str:
    """Return a secret of 256 random bits, as URL-safe text."""
    return PREFIX + secrets.token_urlsafe(NUM_SECRET_BYTES)


def is_secret(text: str) -> bool:
    """Tell whether a text has the shape of a secret."""
    return _SHAPE.fullmatch(text) is not None


def without_secrets(text: str) -> str:
    """Blot out whatever in a text has the shape of a secret; for logs and records, wherever callers put theirs."""
    return _SHAPE.sub(PREFIX + "***", text)


def hash_of(secret: str) -> str:
    """Return the SHA-256 of a secret, hexadecimal.

    Guessing 256 random bits is hopeless however fast the hash is, so a slow one would only slow the service.
    """
    return hashlib.sha256(secret.encode()).hexdigest()
