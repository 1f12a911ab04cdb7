"""Options of ``serve`` that limit what one caller can use up; ``docs/limits.md`` tells what each of them does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_GIB = 2**30

# Name, default, smallest value, help.
_COUNTS = (
    ("max-runs", 1000, 1, "Most runs."),
    ("max-prompts", 10_000_000, 1, "Most prompts of a run."),
    ("max-total-prompts", 40_000_000, 1, "Most prompts of all runs."),
    ("max-prompt-bytes", 16 * _GIB, 1, "Most bytes of ids, texts and domains of a run's prompts."),
    ("max-total-prompt-bytes", 32 * _GIB, 1, "Most bytes of ids, texts and domains of all prompts."),
    ("max-total-embedding-bytes", 256 * _GIB, 1, "Most bytes of all embeddings, those of deleted runs included."),
    ("max-replay-groups", 200_000, 1, "Most replay groups kept of a run, those kept for a rewind included."),
    ("max-total-replay-groups", 2_000_000, 1, "Most replay groups kept of all runs."),
    ("max-replay-bytes", 32 * _GIB, 1, "Most bytes of replay groups kept of a run."),
    ("max-total-replay-bytes", 48 * _GIB, 1, "Most bytes of replay groups kept of all runs."),
    ("max-stream-bytes", 4 * _GIB, 1, "Most bytes of a stream."),
    ("max-inflight-bytes", 4 * _GIB, 1, "Most message bytes held at once for the calls of a run."),
    ("max-total-inflight-bytes", 8 * _GIB, 1, "Most message bytes held at once for all calls."),
    ("max-calls", 1024, 1, "Most calls of a run at the same time."),
    ("max-total-calls", 4096, 1, "Most calls at the same time."),
    ("max-streams", 512, 1, "Most streaming calls of a run at the same time."),
    ("max-total-streams", 2048, 1, "Most streaming calls at the same time."),
    ("max-connection-streams", 512, 1, "Most calls at the same time over one connection; further ones wait."),
)
_SECONDS = (
    ("stream-idle-s", 300.0, 0.1, "Seconds that a caller may take to send or to take one message."),
    ("keepalive-s", 60.0, 0.1, "Seconds between pings that find out whether a caller's machine is still there."),
)


def limit_options(command: _Command) -> _Command:
    """Adds the options to a command."""
    for name, default, least, text in reversed(_SECONDS):
        command = _added(command, name, default, click.FloatRange(least), text, _finite)
    command = _added(
        command, "max-message-bytes", 64 * 2**20, click.IntRange(2**16, 2**31 - 1), "Most bytes of a message."
    )
    for name, default, least, text in reversed(_COUNTS):
        command = _added(command, name, default, click.IntRange(least), text)
    return command


def _added(
    command: _Command, name: str, default: float, kind: Any, text: str, callback: Callable[..., Any] | None = None
) -> _Command:
    option = click.option(
        f"--{name}",
        envvar=f"SELECTOR_{name.upper().replace('-', '_')}",
        show_envvar=True,
        show_default=True,
        default=default,
        type=kind,
        callback=callback,
        help=text,
    )
    added: _Command = option(command)
    return added


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number; got {value}")
    return value
