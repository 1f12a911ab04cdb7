"""A server that other machines could reach starts only when it is protected, or when somebody insists."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from selector.cli.commands import cli
from selector.grants import admin
from selector.service.exposure import check_exposure, is_loopback
from selector.settings import ServerSettings
from tests.service.running import InProcessService

_TLS = {"tls_cert": Path("cert.pem"), "tls_key": Path("key.pem")}
_MTLS = {**_TLS, "tls_client_ca": Path("ca.pem")}
_TOKEN: dict[str, Any] = {"tokens": (admin("a"),)}
_FILE: dict[str, Any] = {"token_file": Path("tokens.yaml")}


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1", "selector:1", "[::ffff:10.0.0.7]:1"])
@pytest.mark.parametrize(
    ("protection", "asks_for", "spares"),
    [
        ({}, ("--tls-cert", "--token-file"), ()),
        (_TLS, ("--token-file",), ("--tls-cert",)),
        (_MTLS, ("--token-file",), ("--tls-cert",)),
        (_TOKEN, ("--tls-cert",), ("--token-file",)),
        (_FILE, ("--tls-cert",), ("--token-file",)),
    ],
)
def test_what_is_missing_is_asked_for(
    tmp_path: Path, listen: str, protection: dict[str, Any], asks_for: tuple[str, ...], spares: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="--insecure") as caught:
        check_exposure(ServerSettings(tmp_path, listen=listen, metrics_listen="", **protection))
    assert [option for option in asks_for if option not in str(caught.value)] == []
    assert [option for option in spares if option in str(caught.value)] == []
    check_exposure(ServerSettings(tmp_path, listen=listen, metrics_listen="", insecure=True, **protection))


@pytest.mark.parametrize("tokens", [_TOKEN, _FILE])
@pytest.mark.parametrize("tls", [_TLS, _MTLS])
def test_tls_with_tokens_is_enough(tmp_path: Path, tls: dict[str, Any], tokens: dict[str, Any]) -> None:
    check_exposure(ServerSettings(tmp_path, listen="0.0.0.0:1", metrics_listen="", **tls, **tokens))


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.255.0.9:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("[::ffff:10.0.0.1]:1", False),
        ("[fe80::1%eth0]:1", False),
        ("192.168.0.1:1", False),
        ("localhost.example:1", False),
        ("127.0.0.1.example:1", False),
        ("127.1:1", False),
        ("0:1", False),
        ("2130706433:1", False),
    ],
)
def test_what_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_a_server_that_is_refused_has_opened_nothing(tmp_path: Path) -> None:
    """It does not get as far as its state directory, which could not be made."""
    (tmp_path / "file").touch()
    state = tmp_path / "file" / "state"
    arguments = ["serve", "--encoder=none", "--listen=0.0.0.0:0", "--metrics-listen=", f"--state-dir={state}"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("selector: cannot start: --listen 0.0.0.0:0 can be reached from other machines")
    assert len(result.stderr.splitlines()) == 1


def test_insecure_serves_and_says_what_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = InProcessService(tmp_path / "state", listen="0.0.0.0:0", metrics_listen="0.0.0.0:0", insecure=True)
    try:
        assert service.client("a").list_runs() == []
    finally:
        service.close()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any(message.startswith("INSECURE: 0.0.0.0:0") and "TLS or tokens" in message for message in warnings)
    assert any(message.startswith("metrics at 0.0.0.0:0") for message in warnings)
