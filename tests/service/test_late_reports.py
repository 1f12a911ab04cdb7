"""Which selection a report belongs to when leases expire, reports are late, or selection runs ahead of the policy."""

from __future__ import annotations

import numpy as np

from clients import SelectorClient
from tests.service.running import InProcessService


def one_prompt(service: InProcessService, run_id: str, **config: object) -> SelectorClient:
    client = service.client(run_id)
    client.create_run({"cool_down_steps": 0, "lease_steps": 2, **config})
    client.register_prompts(["a"], embeddings=np.ones((1, 4)))
    return client


def arms_by_step(client: SelectorClient) -> dict[int, str | None]:
    return {record.step: record.arm for record in client.explain("a").outcomes}


def test_a_late_report_neither_frees_nor_takes_the_newer_selection(service: InProcessService) -> None:
    client = one_prompt(service, "late", reference={"fraction": 1.0})
    assert client.select_batch(0, 1).arms == ("UNIFORM",)
    assert client.select_batch(5, 1, fresh_only=True).prompt_ids == ("a",)
    first, second = client.explain("a").selections
    client.report_outcomes(0, {"a": [1.0, 0.0]})
    assert client.select_batch(6, 1).shortfall_reason == "LEASED", "selected at step 5 and still out"
    client.report_outcomes(5, {"a": [1.0, 1.0]})
    early, late = client.explain("a").outcomes
    assert early.predicted_difficulty == first.predicted_difficulty
    assert late.predicted_difficulty == second.predicted_difficulty
    assert client.select_batch(7, 1).prompt_ids == ("a",)


def test_selection_may_run_ahead_of_the_policy(service: InProcessService) -> None:
    """Selected at steps 3 and 10, rolled out by the policies of steps 1 and 8."""
    client = one_prompt(service, "ahead", reference={"fraction": 1.0})
    client.select_batch(3, 1)
    client.select_batch(10, 1)
    first, second = client.explain("a").selections
    client.report_outcomes(8, {"a": [0.0]})
    client.report_outcomes(1, {"a": [1.0]})
    predicted = {record.step: record.predicted_difficulty for record in client.explain("a").outcomes}
    assert predicted == {8: second.predicted_difficulty, 1: first.predicted_difficulty}
    assert client.get_run().pool.leased == 0


def test_parts_of_one_group_belong_together_and_strangers_to_no_arm(service: InProcessService) -> None:
    client = one_prompt(service, "parts")
    client.report_outcomes(0, {"a": [1.0]})
    assert arms_by_step(client) == {0: None}
    (selected,) = client.select_batch(1, 1).arms
    client.report_outcomes(1, {"a": [1.0]})
    client.report_outcomes(1, {"a": [0.0]})
    assert [record.arm for record in client.explain("a").outcomes] == [None, selected, selected]
    (arm,) = (arm for arm in client.quality().arms if arm.arm == selected)
    assert (arm.groups, arm.informative_groups) == (1, 1)
    client.report_outcomes(2, {"a": [0.0]})
    assert arms_by_step(client)[2] is None


def test_a_reference_report_leaves_the_training_lease_alone(service: InProcessService) -> None:
    client = one_prompt(service, "purposes")
    client.select_batch(0, 1)
    client.report_outcomes(0, {"a": [1.0]}, purpose="reference")
    assert client.select_batch(1, 1).shortfall_reason == "LEASED"


def test_a_prompt_drawn_twice_in_a_step_is_free_once_both_are_reported(service: InProcessService) -> None:
    """Only references can be: a further round of a training step is for other prompts."""
    client = one_prompt(service, "twice", reference={"mode": "DEDICATED", "size": 1, "every_steps": 1})
    for round_ in range(2):
        assert client.select_batch(0, 1, purpose="reference", round=round_).prompt_ids == ("a",)
        assert client.get_run().pool.leased == 1
        client.report_outcomes(0, {"a": [1.0, float(round_)]}, purpose="reference")
        assert client.get_run().pool.leased == 0
    assert client.get_run().outcome_groups == 2
