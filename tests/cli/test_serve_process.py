"""``selector serve`` as a process, ``selector health``, and why a server does not start."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from clients import SelectorError
from clients.errors import Unauthenticated
from tests.cli.conftest import Invoke
from tests.service.running import InProcessService, ServiceProcess


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_sources_of_options_and_secrets_of_a_real_process(invoke: Invoke, tmp_path: Path) -> None:
    """Effective settings are logged once; no token is ever shown; the exit code after SIGTERM is 0."""
    secrets = {"environment": "token-of-the-environment", "file": "token-of-the-token-file"}
    (tmp_path / "tokens").write_text(secrets["file"], encoding="utf-8")
    config = {"grace_s": 11, "workers": 5, "max-runs": 6, "token-file": str(tmp_path / "tokens")}
    (tmp_path / "selector.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    process = ServiceProcess(
        tmp_path / "state",
        f"--config={tmp_path / 'selector.yaml'}",
        "--workers=3",
        "--log-level=debug",
        environment={"SELECTOR_TOKEN": secrets["environment"], "SELECTOR_MAX_RUNS": "4", "SELECTOR_WORKERS": "4"},
    )
    health = invoke("health", "--target", process.address)
    assert (health.exit_code, health.output) == (0, "SERVING\n")
    for token in secrets.values():
        with process.client("a", token=token) as client:
            assert client.list_runs() == []
        listed = invoke("runs", "--target", process.address, env={"SELECTOR_TOKEN": token})
        assert (listed.exit_code, listed.stdout) == (0, "no runs\n")
    with process.client("a", token="wrong") as client, pytest.raises(Unauthenticated):
        client.list_runs()
    stdout = process.process.stdout
    assert stdout is not None
    process.process.terminate()
    rest = stdout.read()
    assert process.terminate() == 0
    shown = [line for line in process.stderr if "settings: " in line]
    assert len(shown) == 1
    assert not [line for line in process.stderr[: process.stderr.index(shown[0])] if " INFO " in line]
    settings = json.loads(shown[0].partition("settings: ")[2])
    assert (settings["workers"], settings["max_runs"], settings["grace_s"]) == (3, 4, 11.0)
    assert (settings["token"], settings["token_file"]) == ("set", str(tmp_path / "tokens"))
    assert rest == "", "one line is printed, and ServiceProcess has read it"
    everything = "".join(process.stderr) + rest
    assert not any(secret in everything for secret in [*secrets.values(), "wrong"])


# Loaded by the service's interpreter before anything else: once the file is there, gRPC's own task of taking calls in
# fails at the next call.
_FAILING_GRPC = """
import asyncio, os

create_task = asyncio.BaseEventLoop.create_task

def failing(loop, coroutine, **keywords):
    if "_schedule_rpc_coro" in getattr(coroutine, "__qualname__", "") and os.path.exists(os.environ["FAIL_ONCE_THERE"]):
        coroutine.close()
        raise MemoryError("planted")
    return create_task(loop, coroutine, **keywords)

asyncio.BaseEventLoop.create_task = failing
"""


def test_a_service_that_stops_serving_by_itself_ends(tmp_path: Path) -> None:
    """With exit code 1 and a reason, although a call is under way; what was acknowledged is there afterwards."""
    (tmp_path / "sitecustomize.py").write_text(_FAILING_GRPC, encoding="utf-8")
    environment = {"PYTHONPATH": str(tmp_path), "FAIL_ONCE_THERE": str(tmp_path / "fail")}
    process = ServiceProcess(tmp_path / "state", environment=environment)
    try:
        with process.client("a") as client, grpc.insecure_channel(process.address) as channel:
            client.create_run()
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            (tmp_path / "fail").touch()
            with pytest.raises(SelectorError):
                client.register_prompts(["p"], timeout_s=3)
            assert process.process.wait(60) == 1
    finally:
        process.kill()
    log = "".join(process.stderr)
    assert "ERROR selector: gRPC has stopped serving although nobody asked for it" in log
    assert "MemoryError: planted" in log and log.rstrip().endswith("stopped")
    again = InProcessService(tmp_path / "state")
    assert again.client("a").get_run().pool.registered == 0
    again.close()


def test_a_second_server_on_a_state_directory_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    first = InProcessService(tmp_path / "state")
    try:
        arguments = ("--encoder=none", "--listen=127.0.0.1:0", "--metrics-listen=", f"--state-dir={tmp_path / 'state'}")
        second = invoke("serve", *arguments)
        assert second.exit_code == 1
        assert str(tmp_path / "state") in second.stderr and "in use by process" in second.stderr
        assert len(second.stderr.splitlines()) == 1
        assert first.client("a").list_runs() == []
        looking = invoke("runs", "--state-dir", tmp_path / "state")
        assert looking.exit_code == 1
        assert "--target" in looking.stderr
    finally:
        first.close()


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_an_address_in_use_is_named(invoke: Invoke, tmp_path: Path, taken: str, option: str) -> None:
    addresses = {"--listen": "127.0.0.1:0", "--metrics-listen": "", option: taken}
    arguments = [f"{name}={address}" for name, address in addresses.items()]
    result = invoke("serve", "--encoder=none", f"--state-dir={tmp_path / 'state'}", *arguments)
    assert result.exit_code == 1
    assert "cannot start" in result.stderr and taken in result.stderr
    assert len(result.stderr.splitlines()) == 1
    # Nothing is left behind that would keep the next one from starting.
    again = InProcessService(tmp_path / "state")
    again.close()


@pytest.mark.parametrize("problem", ["encoder", "adapter-missing", "adapter-broken", "database", "state-dir"])
def test_what_cannot_be_loaded_is_named_in_one_line(invoke: Invoke, tmp_path: Path, problem: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no safetensors" * 100)
    arguments = {
        "encoder": ["--encoder", str(tmp_path / "no-model")],
        "adapter-missing": ["--encoder=none", f"--adapter=a={tmp_path / 'missing.st'}"],
        "adapter-broken": ["--encoder=none", f"--adapter=a={broken}"],
        "database": ["--encoder=none"],
        "state-dir": ["--encoder=none", f"--state-dir={broken / 'below'}"],
    }[problem]
    named = {"encoder": "no-model", "adapter-missing": "missing.st", "database": "state.db", "state-dir": "below"}
    if problem == "database":
        (state / "state.db").write_bytes(b"this is not a database" * 1000)
    result = invoke("serve", "--listen=127.0.0.1:0", "--metrics-listen=", f"--state-dir={state}", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("selector: cannot start: ")
    assert named.get(problem, broken.name) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_health_of_nobody(invoke: Invoke, taken: str) -> None:
    """Whoever listens there speaks no gRPC."""
    for target in (taken, "127.0.0.1:1"):
        result = invoke("health", "--target", target, "--timeout-s", "0.2")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"selector: {target}: ")
        code, _, detail = result.stderr.removeprefix(f"selector: {target}: ").partition(": ")
        assert grpc.StatusCode[code] is not grpc.StatusCode.OK
        assert detail.strip() and len(result.stderr.splitlines()) == 1


def test_health_of_a_server_that_drains(invoke: Invoke, tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state")
    try:
        assert invoke("health", "--target", service.address).exit_code == 0
        service.run(service.server._health.load())
        result = invoke("health", env={"SELECTOR_TARGET": service.address})
        assert (result.exit_code, result.stdout) == (1, "NOT_SERVING\n")
    finally:
        service.close()


def test_a_service_may_open_as_many_files_as_the_system_lets_it(tmp_path: Path) -> None:
    """Each connection takes one; the usual soft limit is 1,024."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, most), most))
    try:
        service = ServiceProcess(tmp_path / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    try:
        assert resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE) == (most, most)
    finally:
        assert service.terminate() == 0


def test_a_service_starts_where_the_system_lets_it_open_no_more_files(tmp_path: Path) -> None:
    """As on macOS without a hard limit, and on Linux when that is beyond fs.nr_open."""
    refused = "def refused(*_): raise ValueError('current limit exceeds maximum limit')"
    (tmp_path / "sitecustomize.py").write_text(f"import resource\n{refused}\nresource.setrlimit = refused\n")
    service = ServiceProcess(tmp_path / "state", environment={"PYTHONPATH": str(tmp_path)})
    assert service.terminate() == 0
