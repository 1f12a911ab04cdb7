"""What a training came to, for people and for the adapter's file; never any text of the data."""

from __future__ import annotations

from typing import Any

from selector import __version__
from selector.adapter_training.judging import Judgement
from selector.adapter_training.split import Split
from selector.adapter_training.training import Epoch, Trained, TrainingOptions

Rows = list[tuple[object, ...]]


def outcome_rows(trained: Trained) -> tuple[tuple[str, ...], Rows]:
    """Header and rows: held-out models predicted by the mean, without training, and with it."""
    header = ("predicting held-out models", "loss, seen questions", "Pearson", "loss, new questions", "Pearson")
    best, without = trained.best, trained.untrained
    rows: Rows = [
        ("references' mean", _shown(best.seen.constant_loss), None, _shown(best.new.constant_loss), None),
        ("attention, untrained", *_figures(without.seen), *_figures(without.new)),
        ("attention, trained", *_figures(best.seen), *_figures(best.new)),
    ]
    return header, rows


def warning(trained: Trained) -> str | None:
    """What a user should know before using the adapter."""
    judged = trained.best.seen if trained.best.new.empty else trained.best.new
    if trained.best.number == 0 or judged.loss >= judged.constant_loss:
        return (
            "the adapter predicts held-out models no better than the mean of their references: it carries nothing over "
            "from model to model on this data, and is better not used"
        )
    return None


def training_facts(split: Split, options: TrainingOptions, trained: Trained) -> dict[str, Any]:
    """JSON values for the adapter's metadata."""
    best = trained.best
    return {
        "version": __version__,
        "data": [{"name": part.name, "questions": part.size, "models": len(part.models)} for part in split.training],
        "models": sorted({model for part in split.training for model in part.models}),
        "held_out_models": list(split.held_out),
        "held_out_questions": sum(part.size for part in split.new),
        "options": {
            "references": options.references,
            "epochs": options.epochs,
            "learning_rate": options.learning_rate,
            "width": options.width,
            "seed": options.seed,
        },
        "best": epoch_facts(best),
    }


def epoch_facts(epoch: Epoch) -> dict[str, Any]:
    """JSON values of an epoch."""
    return {
        "epoch": epoch.number,
        "training_loss": _shown(epoch.training_loss),
        "seen_questions": _plain(epoch.seen),
        "new_questions": _plain(epoch.new),
    }


def _figures(judgement: Judgement) -> tuple[float | None, float | None]:
    return _shown(judgement.loss), _shown(judgement.pearson)


def _plain(judgement: Judgement) -> dict[str, float | None]:
    return {
        "loss": _shown(judgement.loss),
        "constant_loss": _shown(judgement.constant_loss),
        "pearson": _shown(judgement.pearson),
    }


def _shown(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if value != value else value
