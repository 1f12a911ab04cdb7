"""Every limit of ``selector serve`` is documented with its default, and is the server's own default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from selector.cli.commands import cli
from selector.cli.limits import limit_options
from selector.settings import ServerSettings

_DOCS = Path(__file__).parents[2] / "docs" / "limits.md"


def _options() -> dict[str, Any]:
    @click.command()
    @limit_options
    def bare(**_: Any) -> None: ...

    return {option.opts[0]: option.default for option in bare.params if isinstance(option, click.Option)}


def test_every_limit_is_documented_with_its_default() -> None:
    documented = dict(re.findall(r"^\| `(--[a-z-]+)` \| ([0-9.]+) \|", _DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name: float(value) for name, value in documented.items()} == _options()


def test_the_servers_defaults_are_those_of_the_options(tmp_path: Path) -> None:
    settings = ServerSettings(tmp_path)
    for name, default in _options().items():
        assert getattr(settings, name[2:].replace("-", "_")) == default, name
    serve: Any = cli.commands["serve"]
    assert {*_options()} <= {option.opts[0] for option in serve.params}
