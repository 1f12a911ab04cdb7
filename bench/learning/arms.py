"""The arms: what is compared. All but the oracles choose through the service."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from selector.testbed.arms import DEFAULT, ORACLE, UNIFORM, Arm

ARMS: tuple[Arm, ...] = (
    UNIFORM,
    Arm(
        "uniform-twice",
        "Uniform, every fresh batch gone through twice: as many updates as with half of a batch replayed, and the "
        "control for replay.",
        UNIFORM.config,
        epochs=2,
    ),
    Arm(
        "refill",
        "Uniform, groups without contrast are dropped and others rolled out until the batch is full, in at most ten "
        "rounds (dynamic sampling of DAPO, arXiv 2503.14476).",
        UNIFORM.config,
        refill=True,
    ),
    Arm(
        "beta",
        "One Beta posterior per prompt from its own discounted outcomes, Thompson sampling, success nearest to 0.5 "
        "(MoPPS, arXiv 2507.04632).",
        {
            "preset": "UNIFORM",
            "estimator": {"name": "TRACKER"},
            "score": "INFORMATIVE",
            "score_temperature": 1e-6,
            "score_evaluation": "THOMPSON",
        },
    ),
    Arm(
        "dots",
        "The paper's selection without replay: attention over 256 reference prompts, rolled out every 2 steps, "
        "predicted difficulty nearest to 0.5 (arXiv 2506.05316). A general encoder, no trained adapter.",
        {"preset": "PAPER"},
    ),
    Arm(
        "rr",
        "The paper's replay alone: uniform selection, half of a batch from the 512 newest informative groups.",
        {"preset": "UNIFORM", "replay": {"fresh_fraction": 0.5, "capacity_groups": 512, "max_age_steps": 0}},
        replay=True,
    ),
    Arm(
        "uniform-replay",
        "Uniform selection with the default's replay.",
        {"preset": "UNIFORM", "replay": {"fresh_fraction": 0.5}},
        replay=True,
    ),
    Arm("dots-rr", "The paper's selection and replay together, with its settings.", {"preset": "PAPER"}, replay=True),
    Arm("selection", "The default's selection without replay."),
    Arm(
        "selection-small",
        "The same in batches of half the size: the control for the default's replay, with as many fresh rollouts and "
        "updates in a step.",
        batch_share=0.5,
    ),
    DEFAULT,
    ORACLE,
    Arm("oracle-informative", "As oracle, by the chance of contrast in a group.", ORACLE.config, oracle="INFORMATIVE"),
    Arm("oracle-near-target", "As oracle, by distance from difficulty 0.5.", ORACLE.config, oracle="NEAR_TARGET"),
)
ARM_OF: Mapping[str, Arm] = MappingProxyType({arm.name: arm for arm in ARMS})
