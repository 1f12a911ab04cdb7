"""The files of real pass rates next to the repository: read as they are, and what is known of them is found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selector.evaluation.rates import ColumnNames, read_rates
from tests.evaluation.conftest import Evaluate

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"NOT CHECKED: there are no real pass rates in {DATA}"),
]


@pytest.mark.parametrize(
    ("name", "questions", "models", "trials"),
    [
        ("deepscaler_qwen25math7b", 17_195, 1, 128),
        ("gsm8k_routerdc_4models", 1_000, 4, 10),
        ("math_l5_zeroeval_half_models", 721, 22, 1),
        ("cruxeval_zeroeval_51models", 800, 51, 1),
        ("mmlupro_math_physics_half_models", 2_650, 13, 1),
        ("reasoning_gym_easy_10models", 4_947, 10, 3),
    ],
)
def test_files_are_read_without_any_option(name: str, questions: int, models: int, trials: int) -> None:
    table = read_rates(DATA / f"{name}.parquet", ColumnNames())
    assert len(table) == questions
    assert table.texts is not None and all(table.texts)
    assert len(table.models) == models
    for model in table.models.values():
        assert set(model.trials[model.known]) == {float(trials)}


def _pearson(evaluate: Evaluate, tmp_path: Path, name: str, *arguments: object) -> dict[str, float]:
    out = tmp_path / "out.json"
    result = evaluate("--data", DATA / f"{name}.parquet", "--json", out, *arguments)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return {row["row"]: row["mean"]["pearson"] for row in found["rows"]}


def test_length_and_surface_features_tell_difficulty_of_mathematics(evaluate: Evaluate, tmp_path: Path) -> None:
    found = _pearson(evaluate, tmp_path, "deepscaler_qwen25math7b", "--draws", 2)
    assert found["length only"] == pytest.approx(0.33, abs=0.04)
    assert found["surface features"] == pytest.approx(0.36, abs=0.04)
    assert found["fused"] > found["length only"] - 0.02


def test_other_models_tell_most(evaluate: Evaluate, tmp_path: Path) -> None:
    found = _pearson(evaluate, tmp_path, "gsm8k_routerdc_4models", "--prior-model", "others")
    assert found["prior only, recalibrated"] == pytest.approx(0.69, abs=0.03)
    assert found["fused, prior"] > 0.65
    assert found["length only"] < 0.3
