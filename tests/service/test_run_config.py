"""The configuration in effect: documented defaults of every preset, and explicit values that win over it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selector.v1 import run_pb2
from tests.difficulty.adapters import random_adapter
from tests.service.running import InProcessService

_DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
_PRESETS = ("DEFAULT", "PAPER", "UNIFORM")
_ROW = re.compile(r"^\| (`[^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)

# What the preset's description says of the control: uniform selection, no replay, nothing else in its way.
_UNIFORM = {
    "reference.mode": "NONE",
    "reference.fraction": 0.0,
    "score": "UNIFORM",
    "cool_down_steps": 0,
    "twin_similarity": 0.0,
    "replay.fresh_fraction": 1.0,
}
# Scores that use no score_temperature show 1.
_WITHOUT_TEMPERATURE = ("NEAR_TARGET", "UNIFORM")

# A value that no preset has, and what has to come with it so that it contradicts nothing.
_OVERRIDES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "group_size": (16, {}),
    "target_difficulty": (0.25, {}),
    "selection_temperature": (0.125, {}),
    "seed": (2**40, {}),
    "outcome_range": ([-1.0, 3.0], {}),
    "clip_outcomes": (True, {}),
    "on_nan": ("DROP_ROLLOUT", {}),
    "reference.mode": ("NONE", {}),
    "reference.size": (64, {}),
    "reference.every_steps": (5, {"reference.mode": "DEDICATED"}),
    "reference.fraction": (0.25, {"reference.mode": "IN_BATCH"}),
    "estimator.name": ("TRACKER", {}),
    "estimator.adapter": ("trained", {"estimator.name": "ATTENTION"}),
    "estimator.tracker_decay": (0.5, {"estimator.name": "TRACKER"}),
    "estimator.embedding_components": (4, {"estimator.name": "FUSED"}),
    "estimator.shortlist": (64, {"estimator.name": "ATTENTION"}),
    "twin_similarity": (0.75, {}),
    "score": ("INFORMATIVE", {}),
    "score_temperature": (0.75, {"score": "LEARNABLE"}),
    "score_evaluation": ("THOMPSON", {}),
    "cool_down_steps": (3, {}),
    "strict_cool_down": (True, {"cool_down_steps": 2}),
    "replay.fresh_fraction": (0.75, {}),
    "replay.capacity_groups": (64, {}),
    "replay.capacity_bytes": (2**40, {}),
    "replay.max_age_steps": (4, {}),
    "replay.max_uses": (3, {}),
    "replay.min_effective_sample_size": (0.5, {}),
    "replay.informative_only": (False, {}),
    "replay.newest_per_prompt": (False, {}),
    "sampling.temperature": (0.5, {"sampling.log_prob_mode": "RAW"}),
    "sampling.top_p": (0.75, {"sampling.log_prob_mode": "RAW"}),
    "sampling.top_k": (50, {"sampling.log_prob_mode": "RAW"}),
    "sampling.log_prob_mode": ("PROCESSED", {}),
    "lease_steps": (3, {}),
    "max_unselected_steps": (64, {}),
    "review_fraction": (0.25, {}),
    "max_prompt_tokens": (4096, {}),
}


# Values that follow from another field unless they are given themselves.
_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "score": ("score_temperature",),
    "reference.mode": ("reference.fraction",),
}

InEffect = Callable[[Mapping[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def in_effect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InEffect]:
    """Path -> value of the configuration that a run gets, as GetRun shows it; of a service that knows an adapter."""
    adapter = tmp_path_factory.mktemp("adapter") / "adapter.safetensors"
    random_adapter(0, width=4, hidden=4).save(adapter)
    service = InProcessService(tmp_path_factory.mktemp("state"), adapters={"trained": adapter})
    seen: dict[str, dict[str, Any]] = {}

    def created(config: Mapping[str, Any]) -> dict[str, Any]:
        key = json.dumps(config, sort_keys=True)
        if key not in seen:
            client = service.client(f"run-{len(seen)}")
            client.create_run(config)
            seen[key] = _flat(client.get_run().config)
            client.close()
        return dict(seen[key])

    yield created
    service.close()


def _flat(message: Any, prefix: str = "") -> dict[str, Any]:
    """Every field that is set by its path; enum names without their prefix."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if field.message_type is not None:
            found |= _flat(value, f"{path}.")
        elif field.enum_type is not None:
            prefix_length = len(field.enum_type.values[0].name.removesuffix("UNSPECIFIED"))
            found[path] = field.enum_type.values_by_number[value].name[prefix_length:]
        else:
            found[path] = list(value) if path == "outcome_range" else value
    return found


def _paths(descriptor: Any, prefix: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        if field.message_type is not None:
            yield from _paths(field.message_type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        section = result
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return result


def _documented() -> dict[str, list[Any]]:
    """Field -> documented values, of DEFAULT and where it differs of PAPER; of the table under "Fields"."""
    table = _DOCUMENT.read_text(encoding="utf-8").partition("## Fields")[2]
    found: dict[str, list[Any]] = {}
    for names, values in _ROW.findall(table):
        for name in re.findall(r"`([a-z_.]+)`", names):
            found[name] = [_value(text.strip().strip("`")) for text in values.split(" / ")]
    return found


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": "", "unset": None, "[0, 1]": [0.0, 1.0]}
    if text in words:
        return words[text]
    return text if text[0].isalpha() else float(text)


def test_every_field_is_documented_and_every_documented_field_exists() -> None:
    assert set(_documented()) | {"preset"} == set(_paths(run_pb2.RunConfig.DESCRIPTOR))


@pytest.mark.parametrize("preset", _PRESETS)
def test_defaults_are_the_documented_ones(in_effect: InEffect, preset: str) -> None:
    expected = {path: values[-1 if preset == "PAPER" else 0] for path, values in _documented().items()}
    if preset == "UNIFORM":
        expected |= _UNIFORM
    if expected["score"] in _WITHOUT_TEMPERATURE:
        expected["score_temperature"] = 1.0
    found = in_effect({"preset": preset})
    assert found.pop("preset") == preset
    # An empty string and a field that is not set look alike.
    assert found == {path: value for path, value in expected.items() if value not in ("", None)}


def test_no_preset_is_the_default(in_effect: InEffect) -> None:
    assert in_effect({}) == in_effect({"preset": "DEFAULT"})


@pytest.mark.parametrize("path", _OVERRIDES)
def test_an_explicit_value_wins_over_every_preset(in_effect: InEffect, path: str) -> None:
    value, company = _OVERRIDES[path]
    before = set()
    for preset in _PRESETS:
        usual = in_effect({"preset": preset, **_nested(company)})
        found = in_effect({"preset": preset, **_nested({**company, path: value})})
        assert found[path] == value
        changed = {name for name in found if found[name] != usual.get(name)}
        assert changed <= {path, *_FOLLOWS.get(path, ())}, "nothing else moves"
        before.add(str(usual.get(path)))
    assert before != {str(value)}, "every preset has it anyway"


def test_every_field_can_be_overridden() -> None:
    assert set(_OVERRIDES) | {"preset"} == set(_paths(run_pb2.RunConfig.DESCRIPTOR))


def test_the_temperature_follows_the_score(in_effect: InEffect) -> None:
    """Documented: 0.5 of LEARNABLE, 0.25 of INFORMATIVE, whatever the preset's own score is."""
    for preset in _PRESETS:
        for score, temperature in (("LEARNABLE", 0.5), ("INFORMATIVE", 0.25)):
            assert in_effect({"preset": preset, "score": score})["score_temperature"] == temperature


def test_in_batch_references_take_an_eighth_whatever_the_preset(in_effect: InEffect) -> None:
    for preset in _PRESETS:
        found = in_effect({"preset": preset, "reference": {"mode": "IN_BATCH"}})
        assert found["reference.fraction"] == 0.125


_TINY = 5e-324
_MOST = 2**31 - 1

_EXTREMES: Mapping[str, dict[str, Any]] = {
    "near-target-cold": {"score": "NEAR_TARGET", "selection_temperature": 1e-9},
    "near-target-hot": {"score": "NEAR_TARGET", "selection_temperature": 1.7e308},
    "learnable-cold": {"score_temperature": 1e-9},
    "learnable-hot": {"score_temperature": 1.7e308},
    "informative-cold": {"score": "INFORMATIVE", "score_temperature": 1e-9, "group_size": 4096},
    "informative-of-one": {"score": "INFORMATIVE", "group_size": 1},
    "thompson-cold": {"score_evaluation": "THOMPSON", "score_temperature": 1e-9},
    "largest-seed": {"seed": 2**63 - 1},
    "widest-outcomes": {"outcome_range": [-8e307, 8e307]},
    "narrowest-outcomes": {"outcome_range": [0.0, _TINY]},
    "forgets-at-once": {"estimator": {"name": "TRACKER", "tracker_decay": _TINY}},
    "most-components": {"estimator": {"embedding_components": 256}},
    "no-components": {"estimator": {"embedding_components": 0}},
    "all-uniform": {"reference": {"fraction": 1.0}},
    "all-review": {"review_fraction": 1.0, "max_unselected_steps": 1},
    "never-again": {"cool_down_steps": _MOST, "strict_cool_down": True, "lease_steps": _MOST},
    "one-long-pass": {"preset": "PAPER", "reference": {"size": 1_000_000, "every_steps": _MOST}},
    "all-replay": {"replay": {"fresh_fraction": _TINY, "capacity_bytes": 1, "capacity_groups": 1}},
}


@pytest.mark.parametrize("config", _EXTREMES.values(), ids=_EXTREMES)
def test_accepted_extremes_select_and_predict(service: InProcessService, config: dict[str, Any]) -> None:
    """Whatever is not refused works, up to the largest step and for certain priors too."""
    client = service.client(f"extreme-{list(_EXTREMES.values()).index(config)}")
    client.create_run(config)
    ids = [f"p{i}" for i in range(30)]
    embeddings = np.random.default_rng(0).normal(size=(30, 4))
    client.register_prompts(ids, embeddings=embeddings, priors=[(1.0, _MOST), (0.0, 1), None] * 10)
    low, high = config.get("outcome_range", (0.0, 1.0))
    for step in (0, 1, 2**53 - 2, 2**53 - 1):
        batch = client.select_batch(step, 6)
        assert len(batch) == 6
        assert np.isfinite([batch.predicted_difficulties, batch.standard_errors]).all()
        assert ((batch.probabilities > 0) & (batch.probabilities <= 1)).all()
        client.report_outcomes(step, {prompt_id: [low, high, low] for prompt_id in batch.prompt_ids})
    predictions = client.predict_difficulty()
    assert ((predictions.predicted_difficulties > 0) & (predictions.predicted_difficulties < 1)).all()
    assert (predictions.standard_errors > 0).all()
    client.rewind(1)
    assert client.get_run().last_step == 0
