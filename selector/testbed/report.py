"""The report: one HTML file without any dependency, readable on a phone, in light and in dark."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

import numpy as np

from selector.picture_style import DARK, LIGHT
from selector.testbed.arms import ARMS
from selector.testbed.pictures import difficulty_picture, learning_picture
from selector.testbed.record import ArmRun, reached
from selector.testbed.table import COLUMNS, EXPLANATION, by_arm, reached_text, rows

_CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d0d7de; --page: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #161b22; --card: #1f262e; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
.soft { color: var(--soft); font-size: 0.9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.4rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
td { white-space: nowrap; }
th { font-weight: 600; }
img { display: block; width: 100%; max-width: 44rem; height: auto; margin: 0 auto; }
figure { margin: 1rem 0; }
dt { font-weight: 600; }
dd { margin: 0 0 0.5rem; }
pre { background: var(--card); padding: 0.75rem; border-radius: 6px; overflow-x: auto; font-size: 0.85rem; }
"""


def render(runs: Sequence[ArmRun], facts: Mapping[str, str], commands: Sequence[str]) -> str:
    """The whole page.

    Args:
        runs: of the arm ``uniform`` for every seed, and of any others.
        facts: what was run, on what, with which versions.
        commands: how to repeat it and how to look further.
    """
    arms = by_arm(runs)
    described = "".join(
        f"<dt>{html.escape(arm.name)}</dt><dd>{html.escape(arm.description)}</dd>" for arm in ARMS if arm.name in arms
    )
    listed = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Curriculum Selector: demo</title>
<style>{_CSS}</style>
</head>
<body>
<h1>Does choosing prompts by difficulty save rollouts?</h1>
<p>{html.escape(verdict(runs))}</p>
<h2>Comparison</h2>
<div class="wide">{_table(COLUMNS, rows(runs))}</div>
<p class="soft">{html.escape(EXPLANATION)}</p>
<h2>Accuracy against rollouts</h2>
{_figure(learning_picture(runs, LIGHT), learning_picture(runs, DARK), "Held-out accuracy against rollouts, by arm")}
<h2>Predicted against true difficulty</h2>
{_figure(difficulty_picture(runs, LIGHT), difficulty_picture(runs, DARK), "Predicted against true difficulty, by arm")}
<p class="soft">Of the prompts chosen for training, at the moment they were chosen. Every prompt has exactly one right
answer and nothing is truncated in sampling, so the true difficulty is one minus the probability of that answer. On the
dashed line predictions are right.</p>
<h2>The arms</h2>
<dl>{described}</dl>
<h2>Every run</h2>
<div class="wide">{_table(_RUN_COLUMNS, _run_rows(runs))}</div>
<h2>What was run</h2>
<dl>{listed}</dl>
<h2>Commands</h2>
<pre>{html.escape(chr(10).join(commands))}</pre>
</body>
</html>
"""


def verdict(runs: Sequence[ArmRun]) -> str:
    """What the figures say of every arm against uniform, in words; no arm is left out."""
    arms = by_arm(runs)
    controls = arms["uniform"]
    final = np.mean([run.final_accuracy for run in controls])
    seeds = len(controls)
    parts = [
        f"Uniform selection ended at a held-out accuracy of {final:.3f} (mean of {seeds} seed{'s' * (seeds > 1)})."
    ]
    for arm, of_arm in arms.items():
        if arm == "uniform":
            continue
        found = reached(of_arm, controls)
        ended = f"ended at {np.mean([run.final_accuracy for run in of_arm]):.3f}"
        if not found.ratios:
            parts.append(f"{arm} did not reach that with any seed and {ended}.")
            continue
        with_seeds = "" if len(found.ratios) == found.seeds else f" with {len(found.ratios)} of {found.seeds} seeds"
        parts.append(
            f"{arm} got there{with_seeds} on {np.mean(found.ratios):.2f} times uniform's rollouts and {ended}."
        )
    parts.append(
        f"{seeds} seed{'s' * (seeds > 1)} of a tiny model: an illustration, not a claim about other trainings."
    )
    return " ".join(part[0].upper() + part[1:] for part in parts)


_RUN_COLUMNS = (
    "run",
    "rollouts",
    "final accuracy",
    "rollouts to uniform's final",
    "informative / generated",
    "pool tried",
    "replay: effective sample size",
    "largest weight",
    "degraded selections",
    "CPU s",
)


def _run_rows(runs: Sequence[ArmRun]) -> list[tuple[str, ...]]:
    controls = by_arm(runs)["uniform"]
    return [
        (
            f"{run.arm}, seed {run.seed}",
            f"{run.rollouts:,}",
            f"{run.final_accuracy:.3f}",
            reached_text(reached([run], controls)),
            f"{run.informative_share:.2f}",
            f"{run.coverage:.0%}",
            f"{np.mean(run.effective_sample_size):.2f}" if run.effective_sample_size else "-",
            "-" if run.max_importance_weight is None else f"{run.max_importance_weight:.3g}",
            str(run.degraded_selections),
            f"{run.cpu_seconds:.0f}",
        )
        for run in runs
    ]


def _table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _figure(light: bytes, dark: bytes, alternative: str) -> str:
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_data(dark)}">'
        f'<img src="{_data(light)}" alt="{html.escape(alternative)}"></picture></figure>'
    )


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
