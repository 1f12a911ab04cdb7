"""Fingerprints of requests, so that a repeated request can be told from a different one under the same id."""

from __future__ import annotations

import hashlib

from google.protobuf.message import Message


def fingerprint(message: Message, rest: bytes = b"") -> bytes:
    """(16 bytes) digest of a request without its request_id, and of further content."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.ClearField("request_id")
    content = copy.SerializeToString(deterministic=True)
    digest = hashlib.blake2b(len(content).to_bytes(8, "little"), digest_size=16)
    digest.update(content)
    digest.update(rest)
    return digest.digest()
