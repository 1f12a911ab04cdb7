"""What is kept of a training: its figures, and what the service's live metrics said at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from clients import Quality
from selector.testbed.record import ArmRun, Evaluation

# Live metrics that could tell, without a control, whether selection is any good.
LIVE = (
    "informative_per_generated",
    "in_band_share",
    "pearson",
    "mean_absolute_error",
    "brier",
    "calibration_slope",
    "expected_calibration_error",
    "population_success_rate",
    "coverage",
    "largest_domain_share",
    "effective_sample_size",
)
_NOTHING = np.zeros(0)


@dataclass(frozen=True)
class Record:
    """One arm with one seed on one mixture from one base policy.

    Attributes:
        run: without the difficulties of single prompts.
        live: by name of ``LIVE``; None = the service had no value.
    """

    setting: str
    base: str
    run: ArmRun
    live: Mapping[str, float | None]


def record_of(setting: str, base: str, run: ArmRun, quality: Quality) -> Record:
    """The record of a finished run."""
    slim = replace(run, predicted=_NOTHING, true=_NOTHING)
    return Record(setting, base, slim, {name: getattr(quality, name) for name in LIVE})


def save(record: Record, path: Path) -> None:
    """Whole or not at all."""
    kept = {field.name: getattr(record.run, field.name) for field in fields(ArmRun)}
    del kept["predicted"], kept["true"]
    kept["evaluations"] = [asdict(evaluation) for evaluation in record.run.evaluations]
    content = {"setting": record.setting, "base": record.base, "run": kept, "live": dict(record.live)}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def load(path: Path) -> Record:
    """Inverse of ``save``. Raises ValueError, TypeError or KeyError when it is not such a file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    kept = dict(content["run"])
    kept["evaluations"] = tuple(Evaluation(**evaluation) for evaluation in kept["evaluations"])
    kept["effective_sample_size"] = tuple(kept["effective_sample_size"])
    return Record(
        content["setting"], content["base"], ArmRun(**kept, predicted=_NOTHING, true=_NOTHING), content["live"]
    )
