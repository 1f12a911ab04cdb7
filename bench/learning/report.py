"""The tables as Markdown, for a terminal and for the documentation alike."""

from __future__ import annotations

from collections.abc import Sequence

from bench.learning.ratios import Interval
from bench.learning.summary import ALL, Foretelling, Summary

_COLUMNS = (
    "arm",
    "rollouts",
    "reached",
    "steps",
    "CPU",
    "half generation",
    "final accuracy",
    "against uniform's",
    "informative",
    "coverage",
)


def report(everywhere: Sequence[Summary], found: Sequence[Summary], live: Sequence[Foretelling]) -> str:
    """A table of the rollouts, one of all seeds together, one per mixture and base policy, and of the live metrics."""
    cells = list(dict.fromkeys((each.setting, each.base) for each in found))
    parts = [
        f"### Rollouts to uniform's final accuracy, over uniform's\n\n{_overview([*everywhere, *found], cells)}",
        f"### All mixtures and base policies together\n\n{_markdown(_COLUMNS, [_row(each) for each in everywhere])}",
    ]
    for setting, base in cells:
        rows = [_row(each) for each in found if (each.setting, each.base) == (setting, base)]
        parts.append(f"### {setting}, base {base}\n\n{_markdown(_COLUMNS, rows)}")
    if live:
        rows = [
            (f"`{each.metric}`", f"{each.mean:.2f}", f"{each.smallest:.2f} to {each.largest:.2f}", str(each.cells))
            for each in live
        ]
        header = ("live metric", "rank correlation with the ratio of rollouts", "smallest to largest", "cells")
        parts.append(f"### What the live metrics foretell\n\n{_markdown(header, rows)}")
    return "\n\n".join(parts) + "\n"


def _overview(found: Sequence[Summary], of: Sequence[tuple[str, str]]) -> str:
    cells = [(ALL, ""), *of]
    by_cell = {(each.arm, each.setting, each.base): each for each in found}
    rows = []
    for arm in dict.fromkeys(each.arm for each in found):
        of_arm = [by_cell.get((arm, *cell)) for cell in cells]
        rows.append((arm, *("-" if each is None else _ratio(each) for each in of_arm)))
    return _markdown(("arm", *(f"{setting} {base}".strip() for setting, base in cells)), rows)


def _row(each: Summary) -> tuple[str, ...]:
    return (
        each.arm,
        _ratio(each),
        f"{each.reached} of {each.seeds}",
        _with_interval(each.steps, 2),
        _with_interval(each.cpu_seconds, 2),
        _with_interval(each.half_generation, 2),
        f"{each.accuracy.mean:.3f}",
        _with_interval(each.accuracy_gain, 3, "+"),
        f"{each.informative_share:.2f}",
        f"{each.coverage:.0%}",
    )


def _ratio(each: Summary) -> str:
    """With ≥ where a seed never got there, so that the mean is a bound."""
    return ("" if each.reached == each.seeds else "≥ ") + _with_interval(each.rollouts, 2)


def _with_interval(value: Interval, digits: int, sign: str = "") -> str:
    mean = f"{value.mean:{sign}.{digits}f}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} [{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
