"""Page tokens: opaque to clients, checked when they come back."""

from __future__ import annotations

import base64
import binascii

from selector.errors import ServiceError, invalid
from selector.v1.reasons import Reason


def page_token(key: str) -> str:
    """Token of the page after ``key``."""
    return base64.urlsafe_b64encode(key.encode()).decode()


def page_key(token: str) -> str:
    """The key a token was made of; INVALID_PAGE_TOKEN for anything else."""
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _bad_token(token) from error


def page_position(token: str) -> int:
    """The position a token was made of; 0 for none."""
    if not token:
        return 0
    key = page_key(token)
    if not (key.isascii() and key.isdigit() and len(key) < 16):
        raise _bad_token(token)
    return int(key)


def _bad_token(token: str) -> ServiceError:
    return invalid(
        "page_token", f"expected a token from the previous page; got {token[:80]!r}", Reason.INVALID_PAGE_TOKEN
    )
