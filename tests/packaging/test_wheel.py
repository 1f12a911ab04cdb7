"""What the wheel holds, and what a trainer gets that installs it with nothing but its three dependencies."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import PACKAGES, ROOT, Environment

HEAVY = ("torch", "sqlalchemy", "alembic", "lmdb", "faiss", "sklearn", "click", "yaml", "pyarrow", "prometheus_client")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def light(environment: Callable[[str, tuple[str, ...]], Environment]) -> Environment:
    return environment("light", ())


def sources() -> set[str]:
    """Every file of the three packages that is code, types or data, by its path in the checkout."""
    kinds = (".py", ".pyi", ".yaml", ".mako")
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in kinds or path.name == "py.typed"
    }


def test_wheel_holds_every_file_of_the_packages(names: set[str]) -> None:
    assert sources() - names == set()
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "selector/v1/run_pb2.pyi" in names


def test_wheel_holds_nothing_else(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    (metadata,) = {top for top in tops if top.endswith(".dist-info")}
    assert tops == {*PACKAGES, metadata}
    assert {name for name in names if not name.startswith(metadata)} == sources()
    assert f"{metadata}/licenses/LICENSE" in names


def test_light_install_brings_nothing_heavy(light: Environment) -> None:
    found = light.python(
        f"from importlib.util import find_spec\nprint(*(name for name in {HEAVY!r} if find_spec(name)))"
    )
    assert found.split() == []


def test_everything_a_trainer_imports_works_in_the_light_install(light: Environment) -> None:
    printed = light.python(
        "import clients, selector, selector.v1.reasons, trainer_adapters\n"
        "from clients import AsyncSelectorClient, RolloutGroup, SelectorClient, SelectorError\n"
        "print(selector.__version__, clients.__file__)\n"
    )
    version, location = printed.split()
    assert Path(location).is_relative_to(light.folder)
    assert version in light.run("python", "-m", "pip", "show", "curriculum-selector").stdout


@pytest.mark.parametrize("command", [("selector", "--help"), ("selector", "serve"), ("python", "-m", "selector")])
def test_command_line_says_what_to_install(light: Environment, command: tuple[str, ...]) -> None:
    done = light.run(*command, check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "pip install 'curriculum-selector[server]'" in output
    assert "Traceback" not in output
