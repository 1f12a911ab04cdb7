"""What the service is installed and deployed with, as far as it can be checked without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from clients import SelectorClient, Unauthenticated
from tests.service.certificates import create_secrets
from tests.service.running import ServiceProcess

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it on Python 3.10

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"^[A-Za-z0-9._-]+")


def instructions() -> list[tuple[str, str]]:
    """(keyword, arguments) of each instruction of the Dockerfile, continuation lines joined, comments dropped."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    split = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(keyword.upper(), " ".join(arguments.split())) for keyword, arguments in split]


def final_stage() -> list[tuple[str, str]]:
    """The instructions of the image that is shipped."""
    all_instructions = instructions()
    start = max(index for index, (keyword, _) in enumerate(all_instructions) if keyword == "FROM")
    return all_instructions[start:]


def canonical(requirement: str) -> str:
    """The distribution's name out of a requirement, as indexes compare names."""
    match = NAME.match(requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def load_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / name).read_text())


def test_image_runs_as_a_numbered_user_that_is_not_root() -> None:
    users = [arguments for keyword, arguments in final_stage() if keyword == "USER"]
    assert users
    user, _, group = users[-1].partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_image_keeps_its_state_in_a_volume_it_is_told_to_serve_from() -> None:
    stage = dict(final_stage())
    entrypoint = json.loads(stage["ENTRYPOINT"])
    assert entrypoint[:2] == ["selector", "serve"]
    assert entrypoint[entrypoint.index("--state-dir") + 1] == stage["VOLUME"]
    ports = {entrypoint[entrypoint.index(flag) + 1].rpartition(":")[2] for flag in ("--listen", "--metrics-listen")}
    assert set(stage["EXPOSE"].split()) == ports


def test_image_asks_the_service_itself_whether_it_is_healthy() -> None:
    stage = dict(final_stage())
    probe = json.loads(stage["HEALTHCHECK"].partition("CMD ")[2])
    assert probe[:2] == ["selector", "health"]
    assert probe[-1].rpartition(":")[2] in stage["EXPOSE"].split()


def test_image_holds_no_secrets_and_copies_named_files_only() -> None:
    for keyword, arguments in instructions():
        if keyword in ("ENV", "ARG"):
            assert not re.search(r"token|secret|password|credential|api_?key", arguments, re.IGNORECASE)
        if keyword in ("COPY", "ADD"):
            assert arguments.split()[0] not in (".", "./", "*")
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "the build context must be a list of what is let in"


def test_everything_the_image_copies_passes_the_dockerignore_file() -> None:
    admitted = {line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = [
        source.split("/")[0]
        for keyword, arguments in instructions()
        if keyword == "COPY" and not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    ]
    assert set(copied) == admitted
    assert {name for name in admitted if not (ROOT / name).exists()} == set()


def test_prometheus_scrapes_the_port_that_the_image_serves_metrics_on() -> None:
    entrypoint = json.loads(dict(final_stage())["ENTRYPOINT"])
    port = entrypoint[entrypoint.index("--metrics-listen") + 1].rpartition(":")[2]
    (job,) = load_yaml("prometheus.yml")["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"selector:{port}"]
    assert "selector" in load_yaml("docker-compose.yml")["services"], "the target's host is the service's name"


def test_compose_publishes_to_this_host_only_and_mounts_what_exists() -> None:
    compose = load_yaml("docker-compose.yml")
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./secrets"):
                assert volume.endswith(":ro")
            else:
                assert (ROOT / "deploy" / source).is_file() if source.startswith(".") else source in compose["volumes"]
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_secrets_are_kept_out_of_the_repository_and_of_the_image() -> None:
    assert "deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    assert not any(path.startswith("deploy") for path in admitted)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_what_compose_says_starts_a_service_that_is_healthy_and_guarded(tmp_path: Path) -> None:
    """With the secrets of the script, on all addresses as the image has it, and asked by the image's health check."""
    create_secrets(tmp_path / "secrets")
    service = load_yaml("docker-compose.yml")["services"]["selector"]
    (mounted,) = [volume.split(":")[1] for volume in service["volumes"] if volume.startswith("./secrets/service:")]
    environment = {
        name: path.replace(mounted, str(tmp_path / "secrets" / "service"))
        for name, path in service["environment"].items()
    }
    assert all(Path(path).is_file() for path in environment.values())
    process = ServiceProcess(tmp_path / "state", "--listen=0.0.0.0:0", environment=environment)
    try:
        port = process.address.rpartition(":")[2]
        probe = json.loads(dict(final_stage())["HEALTHCHECK"].partition("CMD ")[2])
        target = probe[-1].rpartition(":")[0] + f":{port}"
        done = subprocess.run(
            [sys.executable, "-m", *probe[:-1], target],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "SERVING\n"), done.stderr
        token = (tmp_path / "secrets" / "admin.token").read_text()
        for given in (token, "another"):
            with SelectorClient(f"localhost:{port}", "a", token=given, tls=environment["SELECTOR_TLS_CA"]) as client:
                if given == token:
                    assert client.list_runs() == []
                else:
                    with pytest.raises(Unauthenticated):
                        client.list_runs()
    finally:
        assert process.terminate() == 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's package prometheus")
def test_prometheus_accepts_its_configuration() -> None:
    subprocess.run(["promtool", "check", "config", str(ROOT / "deploy" / "prometheus.yml")], check=True)


def test_constraints_pin_every_direct_dependency_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    direct = {canonical(text) for texts in (project["dependencies"], *extras.values()) for text in texts}
    # The GPU build of faiss cannot be tested on a CPU.
    direct -= {canonical(project["name"]), "faiss-gpu-cu12"}
    lines = (ROOT / "constraints-cpu.txt").read_text().splitlines()
    pinned = {canonical(line) for line in lines if "==" in line and not line.startswith("#")}
    assert direct - pinned == set()


def test_light_install_has_three_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {canonical(text) for text in project["dependencies"]} == {"grpcio", "protobuf", "numpy"}
