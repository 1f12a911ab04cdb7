"""Options for a file that is written when the work is done: whether it can be is known before it begins."""

from __future__ import annotations

import argparse
from pathlib import Path

import click


class OutputFile(click.Path):
    """Of click: a path that can be written."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        reason = unwritable(path)
        if reason is not None:
            self.fail(reason, param, ctx)
        return path


def output_file(given: str) -> Path:
    """The same as a ``type`` of argparse.

    Raises:
        argparse.ArgumentTypeError: it cannot be written.
    """
    path = Path(given)
    reason = unwritable(path)
    if reason is not None:
        raise argparse.ArgumentTypeError(reason)
    return path


def unwritable(path: Path) -> str | None:
    """Why there can be no such file, None = it can be written. What is there stays as it is."""
    try:
        there = path.exists()
        if there and not path.is_file() and not path.is_dir():
            # A pipe or a terminal: opening it may wait for its reader.
            return None
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except (OSError, ValueError) as error:
        return f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
    return None
