"""The look that all pictures share: themes for a light and a dark background, frames, and the written file.

Colours of data are Okabe and Ito's, safe for colour-blind readers.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_DPI = 200


@dataclass(frozen=True)
class Theme:
    """Colours of everything that is not data."""

    name: str
    background: str
    ink: str
    faint: str


LIGHT = Theme("light", "#ffffff", "#1f2328", "#d0d7de")
DARK = Theme("dark", "#161b22", "#e6edf3", "#3d444d")


def blank(width: float, height: float, theme: Theme) -> Figure:
    """An empty figure of so many inches."""
    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained", facecolor=theme.background)


def dress(axes: Axes, theme: Theme) -> None:
    """Give axes the theme's colours, and no frame but the two lines that carry ticks."""
    axes.set_facecolor(theme.background)
    axes.tick_params(colors=theme.ink, labelsize=9)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    for side, spine in axes.spines.items():
        spine.set_color(theme.faint)
        spine.set_visible(side in ("left", "bottom"))


def written(figure: Figure, kind: str = "png") -> bytes:
    """The figure as a file: ``png``, ``svg`` or ``pdf``."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return buffer.getvalue()
