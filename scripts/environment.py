"""Makes a virtual environment and prints its Python; one that is there unchanged is used again.

    python scripts/environment.py trl

Trainers, and what the service's speed is compared with, pin releases that exclude each other's and the service's. So
each has an environment of its own, outside of the clone, named by a digest of what is in it: a new clone finds it.
``scripts/trainers/NAME.txt`` and ``scripts/peers/NAME.txt`` list the packages as pip does; behind
``# without dependencies:`` stand those that are installed alone, because what they require (CUDA engines) is not needed
for what runs with them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

_SCRIPTS = Path(__file__).parent
_ALONE = "# without dependencies:"


def main() -> int:
    """The command."""
    lists = {path.stem: path for kind in ("trainers", "peers") for path in (_SCRIPTS / kind).glob("*.txt")}
    parser = argparse.ArgumentParser(description="Makes a virtual environment and prints its Python.")
    parser.add_argument("name", choices=sorted(lists))
    parser.add_argument("--root", type=Path, default=_default_root(), help="folder of all environments")
    arguments = parser.parse_args()
    requirements = lists[arguments.name]
    print(environment(requirements, arguments.root / requirements.parent.name))
    return 0


def environment(requirements: Path, root: Path) -> Path:
    """The Python of the environment with these requirements, made if need be."""
    name = requirements.stem
    text = requirements.read_text(encoding="utf-8")
    interpreter = f"{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.sha256(f"{interpreter}\n{text}".encode()).hexdigest()[:12]
    folder = root / f"{name}-{digest}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    print(f"Making the environment of {name} in {folder}: a few minutes, once.", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(requirements)], check=True)
    alone = [line.removeprefix(_ALONE).split() for line in text.splitlines() if line.startswith(_ALONE)]
    for packages in alone:
        subprocess.run([*pip, "--no-deps", *packages], check=True)
    (folder / "complete").touch()
    return python


def _default_root() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "curriculum-selector"


if __name__ == "__main__":
    sys.exit(main())
