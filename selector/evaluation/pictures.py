"""The picture of an evaluation: predicted against measured, and the rows as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm

from selector.evaluation.experiment import Evaluation, Record
from selector.evaluation.prequential import FUSED as PREQUENTIAL_FUSED
from selector.evaluation.prequential import RECORDED, STAGES, StageFigures
from selector.evaluation.report import default_row
from selector.evaluation.rows import ORACLE
from selector.picture_style import LIGHT, Theme, blank, dress, written

KINDS = ("png", "svg", "pdf")
_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#8c959f"
_COLOURS = ("#8c959f", "#cc79a7", "#e69f00", "#d55e00", "#009e73", "#56b4e9", "#6f6f6f")
_MARKERS = ("o", "s", "^", "v", "P", "X", "*")
_BINS = 25


def evaluation_picture(evaluation: Evaluation, title: str, kind: str, theme: Theme = LIGHT) -> bytes:
    """The default row's predictions of all draws against the measured rates, and two figures of every row.

    Args:
        title: what was evaluated, one line.
        kind: one of ``KINDS``.
    """
    shares = any(summary.mean["informative"] is not None for summary in evaluation.summaries)
    height = max(3.4, 1.2 + 0.25 * len(evaluation.summaries))
    figure = blank(11.5 if shares else 8.6, height, theme)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", color=theme.ink)
    panels = figure.subplots(1, 3 if shares else 2, width_ratios=[1.25, 1, 1] if shares else [1.25, 1])
    own = default_row(evaluation).row
    _density(panels[0], [record for record in evaluation.records if record.row == own], own, theme)
    _bars(panels[1], evaluation, "pearson", "correlation with measured (Pearson)", own, theme, names=True)
    if shares:
        _bars(panels[2], evaluation, "informative", "informative share of a batch", own, theme, names=False)
    return written(figure, kind)


def replay_picture(figures: Sequence[StageFigures], title: str, kind: str, theme: Theme = LIGHT) -> bytes:
    """Log loss of every row at every stage that has visits.

    Args:
        title: what was evaluated, one line.
        kind: one of ``KINDS``.
    """
    stages = [stage for stage in STAGES if any(f.stage == stage for f in figures)]
    rows = list(dict.fromkeys(f.row for f in figures))
    figure = blank(9.0, 4.2, theme)
    axes = figure.add_subplot()
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", color=theme.ink)
    for number, row in enumerate(rows):
        found = {f.stage: f.accuracy.log_loss for f in figures if f.row == row}
        heights = [np.nan if found.get(stage) is None else float(found[stage] or 0.0) for stage in stages]
        look: dict[str, Any] = {
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 6,
            "color": _COLOURS[number % len(_COLOURS)],
        }
        if row == PREQUENTIAL_FUSED:
            look = {"marker": "D", "markersize": 8, "color": _BLUE}
        elif row == RECORDED:
            look = {"marker": "o", "markersize": 12, "color": theme.ink, "fillstyle": "none"}
        axes.plot(np.arange(len(stages)), heights, linestyle="none", label=row, **look)
    axes.set_xticks(np.arange(len(stages)), [stage.replace(" ", "\n", 1) for stage in stages])
    axes.set_ylabel("log loss per trial (lower is better)")
    axes.grid(color=theme.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    dress(axes, theme)
    figure.legend(loc="outside right upper", frameon=False, labelcolor=theme.ink, fontsize=9)
    return written(figure, kind)


def _density(axes: Axes, records: Sequence[Record], row: str, theme: Theme) -> None:
    predicted = np.concatenate([record.predicted for record in records])
    measured = np.concatenate([record.measured for record in records])
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    counts = np.histogram2d(predicted, measured, bins=(edges, edges))[0]
    colours = LinearSegmentedColormap.from_list("counts", ["#e6eef6", "#7fb2d6", "#00263d"])
    shown = np.ma.masked_less(counts.T, 0.5)
    axes.pcolormesh(edges, edges, shown, norm=LogNorm(1, max(2.0, counts.max())), cmap=colours)
    axes.plot([0, 1], [0, 1], color=theme.ink, linewidth=1, linestyle=(0, (1, 3)), label="calibrated")
    tenths = np.minimum((predicted * 10).astype(np.int64), 9)
    held = np.flatnonzero(np.bincount(tenths, minlength=10) >= 10)
    if len(held):
        means = [(predicted[tenths == k].mean(), measured[tenths == k].mean()) for k in held]
        axes.plot(*zip(*means, strict=True), "-o", color=_ORANGE, linewidth=1.8, markersize=4, label="mean measured")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted pass rate", ylabel="measured pass rate")
    axes.set_aspect("equal")
    axes.set_title(f"{row}: questions never tried", fontsize=10, loc="left", color=theme.ink)
    axes.legend(fontsize=8, frameon=False, labelcolor=theme.ink, loc="upper left")
    dress(axes, theme)


def _bars(axes: Axes, evaluation: Evaluation, figure: str, label: str, own: str, theme: Theme, names: bool) -> None:
    summaries = evaluation.summaries
    places = np.arange(len(summaries))[::-1]
    for place, summary in zip(places, summaries, strict=True):
        mean, spread = summary.mean[figure], summary.spread[figure] or 0.0
        colour = _BLUE if summary.row == own else _GREY
        if figure == "pearson" and summary.row == ORACLE:
            axes.text(0.0, place, " 1 by definition", va="center", fontsize=8, color=theme.ink)
            continue
        if mean is None:
            axes.text(0.0, place, " same for all", va="center", fontsize=8, color=theme.ink)
            continue
        axes.barh(place, mean, xerr=spread, height=0.66, color=colour, ecolor=theme.ink, error_kw={"linewidth": 0.9})
        axes.text(max(mean, 0.0) + spread, place, f" {mean:.2f}", va="center", fontsize=8, color=theme.ink)
    axes.set_yticks(places, [s.row for s in summaries] if names else [""] * len(summaries))
    axes.set_ylim(-0.7, len(evaluation.summaries) - 0.3)
    axes.set_xlabel(label)
    axes.margins(x=0.14)
    axes.grid(axis="x", color=theme.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    dress(axes, theme)
    axes.tick_params(axis="y", length=0)
