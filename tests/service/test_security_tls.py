"""TLS and mTLS of the real server, with certificates that openssl has made, and their replacement while it serves."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clients import AsyncSelectorClient, RetryPolicy, SelectorClient, Tls, Unavailable
from clients.connection import call_metadata
from clients.tls import channel_security
from selector.cli.commands import cli
from selector.service.tls import ServerTls, TlsFiles, tls_files
from tests.service.certificates import authority, create_secrets, issued, openssl
from tests.service.running import InProcessService

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")

_LOCAL = "IP:127.0.0.1"
_ONCE = RetryPolicy(max_attempts=1)


@dataclass(frozen=True)
class World:
    """Certificates: of an authority, of a server and a client that it has signed, and the same of strangers."""

    folder: Path
    ca: tuple[Path, Path]
    server: tuple[Path, Path]
    client: tuple[Path, Path]
    other_ca: tuple[Path, Path]
    other_server: tuple[Path, Path]
    other_client: tuple[Path, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("certificates")
    ca, other_ca = authority(folder, "ca"), authority(folder, "other-ca")
    return World(
        folder,
        ca,
        issued(folder, "server", ca, _LOCAL),
        issued(folder, "client", ca, "DNS:client"),
        other_ca,
        issued(folder, "other-server", other_ca, _LOCAL),
        issued(folder, "other-client", other_ca, "DNS:client"),
    )


@pytest.fixture(scope="module")
def secured(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    """A service with a certificate, over files that may be replaced."""
    folder = tmp_path_factory.mktemp("served")
    _put(folder, world.server)
    state = tmp_path_factory.mktemp("state")
    service = InProcessService(state, tls_cert=folder / "server.pem", tls_key=folder / "server.key")
    yield service
    service.close()


@pytest.fixture(scope="module")
def mutual(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    """A service that asks clients for a certificate."""
    cert, key = world.server
    state = tmp_path_factory.mktemp("state")
    service = InProcessService(state, tls_cert=cert, tls_key=key, tls_client_ca=world.ca[0])
    yield service
    service.close()


def _put(folder: Path, pair: tuple[Path, Path]) -> None:
    shutil.copy(pair[0], folder / "server.pem")
    shutil.copy(pair[1], folder / "server.key")


def _answers(address: str, tls: Any) -> bool:
    """Whether a new connection gets an answer, over both clients."""

    async def asked() -> bool:
        async with AsyncSelectorClient(address, "a", tls=tls, retry=_ONCE) as client:
            try:
                return await client.list_runs() == []
            except Unavailable:
                return False

    with SelectorClient(address, "a", tls=tls, retry=_ONCE) as client:
        try:
            answered = client.list_runs() == []
        except Unavailable:
            answered = False
    assert asyncio.run(asked()) is answered, "the two clients differ"
    return answered


def test_every_form_of_the_option_reaches_the_service(
    secured: InProcessService, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = world.ca[0]
    for tls in (ca, str(ca), ca.read_bytes(), Tls(ca=ca), channel_security(ca)[0]):
        assert _answers(secured.address, tls), tls
    # OpenSSL's own variable says what this system trusts, unless gRPC's does.
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    assert _answers(secured.address, True)
    assert _answers(secured.address, Tls())


def test_nobody_gets_through_without_trust(
    secured: InProcessService, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(world.other_ca[0]))
    for tls in (None, False, True, world.other_ca[0]):
        assert not _answers(secured.address, tls), tls


def test_a_service_without_tls_is_told_from_one_that_is_not_trusted(
    secured: InProcessService, world: World, tmp_path: Path
) -> None:
    plain = InProcessService(tmp_path)
    said = {}
    for service, tls in ((plain, world.ca[0]), (secured, world.other_ca[0])):
        with (
            SelectorClient(service.address, "a", tls=tls, retry=_ONCE) as client,
            pytest.raises(Unavailable) as refused,
        ):
            client.list_runs()
        said[service] = "seems to be without TLS" in str(refused.value)
    plain.close()
    assert said == {plain: True, secured: False}


def test_the_name_in_the_certificate_counts(world: World, tmp_path: Path) -> None:
    cert, key = issued(tmp_path, "named", world.ca, "DNS:selector.example")
    service = InProcessService(tmp_path / "state", tls_cert=cert, tls_key=key)
    try:
        assert not _answers(service.address, world.ca[0])
        assert _answers(service.address, Tls(ca=world.ca[0], server_name="selector.example"))
        assert not _answers(service.address, Tls(ca=world.ca[0], server_name="another.example"))
    finally:
        service.close()


def test_a_client_needs_a_certificate_of_the_right_authority(mutual: InProcessService, world: World) -> None:
    ca, (cert, key) = world.ca[0], world.client
    assert _answers(mutual.address, Tls(ca, cert, key))
    assert _answers(mutual.address, Tls(ca.read_bytes(), cert.read_bytes(), key.read_bytes()))
    assert not _answers(mutual.address, ca)
    assert not _answers(mutual.address, Tls(ca, *world.other_client))


def test_the_commands_speak_tls(secured: InProcessService, mutual: InProcessService, world: World) -> None:
    cert, key = map(str, world.client)
    for service, extra in ((secured, []), (mutual, ["--tls-client-cert", cert, "--tls-client-key", key])):
        for command, said in (("health", "SERVING\n"), ("runs", "no runs\n")):
            arguments = [command, "--target", service.address]
            trusting = [*arguments, "--tls-ca", str(world.ca[0]), *extra]
            result = CliRunner().invoke(cli, trusting)
            assert (result.exit_code, result.stdout) == (0, said)
            plaintext = CliRunner().invoke(cli, arguments)
            assert (plaintext.exit_code, "does the service use TLS?" in plaintext.stderr) == (1, True)
    variables = {"SELECTOR_TLS_CA": str(world.ca[0]), "SELECTOR_TARGET": secured.address}
    assert CliRunner().invoke(cli, ["health"], env=variables).exit_code == 0
    result = CliRunner().invoke(cli, ["health", "--tls-server-name", "another.example"], env=variables)
    assert (result.exit_code, "use TLS?" in result.stderr) == (1, False)
    nobody = CliRunner().invoke(cli, ["health", "--target", "127.0.0.1:1"])
    assert (nobody.exit_code, "use TLS?" in nobody.stderr) == (1, False)
    result = CliRunner().invoke(cli, ["runs", "--tls-ca", "missing.pem"], env=variables)
    assert (result.exit_code, "missing.pem" in result.stderr) == (1, True)


def test_new_files_are_used_without_a_restart_and_broken_ones_are_not(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "selector.service")
    _put(tmp_path, world.server)
    service = InProcessService(tmp_path / "state", tls_cert=tmp_path / "server.pem", tls_key=tmp_path / "server.key")
    try:
        with SelectorClient(service.address, "a", tls=world.ca[0]) as connected:
            assert connected.list_runs() == []
            # Half of a replacement: the new certificate is there, its key is not yet.
            shutil.copy(world.other_server[0], tmp_path / "server.pem")
            assert _answers(service.address, world.ca[0])
            assert not _answers(service.address, world.other_ca[0])
            unusable = [r for r in caplog.records if "NOT USABLE" in r.message]
            assert [r.levelno for r in unusable] == [logging.ERROR], "it is said, and said once"
            assert "is not that of the first certificate" in unusable[0].message
            shutil.copy(world.other_server[1], tmp_path / "server.key")
            assert _answers(service.address, world.other_ca[0])
            assert not _answers(service.address, world.ca[0])
            (tmp_path / "server.key").unlink()
            assert _answers(service.address, world.other_ca[0])
            assert "server.key" in caplog.records[-1].message and caplog.records[-1].levelno == logging.ERROR
            assert connected.list_runs() == [], "a connection outlives the certificate that it began with"
    finally:
        service.close()


def test_the_authorities_of_clients_are_replaced_too(world: World, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    shutil.copy(world.ca[0], trusted)
    cert, key = world.server
    service = InProcessService(tmp_path / "state", tls_cert=cert, tls_key=key, tls_client_ca=trusted)
    ours, theirs = Tls(world.ca[0], *world.client), Tls(world.ca[0], *world.other_client)
    try:
        assert (_answers(service.address, ours), _answers(service.address, theirs)) == (True, False)
        shutil.copy(world.other_ca[0], trusted)
        assert (_answers(service.address, ours), _answers(service.address, theirs)) == (False, True)
    finally:
        service.close()


def _files(world: World, folder: Path, problem: str) -> TlsFiles:
    """Files that cannot be served with."""
    cert, key = world.server
    garbage, directory = folder / "garbage.pem", folder / "directory.pem"
    garbage.write_text("no PEM")
    directory.mkdir()
    encrypted = folder / "encrypted.key"
    openssl("pkcs8", "-topk8", "-in", key, "-out", encrypted, "-passout", "pass:secret")
    return {
        "missing certificate": TlsFiles(folder / "missing.pem", key),
        "missing key": TlsFiles(cert, folder / "missing.pem"),
        "key of another": TlsFiles(cert, world.client[1]),
        "swapped": TlsFiles(key, cert),
        "encrypted key": TlsFiles(cert, encrypted),
        "garbage": TlsFiles(garbage, key),
        "directory": TlsFiles(directory, key),
        "authorities missing": TlsFiles(cert, key, folder / "missing.pem"),
        "authorities garbage": TlsFiles(cert, key, garbage),
        "authorities are a key": TlsFiles(cert, key, key),
    }[problem]


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("missing certificate", "missing.pem"),
        ("missing key", "missing.pem"),
        ("key of another", "client.key is not that of the first certificate in"),
        ("swapped", "server.key holds no certificate"),
        ("encrypted key", "encrypted.key is encrypted"),
        ("garbage", "garbage.pem holds no certificate"),
        ("directory", "directory.pem"),
        ("authorities missing", "missing.pem"),
        ("authorities garbage", "garbage.pem holds no certificates of authorities"),
        ("authorities are a key", "server.key holds no certificates of authorities"),
    ],
)
def test_what_cannot_be_served_with_is_said_at_the_start(world: World, tmp_path: Path, problem: str, says: str) -> None:
    with pytest.raises(ValueError, match="TLS: ") as caught:
        ServerTls(_files(world, tmp_path, problem), lambda: 0.0).credentials()
    assert says in str(caught.value)
    assert "PRIVATE KEY" not in str(caught.value)


def test_a_start_that_fails_says_so_in_one_line(world: World, tmp_path: Path) -> None:
    cert, _ = world.server
    serve = ["serve", "--encoder=none", "--listen=127.0.0.1:0", "--metrics-listen=", f"--state-dir={tmp_path / 's'}"]
    for extra, says in (
        (["--tls-cert", str(cert)], "--tls-cert and --tls-key belong together"),
        (["--tls-client-ca", str(cert)], "--tls-client-ca needs both"),
        (["--tls-cert", str(cert), "--tls-key", str(world.client[1])], "client.key"),
    ):
        result = CliRunner().invoke(cli, [*serve, *extra])
        assert result.exit_code == 1
        assert result.stderr.startswith("selector: cannot start: ") and says in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("days", [-1, 2])
def test_an_expired_certificate_is_a_warning(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    caplog.set_level(logging.INFO, "selector.service")
    ServerTls(TlsFiles(*issued(tmp_path, "dated", world.ca, _LOCAL, days)), lambda: 0.0).credentials()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert ["HAS EXPIRED" in message for message in warnings] == ([True] if days < 0 else [])


def test_files_that_belong_together() -> None:
    a, b = Path("a"), Path("b")
    assert tls_files(None, None, None) is None
    assert tls_files(a, b, None) == TlsFiles(a, b)
    for incomplete in ((a, None, None), (None, a, None), (None, None, a), (a, None, b)):
        with pytest.raises(ValueError, match="--tls-key"):
            tls_files(*incomplete)


def test_a_client_says_at_once_what_it_cannot_use(world: World, tmp_path: Path) -> None:
    ca, (cert, key) = world.ca[0], world.client
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    for tls, says in (
        (tmp_path / "missing.pem", "missing.pem"),
        (garbage, "garbage.pem holds no certificates"),
        (b"no PEM", "ca: 6 bytes"),
        (broken, "no usable certificates"),
        (Tls(ca, cert), "belong together"),
        (Tls(ca, client_key=key), "belong together"),
        (Tls(ca, cert, world.other_client[1]), "do not belong together"),
        (Tls(ca, key, cert), "client_cert"),
        (Tls(ca, cert, cert), "client_key"),
    ):
        for make in (SelectorClient, AsyncSelectorClient):
            with pytest.raises(ValueError, match="tls: ") as caught:
                make("127.0.0.1:1", "a", tls=tls)
            assert says in str(caught.value)
    assert "PRIVATE" not in repr(Tls(ca, cert, key.read_bytes()))


@pytest.mark.parametrize(
    ("target", "warned"),
    [
        ("localhost:1", False),
        ("127.0.0.1:1", False),
        ("127.8.9.1:1", False),
        ("[::1]:1", False),
        ("ipv4:127.0.0.1:1", False),
        ("ipv6:[::1]:1", False),
        ("dns:///localhost:1", False),
        ("unix:/run/selector", False),
        ("localhost.example:1", True),
        ("127.example:1", True),
        ("10.0.0.1:1", True),
        ("selector:1", True),
    ],
)
def test_a_token_in_plaintext_to_another_machine_is_a_warning(
    caplog: pytest.LogCaptureFixture, target: str, warned: bool
) -> None:
    assert call_metadata("the-secret", target, encrypted=False) == (("authorization", "Bearer the-secret"),)
    assert [target in record.message for record in caplog.records] == ([True] if warned else [])
    assert "the-secret" not in caplog.text
    call_metadata("the-secret", target, encrypted=True)
    assert len(caplog.records) == warned


@pytest.mark.parametrize("token", ["", " ", "two words", "line\nbreak", "naïve", "\x00"])
def test_a_token_that_cannot_be_sent_is_said_without_showing_it(token: str) -> None:
    with pytest.raises(ValueError, match="token: expected printable ASCII") as caught:
        call_metadata(token, "localhost:1", encrypted=True)
    assert not token.strip() or token not in str(caught.value)
    assert call_metadata("from-a-file\n", "localhost:1", encrypted=True)[0][1] == "Bearer from-a-file"


def test_the_script_makes_what_the_service_and_its_clients_need(tmp_path: Path) -> None:
    secrets = create_secrets(tmp_path / "secrets", "gpu-7.example", "10.1.2.3")
    served = secrets / "service"
    assert secrets.stat().st_mode & 0o777 == 0o700, "other users are kept out by the folder"
    assert {path.name for path in served.iterdir()} == {"ca.pem", "server.pem", "server.key", "tokens.yaml"}
    token = (secrets / "admin.token").read_text()
    assert token.strip() not in (served / "tokens.yaml").read_text()
    service = InProcessService(
        tmp_path / "state",
        listen="0.0.0.0:0",
        tls_cert=served / "server.pem",
        tls_key=served / "server.key",
        token_file=served / "tokens.yaml",
    )
    port = service.address.rpartition(":")[2]
    try:
        for name in (None, "selector", "gpu-7.example", "10.1.2.3"):
            tls = Tls(served / "ca.pem", server_name=name)
            with SelectorClient(f"127.0.0.1:{port}", "a", token=token, tls=tls) as client:
                assert client.create_run({}).created is (name is None)
    finally:
        service.close()
    with pytest.raises(Exception, match="create-secrets"):
        create_secrets(secrets)
