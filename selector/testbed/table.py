"""The comparison of arms: rows of text for the terminal and the report, and plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from selector.testbed.record import ArmRun, Reached, mean_or_none, reached

COLUMNS = (
    "arm",
    "rollouts",
    "steps",
    "final accuracy",
    "rollouts to uniform's final",
    "informative / generated",
    "r, chosen",
    "r, pool",
    "CPU s",
)
EXPLANATION = (
    "Means over seeds; ± is half the range. Final accuracy: held-out, exact, mean of the last three evaluations. "
    "Rollouts to uniform's final accuracy: with the same seed, by the mean of three evaluations; in brackets the ratio "
    "to uniform's own count by the same rule, and its range. Rollouts and generated groups include references. "
    "r: Pearson correlation of predicted with true difficulty, over the prompts chosen and over the whole pool; "
    "prompts chosen for being alike in predicted difficulty have a low r among them, however good the predictions. "
    "CPU s: of the trainer's process, without measuring and without the service; updates skip groups without contrast, "
    "so arms with fewer informative groups look cheaper than in a trainer that computes them all."
)


def by_arm(runs: Sequence[ArmRun]) -> dict[str, list[ArmRun]]:
    """Runs of each arm, in order of first appearance."""
    grouped: dict[str, list[ArmRun]] = {}
    for run in runs:
        grouped.setdefault(run.arm, []).append(run)
    return grouped


def rows(runs: Sequence[ArmRun]) -> list[tuple[str, ...]]:
    """One row of ``COLUMNS`` per arm. Needs runs of the arm ``uniform`` for every seed."""
    arms = by_arm(runs)
    return [
        (
            arm,
            f"{np.mean([run.rollouts for run in of_arm]):,.0f}",
            f"{np.mean([run.steps for run in of_arm]):.0f}",
            _spread([run.final_accuracy for run in of_arm], 3),
            reached_text(reached(of_arm, arms["uniform"])),
            f"{np.mean([run.informative_share for run in of_arm]):.2f}",
            "exact" if arm == "oracle" else _correlation([run.selected_correlation for run in of_arm]),
            "exact" if arm == "oracle" else _correlation([run.pool_correlation for run in of_arm]),
            _spread([run.cpu_seconds for run in of_arm], 0),
        )
        for arm, of_arm in arms.items()
    ]


def text_table(runs: Sequence[ArmRun]) -> str:
    """Aligned columns for a terminal, the header wrapped at words."""
    header = [column.split(" ") for column in COLUMNS]
    body = rows(runs)
    widths = [max([*(len(word) for word in words), *(len(row[i]) for row in body)]) for i, words in enumerate(header)]
    wrapped = [_wrap(column, widths[i]) for i, column in enumerate(COLUMNS)]
    depth = max(len(lines) for lines in wrapped)
    lines = [
        _line([cell[k - depth + len(cell)] if k >= depth - len(cell) else "" for cell in wrapped], widths)
        for k in range(depth)
    ]
    lines.append("  ".join("-" * width for width in widths))
    lines += [_line(row, widths) for row in body]
    return "\n".join(lines)


def reached_text(found: Reached) -> str:
    """Such as ``17,408 (0.57, 0.51-0.63)``; says how many seeds got there when not all did."""
    if not found.rollouts:
        return "not reached"
    ratios = f"{np.mean(found.ratios):.2f}"
    if len(found.ratios) > 1:
        ratios += f", {min(found.ratios):.2f}-{max(found.ratios):.2f}"
    seeds = "" if len(found.rollouts) == found.seeds else f", {len(found.rollouts)} of {found.seeds} seeds"
    return f"{np.mean(found.rollouts):,.0f} ({ratios}{seeds})"


def figures(runs: Sequence[ArmRun]) -> dict[str, Any]:
    """Everything but the pairs of predicted and true difficulty, as JSON values: per arm and per run."""
    arms = by_arm(runs)
    summaries = {}
    for arm, of_arm in arms.items():
        summaries[arm] = {
            "rollouts": float(np.mean([run.rollouts for run in of_arm])),
            "final_accuracy": float(np.mean([run.final_accuracy for run in of_arm])),
            "to_uniform_final": asdict(reached(of_arm, arms["uniform"])),
            "informative_per_generated": float(np.mean([run.informative_share for run in of_arm])),
            "pearson_chosen": mean_or_none([run.selected_correlation for run in of_arm]),
            "pearson_pool": mean_or_none([run.pool_correlation for run in of_arm]),
            "cpu_seconds": float(np.mean([run.cpu_seconds for run in of_arm])),
        }
    return {"arms": summaries, "runs": [_run_figures(run) for run in runs]}


def _run_figures(run: ArmRun) -> dict[str, Any]:
    values = {name: value for name, value in vars(run).items() if name not in ("predicted", "true", "evaluations")}
    return {
        **values,
        "final_accuracy": run.final_accuracy,
        "informative_share": run.informative_share,
        "selected_correlation": run.selected_correlation,
        "evaluations": [asdict(evaluation) for evaluation in run.evaluations],
    }


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.ptp(values) / 2:.{digits}f}"


def _correlation(values: Sequence[float | None]) -> str:
    mean = mean_or_none(values)
    return "-" if mean is None else f"{mean:.2f}"


def _wrap(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for word in text.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])
