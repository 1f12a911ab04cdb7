"""Options with four sources: flag > environment variable > YAML file > default.

A YAML file holds the options of ``serve`` by name, with underscores or hyphens; unknown keys are errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

# Options that a YAML file cannot set: it would have to be read to know them.
_FLAG_ONLY = {"config", "help"}


def load_config(context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Callback of ``--config``: makes the file's values the defaults of the other options."""
    if path is None:
        return None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}", param_hint="--config") from error
    if content is None:
        content = {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise click.BadParameter(f"{path}: expected a mapping of option names to values", param_hint="--config")
    known = {p.name for p in context.command.params if p.name not in _FLAG_ONLY}
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known:
            options = ", ".join(sorted(n.replace("_", "-") for n in known if n))
            raise click.BadParameter(f"{path}: unknown key {key!r}; known are {options}", param_hint="--config")
        values[name] = value
    context.default_map = {**(context.default_map or {}), **values}
    return path
