"""Generates selector/v1 from proto/, or checks that it is what proto/ generates.

Run by ``make stubs`` and ``make stubs-check`` with an interpreter that holds grpcio-tools of the release pinned in
scripts/stub-requirements.txt: the oldest whose stubs import under the oldest and the newest grpcio and protobuf that
the package claims. Newer generators write stubs that refuse older runtimes. ``--check`` exits with 1 and names every
file that differs. Files without services get no ``*_pb2_grpc.py``.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROTO_ROOT = ROOT / "proto"
PACKAGE = Path("selector") / "v1"
SERVICE = re.compile(r"^service\s+\w+", re.MULTILINE)


def generate(output: Path) -> None:
    """Writes the stubs of every schema file under ``output``/selector/v1."""
    schemas = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    with_services = [schema for schema in schemas if SERVICE.search(schema.read_text(encoding="utf-8"))]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO_ROOT}"]
    subprocess.run([*protoc, f"--python_out={output}", f"--pyi_out={output}", *map(str, schemas)], check=True)
    subprocess.run([*protoc, f"--grpc_python_out={output}", *map(str, with_services)], check=True)


def stubs(folder: Path) -> set[str]:
    """Names of the generated files in a folder."""
    return {path.name for path in folder.glob("*_pb2*.py*")}


def differences(generated: Path, kept: Path) -> list[str]:
    """What has to happen to each file of ``kept`` to make it what was generated; empty when nothing has."""
    new, old = stubs(generated), stubs(kept)
    missing = [f"missing: {name}" for name in sorted(new - old)]
    stale = [f"left over: {name}" for name in sorted(old - new)]
    differs = filecmp.cmpfiles(generated, kept, sorted(new & old), shallow=False)[1]
    return missing + stale + [f"differs: {name}" for name in differs]


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate selector/v1 from proto/.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when the stubs have drifted")
    parser.add_argument("--package", type=Path, default=ROOT / PACKAGE, help="folder of the stubs")
    arguments = parser.parse_args()
    kept: Path = arguments.package
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        generated = Path(folder) / PACKAGE
        changes = differences(generated, kept)
        if not arguments.check:
            for name in stubs(kept) - stubs(generated):
                (kept / name).unlink()
            for name in stubs(generated):
                shutil.copyfile(generated / name, kept / name)
    for change in changes:
        sys.stdout.write(f"{change}\n")
    if arguments.check and changes:
        sys.stdout.write("The stubs are not what proto/ generates; run: make stubs\n")
        return 1
    sys.stdout.write("The stubs match proto/.\n" if not changes else "The stubs are regenerated.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
