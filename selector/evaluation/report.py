"""What an evaluation says: the cells of its tables, and one sentence in plain words."""

from __future__ import annotations

from selector.evaluation.experiment import Evaluation, Summary
from selector.evaluation.rows import (
    CONSTANT,
    FUSED,
    FUSED_ADAPTER,
    FUSED_PRIOR,
    FUSED_PRIOR_ADAPTER,
    LENGTH,
    ORACLE,
)

# Differences in correlation below it are not worth a word.
_CLEAR = 0.01
_HARDLY = 0.1

_PREDICTION = (
    ("Pearson", "pearson"),
    ("Spearman", "spearman"),
    ("mean abs error", "mean_absolute_error"),
    ("log loss", "log_loss"),
    ("slope", "calibration_slope"),
    ("calib. error", "calibration_error"),
    ("90 % covers", "coverage"),
)
_SELECTION = (("in band", "in_band"), ("informative", "informative"))
EXPLANATION = """
mean abs error, log loss per trial and calibration error: lower is better. slope: 1 is calibrated, below 1 too spread
out. 90 % covers: share of questions inside their 90 % interval. in band: of the prompts predicted nearest to the
target, the share whose measured difficulty lies in [0.125, 0.875]. informative: share of a selected batch's groups
whose outcomes would differ. ± is the standard deviation over draws.""".strip()


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows."""


def tables(evaluation: Evaluation) -> list[Table]:
    """What was predicted, and what comes of picking by it; columns without any figure are left out."""
    found = []
    for part in (_PREDICTION, _SELECTION):
        columns = [c for c in part if any(s.mean[c[1]] is not None for s in evaluation.summaries)]
        if columns:
            body = [(s.row, *(_pm(s, name) for _, name in columns)) for s in evaluation.summaries]
            found.append((("row", *(title for title, _ in columns)), body))
    return found


def default_row(evaluation: Evaluation) -> Summary:
    """What the service predicts with everything that is known."""
    known = (FUSED_PRIOR_ADAPTER, FUSED_PRIOR, FUSED_ADAPTER, FUSED)
    return next(summary for row in known if (summary := evaluation.of(row)) is not None)


def best_control(evaluation: Evaluation, prior: bool) -> Summary | None:
    """The control with the highest correlation, if one has any; ``prior``: those that know other rates count too."""
    controls = [s for s in evaluation.summaries if s.control and (prior or not s.prior)]
    known = [s for s in controls if s.mean["pearson"] is not None]
    return max(known, key=lambda s: s.mean["pearson"] or 0.0) if known else None


def verdict(evaluation: Evaluation) -> str:
    """Whether to trust the service's predictions on this data."""
    oracle = evaluation.of(ORACLE)
    if oracle is not None and oracle.mean["pearson"] is None:
        return "All measured pass rates are equal: there is no difference between the prompts to predict."
    length = evaluation.of(LENGTH)
    own = default_row(evaluation)
    said = "On prompts never tried the service's prediction correlates with the measured pass rate by "
    said += _compared(own, best_control(evaluation, own.prior))
    without = evaluation.of(FUSED_ADAPTER) or evaluation.of(FUSED)
    if own.prior and without is not None:
        said += f"; without the prior by {_compared(without, best_control(evaluation, prior=False))}"
    if length is not None:
        said += f"; length alone by {_number(length.mean['pearson'])}"
    return " ".join([f"{said}.", *_gain(evaluation, own)])


def _compared(row: Summary, best: Summary | None) -> str:
    r = row.mean["pearson"]
    if r is None:
        return "nothing, being the same for all"
    if best is None or best.mean["pearson"] is None:
        return _pm(row, "pearson")
    control, difference = best.mean["pearson"], r - best.mean["pearson"]
    if difference > _CLEAR:
        judged = "better than"
    elif difference < -_CLEAR:
        judged = "WORSE than"
    else:
        judged = "as good as"
    hardly = ": nothing here predicts much" if max(r, control) < _HARDLY else ""
    return f"{_pm(row, 'pearson')}, {judged} the best other row's {control:.3f} ({best.row}){hardly}"


def _gain(evaluation: Evaluation, own: Summary) -> list[str]:
    uniform, oracle = evaluation.of(CONSTANT), evaluation.of(ORACLE)
    if uniform is None or oracle is None or own.mean["informative"] is None:
        return []
    return [
        f"Of a selected batch {_percent(own)} of the groups are informative, of a random one {_percent(uniform)}, "
        f"with every rate known {_percent(oracle)}."
    ]


def _pm(summary: Summary, figure: str) -> str:
    """Mean and spread in as few characters as they need."""
    mean, spread = summary.mean[figure], summary.spread[figure]
    if mean is None:
        return "-"
    return _number(mean) if spread is None else f"{_number(mean)} ±{_number(spread).lstrip('0')}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(summary: Summary) -> str:
    value = summary.mean["informative"]
    return "-" if value is None else f"{value:.0%}".replace("%", " %")
