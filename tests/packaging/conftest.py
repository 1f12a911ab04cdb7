"""The built wheel, and environments that it is installed into as a user would."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-compat"
PACKAGES = ("selector", "clients", "trainer_adapters")


@dataclass(frozen=True)
class Environment:
    """A virtual environment in which nothing of this checkout is importable but what was installed."""

    folder: Path

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, outside the checkout; output is captured and shown on failure."""
        program = self.folder / "bin" / command[0]
        done = subprocess.run(
            [program, *command[1:]], cwd=self.folder, capture_output=True, text=True, check=False, timeout=600
        )
        if check and done.returncode:
            pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def python(self, code: str) -> str:
        """Runs Python code, isolated from the caller's environment, and gives what it printed."""
        return self.run("python", "-I", "-c", code).stdout

    def install(self, *arguments: str) -> None:
        self.run("python", "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", *arguments)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build folder left by an earlier build would end up in it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    for package in (*PACKAGES, "proto", "tests"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    output = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", str(output), str(source)], check=True
    )
    (built,) = output.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def environment(wheel: Path) -> Callable[[str, tuple[str, ...]], Environment]:
    """Makes the environment of that name with those requirements and the wheel; it is kept for the next session.

    pip resolves the requirements together with the wheel's own, so a bound that the wheel does not allow fails.
    """

    @functools.cache
    def make(name: str, requirements: tuple[str, ...]) -> Environment:
        key = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:12]
        made = Environment(ENVIRONMENTS / f"{name}-{key}")
        if (made.folder / "complete").exists():
            if requirements:
                made.install("--upgrade", *requirements)
            made.install("--force-reinstall", "--no-deps", str(wheel))
            return made
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(made.folder)], check=True)
        made.install(str(wheel), *requirements)
        (made.folder / "complete").touch()
        return made

    return make
