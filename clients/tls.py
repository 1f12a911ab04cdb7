"""What a client trusts, and how it shows who it is, when the service speaks TLS.

``tls=`` of a client takes one of these::

    None                     no TLS
    True                     the authorities that this system trusts
    "ca.pem", b"-----BEGIN…" these authorities: a path, or PEM
    Tls(ca=…, …)             all of it: client certificate for mTLS, name of the server
    grpc credentials         whatever grpc can do

What cannot be used is a ``ValueError`` when the client is made; gRPC would fail every call with UNAVAILABLE instead.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc

Pem: TypeAlias = "str | os.PathLike[str] | bytes"
TlsOption: TypeAlias = "bool | str | os.PathLike[str] | bytes | Tls | grpc.ChannelCredentials | None"

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")

# Where Linux distributions keep what their administrators trust; OpenSSL's own path comes first.
_SYSTEM_ROOTS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


@dataclass(frozen=True)
class Tls:
    """TLS of a client; files are paths or PEM bytes.

    Attributes:
        ca: authorities that sign the server's certificate; None = those that this system trusts.
        client_cert: this client's certificate with its chain, for a server that asks for one (mTLS).
        client_key: its private key, without a passphrase.
        server_name: name to expect in the server's certificate, if not the host of the target.
    """

    ca: Pem | None = None
    client_cert: Pem | None = None
    client_key: Pem | None = field(default=None, repr=False)
    server_name: str | None = None


def channel_security(tls: TlsOption) -> tuple[grpc.ChannelCredentials | None, list[tuple[str, str]]]:
    """Credentials, None = no TLS, and channel options that go with them.

    Raises:
        ValueError: a file cannot be read or used.
    """
    if tls is None or tls is False:
        return None, []
    if isinstance(tls, grpc.ChannelCredentials):
        return tls, []
    if tls is True:
        tls = Tls()
    elif not isinstance(tls, Tls):
        tls = Tls(ca=tls)
    roots = _system_roots() if tls.ca is None else _authorities(tls.ca)
    chain, key = _own_pair(tls.client_cert, tls.client_key)
    options = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
    return grpc.ssl_channel_credentials(roots, key, chain), options


def _authorities(source: Pem) -> bytes:
    pem = _content(source, "ca")
    found = b"\n".join(_CERTIFICATE.findall(pem))
    try:
        if not found:
            raise ValueError
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found.decode("ascii"))
    except ValueError:
        raise ValueError(f"tls: ca: {_shown(source)} holds no certificates in PEM") from None
    except ssl.SSLError as error:
        raise ValueError(f"tls: ca: {_shown(source)} holds no usable certificates: {error.reason}") from None
    return pem


def _own_pair(cert: Pem | None, key: Pem | None) -> tuple[bytes | None, bytes | None]:
    if (cert is None) != (key is None):
        raise ValueError("tls: client_cert and client_key belong together")
    if cert is None or key is None:
        return None, None
    chain, private = _content(cert, "client_cert"), _content(key, "client_key")
    if not _CERTIFICATE.search(chain):
        raise ValueError(f"tls: client_cert: {_shown(cert)} holds no certificate in PEM")
    if not _KEY.search(private) or b"ENCRYPTED" in private:
        raise ValueError(f"tls: client_key: {_shown(key)} holds no private key in PEM without a passphrase")
    if not isinstance(cert, bytes) and not isinstance(key, bytes):
        # Python checks pairs of files only.
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key)
        except ssl.SSLError as error:
            raise ValueError(
                f"tls: client_cert {_shown(cert)} and client_key {_shown(key)} do not belong together ({error.reason})"
            ) from None
    return chain, private


def _content(source: Pem, name: str) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(f"tls: {name}: cannot read {source}: {error}") from None


def _shown(source: Pem) -> str:
    return f"{len(source)} bytes" if isinstance(source, bytes) else str(source)


def _system_roots() -> bytes | None:
    """None = those that come with gRPC, which knows nothing of what the system's administrator trusts."""
    if os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        return None
    for path in (ssl.get_default_verify_paths().cafile, *_SYSTEM_ROOTS):
        if path and Path(path).is_file():
            return Path(path).read_bytes()
    return None
