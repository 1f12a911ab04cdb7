"""What importing the client costs a trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PROBE = """
import sys
import clients, trainer_adapters
heavy = {"torch", "sqlalchemy", "lmdb", "sklearn", "scipy", "prometheus_client", "google.rpc", "grpc_status"}
server = {name for name in sys.modules if name.split(".")[0] == "selector"} - {"selector", "selector.v1"}
print(sorted(heavy & set(sys.modules)), sorted(name for name in server if not name.startswith("selector.v1.")))
"""


def test_client_and_adapters_load_neither_torch_nor_the_server() -> None:
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True, cwd=_ROOT)
    assert probe.stdout.strip() == "[] []"
