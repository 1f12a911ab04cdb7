"""The real service trains a run, a real Prometheus scrapes it, and PromQL agrees with the service's own figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clients import InvalidArgument, RolloutGroup, SelectorClient
from tests.quality.prometheus_server import StartPrometheus, prometheus
from tests.service.running import InProcessService

__all__ = ["prometheus"]

pytestmark = pytest.mark.slow

STEPS, BATCH, GROUP_SIZE = 12, 16, 8


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path / "state", metrics_listen="127.0.0.1:0")
    yield running
    running.close()


def train(client: SelectorClient) -> None:
    """A run whose prompts have fixed success rates; replay from the second step on."""
    rng = np.random.default_rng(3)
    rates = {f"p{i}": rate for i, rate in enumerate(rng.uniform(size=100))}
    client.create_run({"group_size": GROUP_SIZE})
    client.register_prompts(list(rates), embeddings=rng.normal(size=(100, 8)))
    for step in range(STEPS):
        selection = client.select_batch(step, BATCH)
        outcomes = {p: rng.binomial(1, rates[p], GROUP_SIZE).astype(float).tolist() for p in selection.prompt_ids}
        client.report_outcomes(step, outcomes)
        client.sample_rollouts(step, selection.replay_groups) if selection.replay_groups else []
        client.push_rollouts(step, [group(p, step, o) for p, o in outcomes.items()])
        client.report_training(step, effective_sample_size=0.75, max_importance_weight=2.5, clip_fraction=0.01)


def group(prompt_id: str, step: int, outcomes: list[float]) -> RolloutGroup:
    return RolloutGroup.from_arrays(
        prompt_id=prompt_id,
        policy_version=step,
        prompt_token_ids=np.arange(3),
        response_token_ids=[np.arange(4)] * len(outcomes),
        behavior_log_probs=[np.full(4, -0.5)] * len(outcomes),
        rewards=outcomes,
        outcomes=outcomes,
    )


def test_prometheus_sees_what_the_service_says(service: InProcessService, prometheus: StartPrometheus) -> None:
    client = service.client("watched")
    train(client)
    with pytest.raises(InvalidArgument):
        client.report_outcomes(STEPS, {"no such prompt": [1.0]})
    server = prometheus([service.metrics_address])
    server.wait_for(f'selector_last_step{{run="watched"}} == {STEPS - 1}')
    quality = client.quality()

    def value(query: str) -> float:
        ((_, answer),) = server.query(query)
        return answer

    assert value('selector_rpc_total{method="SelectBatch",code="OK"}') == STEPS
    assert value('selector_rpc_total{method="ReportOutcomes",code="INVALID_ARGUMENT"}') == 1
    assert value('sum(selector_groups_total{run="watched"})') == quality.generated_groups
    ratio = 'sum(selector_informative_groups_total{run="watched"}) / sum(selector_groups_total{run="watched"})'
    assert quality.informative_per_generated is not None
    assert value(ratio) == pytest.approx(quality.informative_per_generated)
    assert value('selector_replay_groups{run="watched"}') == quality.replay_groups > 0
    assert value('selector_replay_effective_sample_size_ratio{run="watched"}') == 0.75
    assert value('selector_pool_coverage_ratio{run="watched"}') == pytest.approx(quality.coverage)
    arms = {labels["arm"] for labels, count in server.query('selector_groups_total{run="watched"}') if count}
    assert arms == {"targeted", "uniform"}
    assert server.query('{__name__=~"selector_.+",prompt_id!=""}') == []
