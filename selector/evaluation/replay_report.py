"""What a prequential evaluation says: the cells of its tables, and one sentence in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from selector.evaluation.prequential import FUSED, RECORDED, STAGES, StageFigures
from selector.evaluation.report import Table

EXPLANATION = """
Every report of the run was predicted from the reports before it. Log loss per trial, lower is better: in total, on
first visits, by steps of absence, by quarter of training, on the half of the prompts that was never shown, and on
prompts drawn uniformly. slope: 1 is calibrated, below 1 too spread out. 90 % covers: share of groups inside their 90 %
interval.""".strip()

_FIGURES = (
    ("Pearson", "pearson"),
    ("mean abs error", "mean_absolute_error"),
    ("slope", "calibration_slope"),
    ("calib. error", "calibration_error"),
    ("90 % covers", "coverage"),
)
# What a user would call fewer by no more than this is a tie.
_TIE = 5e-4
_FEWEST_UNSELECTED = 100


def tables(figures: Sequence[StageFigures]) -> list[Table]:
    """Log loss by stage, and the other figures in total and on unselected prompts."""
    rows = list(dict.fromkeys(f.row for f in figures))
    stages = [stage for stage in STAGES if any(f.stage == stage for f in figures)]
    found = {(f.row, f.stage): f for f in figures}

    def loss(row: str, stage: str) -> str:
        figure = found.get((row, stage))
        return "-" if figure is None else _number(figure.accuracy.log_loss)

    groups = ("groups", *(str(max(f.accuracy.questions for f in figures if f.stage == stage)) for stage in stages))
    losses = [(row, *(loss(row, stage) for stage in stages)) for row in rows]
    shown = {"all reports": "all"}
    unselected = [f.accuracy.questions for f in figures if f.stage == "unselected"]
    if unselected and max(unselected) >= _FEWEST_UNSELECTED:
        shown["unselected prompts"] = "unselected"
    return [
        (("log loss", *stages), [groups, *losses]),
        *(
            (
                (title, *(column for column, _ in _FIGURES)),
                [(row, *(_cell(found.get((row, stage)), name) for _, name in _FIGURES)) for row in rows],
            )
            for title, stage in shown.items()
        ),
    ]


def verdict(figures: Sequence[StageFigures]) -> str:
    """Where the service's default prediction is best, and where another is."""
    better: list[str] = []
    stages = [stage for stage in STAGES if any(f.stage == stage for f in figures)]
    for stage in stages:
        own = next((f for f in figures if f.row == FUSED and f.stage == stage), None)
        others = [f for f in figures if f.stage == stage and f.row not in (FUSED, RECORDED)]
        if own is None or own.accuracy.log_loss is None or not others:
            continue
        best = min(others, key=lambda f: f.accuracy.log_loss or 0.0)
        if best.accuracy.log_loss is not None and best.accuracy.log_loss < own.accuracy.log_loss - _TIE:
            better.append(f"{stage} ({best.row} {best.accuracy.log_loss:.3f}, fused {own.accuracy.log_loss:.3f})")
    total = next(f for f in figures if f.row == FUSED and f.stage == "all").accuracy.log_loss
    constant = next(f for f in figures if f.row == "constant" and f.stage == "all").accuracy.log_loss
    first = (
        f"The service's default prediction (fused) loses {_number(total)} nats per trial, "
        f"a constant {_number(constant)}."
    )
    if not better:
        return f"{first} No other row predicts better at any stage."
    return f"{first} Another row predicts better at: {'; '.join(better)}."


def _cell(figure: StageFigures | None, name: str) -> str:
    return "-" if figure is None else _number(getattr(figure.accuracy, name))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
