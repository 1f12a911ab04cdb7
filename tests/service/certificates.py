"""Certificates for tests, made with openssl as an operator would."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def create_secrets(folder: Path, *hosts: str) -> Path:
    """What deploy/create-secrets.sh makes."""
    script = ROOT / "deploy" / "create-secrets.sh"
    subprocess.run([script, folder, *hosts], check=True, capture_output=True)
    return folder


def authority(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate authority: certificate and key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl("req", "-x509", *_NEW_KEY, "-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={name}")
    return cert, key


def issued(folder: Path, name: str, by: tuple[Path, Path], names: str, days: int = 2) -> tuple[Path, Path]:
    """A certificate of an authority, and its key.

    Args:
        names: its subjectAltName.
        days: it is valid for; negative = it has expired.
    """
    cert, key, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\n")
    openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    signer = ("-CA", by[0], "-CAkey", by[1], "-set_serial", "7", "-extfile", extensions)
    openssl("x509", "-req", "-in", request, *signer, "-days", str(days), "-out", cert)
    return cert, key
