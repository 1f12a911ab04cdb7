"""The two pictures of the report, as PNG for a light or a dark background.

Colours are Okabe and Ito's, safe for colour-blind readers; arms also differ in line style and marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm

from selector.picture_style import LIGHT, Theme, blank, dress, written
from selector.testbed.record import ArmRun


@dataclass(frozen=True)
class _Style:
    light: str
    dark: str
    line: str
    marker: str


_STYLES = {
    "uniform": _Style("#595959", "#bdbdbd", "-", "o"),
    "paper": _Style("#d55e00", "#ff8c42", "-.", "s"),
    "default": _Style("#0072b2", "#56b4e9", "-", "D"),
    "oracle": _Style("#007a5a", "#2fc79a", "--", "^"),
}


def learning_picture(runs: Sequence[ArmRun], theme: Theme) -> bytes:
    """Held-out accuracy against rollouts, one line per arm: mean over seeds, lowest and highest as a band."""
    figure = blank(5.6, 4.3, theme)
    axes = figure.add_subplot()
    for arm in _arms(runs):
        style = _STYLES[arm]
        colour = _colour(arm, theme)
        of_arm = [run for run in runs if run.arm == arm]
        points = min(len(run.evaluations) for run in of_arm)
        rollouts = np.mean([[e.rollouts for e in run.evaluations[:points]] for run in of_arm], axis=0) / 1000
        accuracy = np.array([[e.accuracy for e in run.evaluations[:points]] for run in of_arm])
        axes.fill_between(rollouts, accuracy.min(axis=0), accuracy.max(axis=0), color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            rollouts,
            accuracy.mean(axis=0),
            style.line,
            color=colour,
            label=arm,
            linewidth=2,
            marker=style.marker,
            markersize=4.5,
            markevery=(0, max(1, points // 7)),
        )
    controls = [run.final_accuracy for run in runs if run.arm == "uniform"]
    if controls:
        axes.axhline(
            float(np.mean(controls)),
            color=theme.ink,
            linewidth=1,
            linestyle=(0, (1, 3)),
            label="uniform's final accuracy",
        )
    axes.set_xlabel("rollouts generated, references included (thousands)")
    axes.set_ylabel("held-out accuracy (exact probability)")
    axes.set_xlim(left=0)
    axes.grid(color=theme.faint, linewidth=0.6)
    seeds = len({run.seed for run in runs})
    axes.set_title(
        f"Mean of {seeds} seeds, band from lowest to highest" if seeds > 1 else "Learning per rollout",
        fontsize=10,
        loc="left",
        color=theme.ink,
    )
    dress(axes, theme)
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        labelcolor=theme.ink,
        fontsize=9,
        handlelength=2.6,
        columnspacing=1.4,
    )
    return written(figure)


def difficulty_picture(runs: Sequence[ArmRun], theme: Theme) -> bytes:
    """Predicted against true difficulty of the prompts chosen, one panel per arm; the oracle needs none."""
    arms = [arm for arm in _arms(runs) if arm != "oracle"]
    figure = blank(5.6, 2.3, theme)
    panels = figure.subplots(1, max(1, len(arms)), sharex=True, sharey=True, squeeze=False)[0]
    edges = np.linspace(0.0, 1.0, 26)
    counts = {}
    for arm in arms:
        of_arm = [run for run in runs if run.arm == arm]
        predicted = np.concatenate([run.predicted for run in of_arm])
        true = np.concatenate([run.true for run in of_arm])
        counts[arm] = np.histogram2d(predicted, true, bins=(edges, edges))[0]
    norm = LogNorm(1, max([2.0, *(count.max() for count in counts.values())]))
    mesh = None
    for axes, arm in zip(panels, arms, strict=False):
        colours = LinearSegmentedColormap.from_list(
            "counts", ["#d9e6f2", "#0072b2", "#00263d"] if theme is LIGHT else ["#1d3a52", "#56b4e9", "#f0f8ff"]
        )
        shown = np.ma.masked_less(counts[arm].T, 0.5)
        mesh = axes.pcolormesh(edges, edges, shown, norm=norm, cmap=colours)
        axes.plot([0, 1], [0, 1], color=_colour("paper", theme), linewidth=1, linestyle="--")
        correlations = [r for r in (run.selected_correlation for run in runs if run.arm == arm) if r is not None]
        found = f", r = {np.mean(correlations):.2f}" if correlations else ""
        axes.set_title(f"{arm}{found}", fontsize=10, loc="left", color=theme.ink)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_aspect("equal")
        axes.set_xlabel("predicted difficulty")
        dress(axes, theme)
    panels[0].set_ylabel("true difficulty")
    if mesh is not None:
        bar = figure.colorbar(mesh, ax=list(panels), shrink=0.7, pad=0.02, format="%g")
        bar.set_label("prompts chosen", color=theme.ink)
        bar.ax.tick_params(colors=theme.ink, which="both")
        bar.outline.set_visible(False)
    return written(figure)


def _arms(runs: Sequence[ArmRun]) -> list[str]:
    present = {run.arm for run in runs}
    return [arm for arm in _STYLES if arm in present]


def _colour(arm: str, theme: Theme) -> str:
    return _STYLES[arm].light if theme is LIGHT else _STYLES[arm].dark
