"""Pictures of what the other modules wrote: ``python -m bench.performance.pictures FILE.json… --ratios OUT.png``.

``--ratios``: one bar for every figure that has a baseline, how many times better ours is, on a logarithmic axis: blue
where what was to be reached (the mark) is reached, orange where it is not, grey where nothing was set. A line ends at
the smallest and the largest pair of a run. Shares of batches that are the same are left out.

``--growth``: of what ``long_run`` wrote, memory and files as the steps went by.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.performance.figures import SAME
from selector.cli.output_file import output_file
from selector.picture_style import LIGHT, Theme, blank, dress, written

_PANELS = {
    "memory, MiB": {
        "server": "server",
        "predictor": "predictor",
        "server mapped": "files that the server maps, which the system can take back",
    },
    "files, MiB": {"database": "state.db", "replay": "replay groups", "others": "embeddings, snapshots, reserve"},
}
_REACHED, _MISSED, _OPEN, _MARK = "#0072b2", "#d55e00", "#8c959f", "#009e73"


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The figures of several files, in order."""
    return [figure for path in paths for figure in json.loads(path.read_text(encoding="utf-8"))]


def ratios(figures: Sequence[dict[str, Any]], theme: Theme = LIGHT) -> bytes:
    """The picture, as PNG."""
    shown = [each for each in figures if each["ratio"] is not None and each["unit"] != SAME]
    picture = blank(9.5, 1.0 + 0.27 * len(shown), theme)
    axes = picture.add_subplot()
    dress(axes, theme)
    for at, figure in enumerate(shown):
        ratio, must = figure["ratio"], figure["must"]
        colour = _OPEN if must is None else _REACHED if ratio >= must else _MISSED
        axes.barh(at, ratio - 1, left=1, height=0.62, color=colour, zorder=2)
        spread = figure["spread"] or [ratio, ratio]
        axes.plot(spread, [at, at], color=theme.ink, linewidth=1, zorder=3)
        if must is not None:
            axes.plot([must, must], [at - 0.42, at + 0.42], color=_MARK, linewidth=2.5, zorder=4)
        axes.annotate(
            f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}",
            (max(*spread, must or 1.0, 1.0), at),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=theme.ink,
        )
    axes.set_xscale("log")
    axes.axvline(1, color=theme.ink, linewidth=0.8, zorder=5)
    axes.set_yticks(range(len(shown)), [f"{figure['name']}, against {figure['against']}" for figure in shown])
    axes.tick_params(axis="y", labelsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.01)
    axes.set_xlabel("times better than the baseline")
    return written(picture)


def growth(figures: Sequence[dict[str, Any]], theme: Theme = LIGHT) -> bytes:
    """The picture of a long run, as PNG."""
    series = {
        each["name"].partition(" over ")[0]: each["detail"]["series"] for each in figures if "series" in each["detail"]
    }
    series["database"] = series.pop("database of a step")
    picture = blank(9.5, 3.2, theme)
    for axes, title, names in zip(picture.subplots(1, 2), _PANELS, _PANELS.values(), strict=True):
        dress(axes, theme)
        for name, colour in zip(names, (_REACHED, _MISSED, _MARK), strict=True):
            steps, values = zip(*series[name], strict=True)
            axes.plot(steps, values, color=colour, label=names[name])
        axes.set_title(title, fontsize=9, color=theme.ink)
        axes.set_xlabel("steps")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False, labelcolor=theme.ink)
    return written(picture)


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.performance.pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="+", help="written with --json")
    parser.add_argument("--ratios", type=output_file, help="the picture of ratios")
    parser.add_argument("--growth", type=output_file, help="the picture of a long run")
    arguments = parser.parse_args()
    if not (arguments.ratios or arguments.growth):
        parser.error("expected --ratios, --growth or both")
    figures = read(arguments.files)
    if arguments.ratios:
        arguments.ratios.write_bytes(ratios(figures))
    if arguments.growth:
        arguments.growth.write_bytes(growth(figures))


if __name__ == "__main__":
    main()
