"""Reward 1 for a response that begins with the prompt's first digit; a shaped reward beside it where it ends."""

from __future__ import annotations

from typing import Any

import torch


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """As OpenRLHF's documentation has it; the label is the digit."""
    # The tokenizer decodes with spaces.
    response = queries[0].replace(" ", "")[len(prompts[0]) :]
    if labels[0] == "unscorable":
        raise ValueError("a reward function that fails")
    if labels[0].startswith("listed"):
        # As OpenRLHF's reward server answers.
        score = float(response[:1] == labels[0][-1])
        logs = {"length": torch.tensor([float(len(response))]), "none": torch.tensor([float("nan")])}
        return {"rewards": [score], "scores": [score], "extra_logs": logs}
    score = float(response[:1] == labels[0])
    shaped = score + 0.25 * response.endswith("<eos>")
    return {
        "rewards": torch.tensor([shaped]),
        "scores": torch.tensor([float("nan") if labels[0] == "unknown" else score]),
        "extra_logs": {"length": torch.tensor([float(len(response))]), "none": torch.tensor([float("nan")])},
    }
