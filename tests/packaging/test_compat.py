"""The light install works with the oldest and the newest grpcio and protobuf that it claims, and beside proto-plus.

Each row is an environment of its own, in which pip has resolved the package's requirements together with the row's.
The oldest releases have wheels for some Pythons only, so each row names the first that has, by Python.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import Environment

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("light_client_probe.py")
GRPCIO = {10: "1.49.1", 11: "1.49.1", 12: "1.59.0", 13: "1.66.2"}
NUMPY = {10: "1.24.0", 11: "1.24.0", 12: "1.26.0", 13: "2.1.0"}

MINOR = sys.version_info.minor
OLDEST_GRPCIO = f"grpcio=={GRPCIO.get(MINOR, '1.75.1')}"
OLDEST_NUMPY = f"numpy=={NUMPY.get(MINOR, '2.3.2')}"

ROWS = {
    "oldest": (OLDEST_GRPCIO, "protobuf==3.20.3", OLDEST_NUMPY),
    # The first protobuf of the present implementation, which many environments are held at.
    "oldest-upb": (OLDEST_GRPCIO, "protobuf==4.21.6", OLDEST_NUMPY),
    "newest": ("grpcio", "protobuf", "numpy"),
    "proto-plus": ("proto-plus", "googleapis-common-protos"),
}

pytestmark = pytest.mark.slow

Make = Callable[[str, tuple[str, ...]], Environment]


@pytest.fixture(params=ROWS)
def installed(request: pytest.FixtureRequest, environment: Make) -> Environment:
    return environment(request.param, ROWS[request.param])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real service, of this environment."""
    state = tmp_path_factory.mktemp("state")
    addresses = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "selector", "serve", *addresses, "--state-dir", str(state), "--encoder", "none"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"127\.0\.0\.1:\d+", line)
            assert address, f"expected the bound address, got {line!r}"
            yield address.group()
        finally:
            process.terminate()


def test_clients_reach_a_service_made_of_the_same_stubs(installed: Environment) -> None:
    installed.run("python", "-I", str(PROBE))


def test_clients_reach_a_service_of_the_newest_releases(installed: Environment, service: str) -> None:
    # Runs of its own for each row: in another's, prompts would be out on a lease.
    installed.run("python", "-I", str(PROBE), service, installed.folder.name)


def test_proto_plus_and_the_package_live_in_one_process(environment: Make) -> None:
    together = environment("proto-plus", ROWS["proto-plus"])
    printed = together.python(
        "import proto, google.rpc.error_details_pb2\n"
        "import clients\n"
        "from selector.v1 import error_details_pb2, replay_service_pb2, selector_service_pb2\n"
        "class Row(proto.Message):\n"
        "    name = proto.Field(proto.STRING, number=1)\n"
        "assert Row.deserialize(Row.serialize(Row(name='x'))).name == 'x'\n"
        "print(proto.__file__)\n"
    )
    files = together.run("python", "-m", "pip", "show", "-f", "curriculum-selector").stdout
    assert Path(printed.strip()).parent.name == "proto"
    assert not re.search(r"^\s+proto/", files, re.MULTILINE)
    assert re.search(r"^\s+selector/v1/run_pb2\.py$", files, re.MULTILINE)


def test_the_oldest_row_is_what_the_package_declares(wheel: Path, environment: Make) -> None:
    """The declared bounds are these, where this Python has wheels for them: not older, and not newer."""
    oldest = environment("oldest", ROWS["oldest"])
    declared = oldest.python(
        "from importlib.metadata import requires\n"
        "print(*(text for text in requires('curriculum-selector') if 'extra' not in text))"
    ).split()
    assert set(declared) == {f"grpcio>={GRPCIO[10]}", "protobuf>=3.20.3", f"numpy>={NUMPY[10].removesuffix('.0')}"}
