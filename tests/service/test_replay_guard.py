"""The guard of replay: less of it while what is replayed is too stale to learn from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clients import SelectorClient
from tests.service.running import InProcessService
from tests.service.trainer import group_of, prompts, scraped

BATCH = 8


def _prepared(service: InProcessService, **replay: object) -> SelectorClient:
    """A run with enough in its buffer to fill half of every batch."""
    client = service.client("guarded")
    client.create_run(
        {"replay": {"fresh_fraction": 0.5, "max_age_steps": 0, **replay}, "cool_down_steps": 0, "lease_steps": 0}
    )
    client.register_prompts(prompts(32))
    client.push_rollouts(0, [group_of(f"p{number:03}", 0) for number in range(BATCH)])
    return client


def _replayed(client: SelectorClient, step: int) -> int:
    selection = client.select_batch(step, BATCH)
    assert len(selection.prompt_ids) + selection.replay_groups == BATCH
    return selection.replay_groups


def test_stale_rows_halve_the_share_and_it_comes_back_step_by_step(own_service: InProcessService) -> None:
    client = _prepared(own_service, min_effective_sample_size=0.5)
    shares = [_replayed(client, 1)]
    for step, size in enumerate([0.5, 0.3, 0.49, 0.0, 0.1], start=1):
        client.report_training(step, effective_sample_size=size)
        shares.append(_replayed(client, step + 1))
    # A single group is left, by which it is seen when things are better.
    assert shares == [4, 4, 2, 1, 1, 1]

    own_service.restart()
    client = own_service.client("guarded")
    for step in range(6, 21):
        client.report_training(step, effective_sample_size=0.9)
        shares.append(_replayed(client, step + 1))
    assert shares[6:] == sorted(shares[6:]) and shares[-8] == 2 and shares[-2:] == [3, 4]


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(lambda client: client.report_training(1, effective_sample_size=0.4), id="the same step again"),
        pytest.param(lambda client: client.report_training(0, effective_sample_size=0.4), id="an earlier step"),
        pytest.param(lambda client: client.report_training(2, clip_fraction=0.4), id="another figure"),
    ],
)
def test_a_step_counts_once(own_service: InProcessService, report: Callable[[SelectorClient], object]) -> None:
    client = _prepared(own_service, min_effective_sample_size=0.5)
    client.report_training(1, effective_sample_size=0.4)
    report(client)
    assert _replayed(client, 3) == 2


def test_without_a_guard_nothing_is_halved(own_service: InProcessService) -> None:
    client = _prepared(own_service)
    client.report_training(1, effective_sample_size=0.01)
    assert _replayed(client, 2) == 4


def test_the_guard_shows_in_the_metrics(tmp_path: Path) -> None:
    service = InProcessService(tmp_path / "state", metrics_listen="127.0.0.1:0")
    client = _prepared(service, min_effective_sample_size=0.5)
    assert scraped(service.metrics_address, "guarded")["selector_replay_allowed_ratio", ""] == 1
    client.report_training(1, effective_sample_size=0.2)
    assert scraped(service.metrics_address, "guarded")["selector_replay_allowed_ratio", ""] == 0.5
    service.close()
