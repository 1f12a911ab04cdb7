"""Whether the embeddings that prompts refer to are there, and every kept one is as it was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selector.embedding.errors import EmbeddingError
from selector.embedding.reading import check_space
from selector.embedding.store import read_description
from selector.maintenance.report import Check
from selector.storage.runs import RunRow

_LISTED = 5


@dataclass(frozen=True)
class _Space:
    directory: Path
    rows: int
    damaged: list[int]


def check_embeddings(check: Check, root: Path, runs: Sequence[tuple[RunRow, Mapping[int, str]]]) -> None:
    """Every space below ``root``, and every run's rows.

    Args:
        runs: each with the rows that it refers to, and the prompt that does.
    """
    spaces: dict[tuple[str, int], _Space] = {}
    for path in sorted(root.glob("*/space.json")):
        try:
            key, width = read_description(path)
            space = _Space(path.parent, *check_space(path.parent, width))
        except EmbeddingError as error:
            check.problem(str(error))
            continue
        check.examined += space.rows
        spaces[key, width] = space
    in_use = dict.fromkeys(spaces, -1)
    for row, used in runs:
        if used and (row.space, row.width) not in spaces:
            check.problem(f"run {row.run_id}: its embedding space {row.space!r} of width {row.width} cannot be used")
        elif used:
            in_use[row.space, row.width] = max(in_use[row.space, row.width], *used)
            _check_run(check, row, used, spaces[row.space, row.width])
    for name, space in spaces.items():
        tail = [number for number in space.damaged if number > in_use[name]]
        if tail:
            # Of an append that is going on, or was cut short.
            check.note(
                f"{space.directory}: {len(tail)} row(s) that no prompt refers to are incomplete: {_listed(tail)}"
            )
        rest = [number for number in space.damaged if number <= in_use[name]]
        if rest:
            check.problem(f"{space.directory}: {len(rest)} row(s) do not match their checksum: {_listed(rest)}")


def _check_run(check: Check, row: RunRow, used: Mapping[int, str], space: _Space) -> None:
    missing = sorted(number for number in used if number >= space.rows)
    if missing:
        check.problem(
            f"run {row.run_id}: embedding row(s) {_listed(missing)} are missing from {space.directory}, which has "
            f"{space.rows}; the first belongs to prompt {used[missing[0]]!r}"
        )
    for number in [number for number in space.damaged if number in used][:_LISTED]:
        check.problem(f"run {row.run_id}: the embedding of prompt {used[number]!r} (row {number}) is damaged")


def _listed(rows: list[int]) -> str:
    shown = ", ".join(str(row) for row in rows[:_LISTED])
    return shown if len(rows) <= _LISTED else f"{shown}, …"
