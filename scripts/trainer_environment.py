"""Makes the virtual environment of one trainer and prints its Python; one that is there unchanged is used again.

    python scripts/trainer_environment.py trl

Trainers pin releases that exclude each other's and the service's. So each has an environment of its own, outside of the
clone, named by a digest of what is in it: a new clone finds it. ``scripts/trainers/NAME.txt`` lists the packages as pip
does; behind ``# without dependencies:`` stand those that are installed alone, because what they require (CUDA engines)
is not needed for what the tests run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

_LISTS = Path(__file__).parent / "trainers"
_ALONE = "# without dependencies:"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Makes the virtual environment of one trainer.")
    parser.add_argument("trainer", choices=sorted(path.stem for path in _LISTS.glob("*.txt")))
    parser.add_argument("--root", type=Path, default=_default_root(), help="folder of all environments")
    arguments = parser.parse_args()
    print(environment(arguments.trainer, arguments.root))
    return 0


def environment(trainer: str, root: Path) -> Path:
    """The Python of a trainer's environment, made if need be."""
    requirements = _LISTS / f"{trainer}.txt"
    text = requirements.read_text(encoding="utf-8")
    interpreter = f"{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.sha256(f"{interpreter}\n{text}".encode()).hexdigest()[:12]
    folder = root / f"{trainer}-{digest}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    print(f"Making the environment of {trainer} in {folder}: a few minutes, once.", file=sys.stderr)
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
    return Path(cache) / "curriculum-selector" / "trainers"


if __name__ == "__main__":
    sys.exit(main())
