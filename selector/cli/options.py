"""Options with four sources: flag > environment variable > YAML file > default.

A YAML file holds the options of ``serve`` by name, with underscores or hyphens; unknown keys are errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from selector.yaml_text import load

# Options that a YAML file cannot set: it would have to be read to know them.
_FLAG_ONLY = {"config", "help"}


def load_config(context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Callback of ``--config``: makes the file's values the defaults of the other options."""
    if path is None:
        return None
    try:
        content = load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        # YAML's own message quotes the file, which may hold a token.
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise click.BadParameter(f"cannot read {path}: not valid YAML{where}", param_hint="--config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}", param_hint="--config") from error
    if content is None:
        content = {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise click.BadParameter(f"{path}: expected a mapping of option names to values", param_hint="--config")
    known = {p.name: p for p in context.command.params if p.name and p.name not in _FLAG_ONLY}
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known:
            options = ", ".join(sorted(n.replace("_", "-") for n in known))
            raise click.BadParameter(f"{path}: unknown key {key!r}; known are {options}", param_hint="--config")
        if name in values:
            raise click.BadParameter(f"{path}: {key!r} is given twice", param_hint="--config")
        if value is not None:
            values[name] = _value(known[name], value, path, key)
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _value(parameter: click.Parameter, value: Any, path: Path, key: str) -> str | bool | list[str]:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise click.BadParameter(f"{path}: {key}: expected true or false", param_hint="--config")
        return value
    return _texts(value, path, key) if parameter.multiple else _text(value, path, key)


def _text(value: Any, path: Path, key: str) -> str:
    """A value as it would be written on the command line, so that it is read and checked in the same way."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise click.BadParameter(f"{path}: {key}: expected a string or a number; got a {kind}", param_hint="--config")
    try:
        return str(value)
    except ValueError as error:
        # Python writes no decimal numbers of thousands of digits, which a hexadecimal one can have.
        raise click.BadParameter(f"{path}: {key}: the number is too large", param_hint="--config") from error


def _texts(value: Any, path: Path, key: str) -> list[str]:
    """The values of an option that may be given several times: a list, or a mapping in place of NAME=VALUE."""
    if isinstance(value, dict):
        return [f"{_text(name, path, key)}={_text(item, path, key)}" for name, item in value.items()]
    return [_text(item, path, key) for item in (value if isinstance(value, list) else [value])]
