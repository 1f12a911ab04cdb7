"""Page tokens: opaque to clients, checked when they come back. A token is good for the listing it was made for only."""

from __future__ import annotations

import base64
import binascii

from selector.errors import ServiceError, invalid
from selector.v1.reasons import Reason


def page_token(listing: str, key: str | int) -> str:
    """Token of the page after ``key``."""
    return base64.urlsafe_b64encode(f"{listing} {key}".encode()).decode()


def page_key(listing: str, token: str) -> str:
    """The key a token was made of, empty for none; INVALID_PAGE_TOKEN for anything else."""
    if not token:
        return ""
    try:
        made_for, _, key = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode().partition(" ")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _bad_page_token(token) from error
    if made_for != listing:
        raise _bad_page_token(token)
    return key


def page_position(listing: str, token: str, size: int) -> int:
    """The position in a list of ``size`` that a token was made of; 0 for none."""
    if not token:
        return 0
    key = page_key(listing, token)
    if not (key.isascii() and key.isdigit() and len(key) < 16 and int(key) < size):
        raise _bad_page_token(token)
    return int(key)


def _bad_page_token(token: str) -> ServiceError:
    """The error about a token that was not handed out."""
    return invalid(
        "page_token", f"expected a token from the previous page; got {token[:80]!r}", Reason.INVALID_PAGE_TOKEN
    )
