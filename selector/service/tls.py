"""The server's side of TLS: certificate, key and the authorities of client certificates, replaceable while it runs.

gRPC asks for the certificate at every handshake. Connections that are open keep theirs. A new set of files that cannot
be used leaves the old one in force, and says so in the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from selector.service.certificates import check_authorities, check_pair
from selector.service.watched_files import WatchedFiles

_log = logging.getLogger("selector.service")


@dataclass(frozen=True)
class TlsFiles:
    """PEM files.

    Attributes:
        cert: the server's certificate, with the chain below it.
        key: its private key, without a passphrase.
        client_ca: authorities one of which must have signed a client's certificate; None = clients need none.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


def tls_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """The files that were configured, None = plaintext.

    Raises:
        ValueError: one of them makes no sense without another.
    """
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise ValueError("--tls-cert and --tls-key belong together, and --tls-client-ca needs both")
    return TlsFiles(cert, key, client_ca)


class ServerTls:
    """Credentials that follow their files."""

    def __init__(self, files: TlsFiles, now: Callable[[], float]) -> None:
        """``now`` gives Unix seconds."""
        self._files = files
        paths = [files.cert, files.key, *([files.client_ca] if files.client_ca else [])]
        self._watched = WatchedFiles(paths, now)
        # Handshakes come on threads of gRPC's.
        self._lock = threading.Lock()
        self._fresh: Any = None

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for a port.

        Raises:
            ValueError: the files cannot be used.
        """
        try:
            configuration = self._read(force=True)
        except OSError as error:
            raise ValueError(f"TLS: {error}") from error
        except ValueError as error:
            raise ValueError(f"TLS: {error}") from None
        return grpc.dynamic_ssl_server_credentials(
            configuration, self._next, require_client_authentication=self._files.client_ca is not None
        )

    def refresh(self, *, force: bool = False) -> None:
        """Read the files if they have changed; from the next handshake on they are used."""
        with self._lock:
            try:
                self._fresh = self._read(force=force) or self._fresh
            except (OSError, ValueError) as error:
                _log.error("TLS FILES NOT USABLE, the former ones stay in force: %s", error)

    def _next(self) -> Any:
        self.refresh()
        with self._lock:
            fresh, self._fresh = self._fresh, None
        return fresh

    def _read(self, *, force: bool) -> Any:
        contents = self._watched.changed(force=force)
        if contents is None:
            return None
        cert, key, *authorities = contents
        concerns = check_pair(self._files.cert, self._files.key, cert, key)
        if self._files.client_ca is not None:
            check_authorities(self._files.client_ca, authorities[0])
        if not self._watched.unchanged():
            raise ValueError("the files were changed while they were being read")
        for concern in concerns:
            _log.warning("%s", concern)
        _log.info("TLS certificate %s is in use", self._files.cert)
        return grpc.ssl_server_certificate_configuration([(key, cert)], authorities[0] if authorities else None)
