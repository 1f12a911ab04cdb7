"""The generated protocol is what the schema says, and the check that says so can fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "selector" / "v1"
GENERATOR = ROOT / ".venv-stubs" / "bin" / "python"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checked() -> subprocess.CompletedProcess[str]:
    """The check as make runs it, which also installs the generator."""
    done = subprocess.run(["make", "stubs-check"], cwd=ROOT, capture_output=True, text=True, check=False)
    if "SKIPPED" in done.stdout:
        pytest.skip(done.stdout.strip())
    return done


def test_stubs_are_what_the_schema_generates(checked: subprocess.CompletedProcess[str]) -> None:
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.usefixtures("checked")
def test_drift_is_found_and_named(tmp_path: Path) -> None:
    package = tmp_path / "v1"
    shutil.copytree(STUBS, package)
    (package / "run_pb2.pyi").unlink()
    (package / "gone_pb2.py").touch()
    with (package / "replay_service_pb2.py").open("a", encoding="utf-8") as stub:
        stub.write("# edited by hand\n")
    command = [str(GENERATOR), "scripts/generate_stubs.py", "--check", "--package", str(package)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert set(done.stdout.splitlines()) >= {
        "missing: run_pb2.pyi",
        "left over: gone_pb2.py",
        "differs: replay_service_pb2.py",
    }
