"""Whether a certificate, its key and a file of authorities can be served with, said before gRPC has to.

gRPC takes whatever it is given and then fails every handshake, with a line in its own log at best. So a handshake is
tried here, in memory, against a client that trusts the certificate itself.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_ENCRYPTED = re.compile(rb"ENCRYPTED")

# What OpenSSL calls these in its verify codes.
_NOT_YET_VALID, _EXPIRED = 9, 10


def check_pair(cert: Path, key: Path, cert_pem: bytes, key_pem: bytes) -> list[str]:
    """Check a certificate, with the chain below it, and its key.

    Returns:
        What its clients may stumble over, such as an expired certificate.

    Raises:
        ValueError: it cannot be served with.
    """
    certificates = _certificates(cert_pem)
    if not certificates:
        raise ValueError(f"{cert} holds no certificate in PEM")
    if not _KEY.search(key_pem):
        raise ValueError(f"{key} holds no private key in PEM")
    if _ENCRYPTED.search(key_pem):
        raise ValueError(f"{key} is encrypted; it has to be there without a passphrase")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"the key in {key} is not that of the first certificate in {cert}") from None
        raise ValueError(f"{cert} and {key} cannot be used: {error.reason or error}") from None
    return [f"{cert}: {concern}" for concern in _concerns(server, certificates[0])]


def check_authorities(path: Path, pem: bytes) -> None:
    """Check a file of certificate authorities.

    Raises:
        ValueError: it holds none, or something else.
    """
    certificates = _certificates(pem)
    try:
        if not certificates:
            raise ValueError
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata="\n".join(certificates))
    except (ssl.SSLError, ValueError):
        raise ValueError(f"{path} holds no certificates of authorities in PEM") from None


def _certificates(pem: bytes) -> list[str]:
    return _CERTIFICATE.findall(pem.decode("ascii", "replace"))


def _concerns(server: ssl.SSLContext, leaf: str) -> list[str]:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # The certificate itself is trusted, whoever has signed it.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=leaf)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        # Three flights are enough for every version of TLS.
        for _ in range(3):
            for side in (asking, answering):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return ["THE CERTIFICATE HAS EXPIRED; clients refuse it"]
        if error.verify_code == _NOT_YET_VALID:
            return ["the certificate is not valid yet; clients refuse it"]
        return [f"clients may refuse the certificate: {error.verify_message}"]
    except ssl.SSLError as error:
        return [f"clients may refuse the certificate: {error.reason or error}"]
    described = asking.getpeercert()
    if not described or not described.get("subjectAltName"):
        return ["the certificate names no host in subjectAltName; clients refuse it unless told which name to expect"]
    return []
