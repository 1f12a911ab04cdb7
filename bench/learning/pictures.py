"""Accuracy against what it cost, and the ratios of all arms with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes

from bench.learning.records import Record
from bench.learning.summary import Summary
from selector.picture_style import Theme, blank, dress, written
from selector.testbed.record import Evaluation

# Okabe and Ito's colours, and black; arms that share one differ in the line.
_LINES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "uniform": ("#595959", "-"),
        "uniform-twice": ("#595959", ":"),
        "refill": ("#cc79a7", "-"),
        "beta": ("#e69f00", "-"),
        "dots": ("#d55e00", "-"),
        "rr": ("#d55e00", ":"),
        "dots-rr": ("#d55e00", "--"),
        "default": ("#0072b2", "-"),
        "oracle": ("#007a5a", "--"),
    }
)
_AXES: Mapping[str, tuple[str, Callable[[Evaluation], float]]] = MappingProxyType(
    {
        "rollouts": ("rollouts, thousands", lambda e: e.rollouts / 1000),
        "steps": ("steps", lambda e: e.step),
        "cpu": ("CPU seconds of the trainer", lambda e: e.cpu_seconds),
    }
)
AXES = tuple(_AXES)


def curves_picture(records: Sequence[Record], against: str, theme: Theme) -> bytes:
    """Held-out accuracy, means over seeds; a panel per mixture and base policy.

    Args:
        against: one of ``AXES``.
    """
    label, cost = _AXES[against]
    settings = list(dict.fromkeys(record.setting for record in records))
    bases = list(dict.fromkeys(record.base for record in records))
    figure = blank(3.4 * len(settings), 2.7 * len(bases) + 0.5, theme)
    panels = figure.subplots(len(bases), len(settings), squeeze=False)
    for row, base in enumerate(bases):
        for column, setting in enumerate(settings):
            of_cell = [record for record in records if (record.setting, record.base) == (setting, base)]
            _draw_curves(panels[row][column], of_cell, cost)
            panels[row][column].set_title(f"{setting}, base {base}", fontsize=10, loc="left", color=theme.ink)
            panels[row][column].grid(color=theme.faint, linewidth=0.6)
            dress(panels[row][column], theme)
            if row == len(bases) - 1:
                panels[row][column].set_xlabel(label)
        panels[row][0].set_ylabel("held-out accuracy")
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.legend(
        list(lines.values()),
        list(lines),
        loc="outside lower center",
        ncols=min(9, len(lines)),
        frameon=False,
        labelcolor=theme.ink,
        fontsize=9,
    )
    return written(figure)


def _draw_curves(axes: Axes, records: Sequence[Record], cost: Callable[[Evaluation], float]) -> None:
    for arm in [arm for arm in _LINES if any(record.run.arm == arm for record in records)]:
        courses = [record.run.evaluations for record in records if record.run.arm == arm]
        points = min(len(course) for course in courses)
        spent = np.mean([[cost(e) for e in course[:points]] for course in courses], axis=0)
        accuracy = np.mean([[e.accuracy for e in course[:points]] for course in courses], axis=0)
        colour, line = _LINES[arm]
        axes.plot(spent, accuracy, line, color=colour, label=arm, linewidth=1.6)
    axes.set_xlim(left=0)


def ratios_picture(found: Sequence[Summary], theme: Theme) -> bytes:
    """Ratios of rollouts with their intervals, a panel per mixture and base policy; hollow where seeds are missing."""
    cells = list(dict.fromkeys((each.setting, each.base) for each in found))
    arms = [arm for arm in dict.fromkeys(each.arm for each in found) if arm != "uniform"]
    figure = blank(2.0 * len(cells) + 1.4, 0.3 * len(arms) + 1.1, theme)
    panels = figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]
    by_cell = {(each.arm, each.setting, each.base): each for each in found}
    for axes, cell in zip(panels, cells, strict=True):
        axes.axvline(1.0, color=theme.ink, linewidth=1)
        axes.axvline(0.8, color=theme.faint, linewidth=1, linestyle="--")
        for at, arm in enumerate(arms):
            each = by_cell.get((arm, *cell))
            if each is None:
                continue
            colour = _LINES.get(arm, ("#007a5a", "-"))[0]
            whole = each.reached == each.seeds
            if each.rollouts.low is not None and each.rollouts.high is not None:
                axes.plot([each.rollouts.low, each.rollouts.high], [at, at], color=colour, linewidth=2)
            axes.plot(each.rollouts.mean, at, "o", color=colour, markerfacecolor=colour if whole else theme.background)
        axes.set_title(f"{cell[0]}, base {cell[1]}", fontsize=10, loc="left", color=theme.ink)
        axes.set_yticks(range(len(arms)), arms)
        axes.grid(axis="x", color=theme.faint, linewidth=0.6)
        dress(axes, theme)
    panels[0].invert_yaxis()
    panels[len(panels) // 2].set_xlabel("rollouts to uniform's final accuracy, over uniform's; hollow: at least")
    return written(figure)
