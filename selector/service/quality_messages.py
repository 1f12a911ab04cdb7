"""Selection quality as a message."""

from __future__ import annotations

from selector.run_metrics import RunMetrics
from selector.v1 import selector_service_pb2 as pb


def quality_message(metrics: RunMetrics) -> pb.GetSelectionQualityResponse:
    """The figures of the metrics endpoint; what is undefined stays unset."""
    quality = metrics.quality
    answer = pb.GetSelectionQualityResponse(
        window_groups=quality.window_groups,
        coverage=metrics.coverage or 0.0,
        max_steps_since_selected=metrics.max_steps_since_selected,
        starved_prompts=metrics.starved_prompts,
        estimate_age_steps=metrics.estimate_age_steps,
        degraded_selections=metrics.degraded_selections,
        generated_groups=quality.totals.generated_groups,
        replay_groups=metrics.replay.groups,
        replay_bytes=metrics.replay.bytes,
        pearson=quality.pearson,
        mean_absolute_error=quality.mean_absolute_error,
        mean_absolute_error_of_mean=quality.mean_absolute_error_of_mean,
        brier=quality.brier,
        calibration_slope=quality.calibration_slope,
        expected_calibration_error=quality.expected_calibration_error,
        in_band_share=quality.in_band_share,
        population_success_rate=quality.population_success_rate,
        informative_per_generated=quality.totals.informative_per_generated,
        effective_sample_size=metrics.effective_sample_size,
        max_importance_weight=metrics.max_importance_weight,
        clip_fraction=metrics.clip_fraction,
        largest_domain_share=metrics.largest_domain_share,
        twin_prompts=metrics.twin_prompts,
    )
    for arm in quality.arms:
        if arm.groups:
            answer.arms.add(
                arm=arm.arm,
                reference=arm.reference,
                groups=arm.groups,
                informative_groups=arm.informative_groups,
                informative_ratio=arm.informative_ratio or 0.0,
                mean_predicted_difficulty=arm.mean_predicted_difficulty,
                mean_difficulty=arm.mean_difficulty or 0.0,
                mean_absolute_error=arm.mean_absolute_error,
            )
    return answer
