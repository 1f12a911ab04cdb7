"""Waiting for a service: real health checks, a service that comes up late, and TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import clients
from clients import AsyncSelectorClient, RetryPolicy, SelectorClient

SERVICES = ("selector.v1.SelectorService", "selector.v1.ReplayService")
FAST = RetryPolicy(max_attempts=1, initial_backoff_s=0.01, max_backoff_s=0.05)


def health_server(port: int = 0) -> tuple[grpc.Server, health.HealthServicer, str]:
    """A server with the real health servicer and nothing else; its two services are not serving."""
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for service in SERVICES:
        servicer.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)
    target = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    return server, servicer, target


def wait_ready(kind: str, target: str, timeout_s: float) -> None:
    if kind == "blocking":
        with SelectorClient(target, "run", retry=FAST) as client:
            client.wait_ready(timeout_s)
        return

    async def run() -> None:
        async with AsyncSelectorClient(target, "run", retry=FAST) as client:
            await client.wait_ready(timeout_s)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_waits_until_both_services_serve(kind: str) -> None:
    server, servicer, target = health_server()
    try:
        servicer.set(SERVICES[0], health_pb2.HealthCheckResponse.SERVING)
        with pytest.raises(TimeoutError):
            wait_ready(kind, target, 0.4)
        late = threading.Timer(0.3, servicer.set, (SERVICES[1], health_pb2.HealthCheckResponse.SERVING))
        late.start()
        wait_ready(kind, target, 30)
        late.join()
    finally:
        server.stop(None).wait()


def test_waits_for_a_service_that_is_not_there_yet_whatever_the_attempts() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises((ConnectionError, TimeoutError)):
        wait_ready("blocking", f"127.0.0.1:{port}", 0.3)
    servers = []

    def start() -> None:
        server, servicer, _ = health_server(port)
        for service in SERVICES:
            servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
        servers.append(server)

    late = threading.Timer(0.4, start)
    late.start()
    wait_ready("blocking", f"127.0.0.1:{port}", 30)
    late.join()
    servers[0].stop(None).wait()


def test_a_server_without_the_services_is_an_error_at_once() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(clients.SelectorError) as caught:
            wait_ready("blocking", target, 30)
        assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED
    finally:
        server.stop(None).wait()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *request.split(), *files], check=True, capture_output=True)
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for service in SERVICES:
        servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    target = f"localhost:{server.add_secure_port('localhost:0', credentials)}"
    server.start()
    try:
        for tls in (certificate, str(certificate), certificate.read_bytes()):
            with SelectorClient(target, "run", token="t", tls=tls) as client:
                client.wait_ready(30)
        for refused in (None, True):
            with SelectorClient(target, "run", tls=refused, retry=FAST) as client, pytest.raises(ConnectionError):
                client.get_run(timeout_s=30)
    finally:
        server.stop(None).wait()
