"""What goes into replay and comes out of it: payloads, sampling settings, log-probs, ages, order and waiting."""

from __future__ import annotations

import hashlib
import math
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import DeadlineExceeded, FailedPrecondition, InvalidArgument, RolloutGroup, Sample, SelectorClient
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import group_of, noise, prompts, scraped


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path_factory.mktemp("state"), metrics_listen="127.0.0.1:0")
    yield running
    running.close()


def _run(
    service: InProcessService, run_id: str, replay: dict[str, object] | None = None, **config: object
) -> SelectorClient:
    client = service.client(run_id)
    client.create_run({"replay": replay or {}, **config})
    client.register_prompts(prompts(12))
    return client


def _payload(group: RolloutGroup) -> bytes:
    """The group as pushed, but for the id that the service gave it."""
    message = group.to_proto()
    message.ClearField("group_id")
    return message.SerializeToString(deterministic=True)


def test_what_was_pushed_is_there_in_a_new_process(tmp_path: Path) -> None:
    """Six groups are acknowledged by one process, and another returns all six, byte for byte."""
    groups = [group_of(prompt_id, 2) for prompt_id in prompts(6)]
    here = InProcessService(tmp_path)
    client = here.client("durable")
    client.create_run()
    client.register_prompts(prompts(6))
    assert client.push_rollouts(2, groups).stored == 6
    here.close()
    there = ServiceProcess(tmp_path)
    try:
        with there.client("durable") as client:
            sample = client.sample_rollouts(3, 6)
            assert (sample.shortfall, sample.eligible_groups) == (0, 6)
            assert sorted(map(_payload, sample)) == sorted(map(_payload, groups))
    finally:
        there.terminate()


def test_log_probs_of_other_sampling_settings_are_refused(service: InProcessService) -> None:
    """Raw log-probs at temperature 0.6, pushed into a run that expects processed ones at 1.0: both are named."""
    stated = {"temperature": 1.0, "top_p": 1.0, "log_prob_mode": "PROCESSED"}
    client = _run(service, "settings", sampling=stated)
    other = {"temperature": 0.6, "top_p": 1.0, "log_prob_mode": "RAW"}
    with pytest.raises(FailedPrecondition) as refused:
        client.push_rollouts(0, [group_of("p000", 0, sampling=stated), group_of("p001", 0, sampling=other)])
    assert refused.value.reason == "SAMPLING_DIFFERS"
    assert all(word in str(refused.value) for word in ("0.6", "RAW", "PROCESSED", "p001"))
    for unset in (None, {}, {"temperature": 1.0, "top_p": 1.0}):
        with pytest.raises(FailedPrecondition):
            client.push_rollouts(0, [group_of("p000", 0, sampling=unset)])
    assert client.get_run().replay_groups == 0
    assert client.push_rollouts(0, [group_of("p000", 0, sampling=stated)]).stored == 1
    # A run that states nothing takes anything, and says so once.
    silent = service.client("settings-unstated")
    assert any("sampling" in warning for warning in silent.create_run().warnings)
    silent.register_prompts(prompts(2))
    assert silent.push_rollouts(0, [group_of("p000", 0, sampling=other), group_of("p001", 0)]).stored == 2


@pytest.mark.parametrize("bad", [math.nan, 0.25, math.inf, -math.inf])
def test_a_log_prob_that_cannot_be_one_refuses_its_group(service: InProcessService, bad: float) -> None:
    """NaN, infinite and positive log-probs are refused with group and token; 0.0, a certain token, is legal."""
    client = _run(service, f"log-prob-{bad}")
    certain = group_of("p000", 0, behavior_log_probs=[[0.0], [0.0, -0.5]])
    wrong = group_of("p001", 0, behavior_log_probs=[[-0.5], [-0.5, bad]])
    with pytest.raises(InvalidArgument) as refused:
        client.push_rollouts(0, [certain, wrong])
    assert refused.value.reason == "INVALID_LOG_PROB"
    assert "behavior_log_probs[2]" in refused.value.violations[0].field
    assert "p001" in str(refused.value) and "rollout 1, token 1" in str(refused.value)
    assert client.get_run().replay_groups == 0
    answer = client.push_rollouts(0, [certain, wrong], skip_refused=True)
    assert answer.stored == 1
    assert [(r.index, r.prompt_id, r.reason) for r in answer.refused] == [(1, "p001", "INVALID_LOG_PROB")]
    refusals = scraped(service.metrics_address, f"log-prob-{bad}")
    assert refusals["selector_replay_refusals_total", "INVALID_LOG_PROB"] >= 1


def test_a_group_comes_back_byte_for_byte(service: InProcessService) -> None:
    """Log-probs, ids, masks, statuses and further columns of any type come back unchanged, and so does their order."""
    client = _run(service, "bytes")
    random = noise("bytes")
    lengths = [5, 1, 300]
    # Ordinary, subnormal and tiny float32.
    scales = np.array([-1.0, -1e-42, -1e-7], dtype=np.float32)
    pushed = group_of(
        "p000",
        7,
        [1.0, 0.0, 0.0],
        group_id="a group of my own",
        rewards=[0.25, -1e-300, 3.0],
        response_token_ids=[random.integers(0, 2**31, n) for n in lengths],
        behavior_log_probs=[
            scale * random.random(n, dtype=np.float32) for scale, n in zip(scales, lengths, strict=True)
        ],
        loss_masks=[random.integers(0, 2, n) for n in lengths],
        statuses=["COMPLETED", "TRUNCATED", "UNSCORABLE"],
        columns={
            "routed_experts": [random.integers(0, 128, (n, 4, 2)).astype(np.uint8) for n in lengths],
            "position_ids": [np.arange(n, dtype=np.int64) for n in lengths],
            "values": random.normal(size=(3, 2)).astype(np.float16),
            "opaque": [b"", b"\x00\xff", b"abc"],
        },
    )
    client.push_rollouts(9, [pushed])
    (back,) = client.sample_rollouts(10, 1)
    assert back.to_proto().SerializeToString(deterministic=True) == pushed.to_proto().SerializeToString(
        deterministic=True
    )
    assert (back.age_steps, back.times_sampled, back.probability) == (3, 1, 1.0)
    assert back.column("opaque", 1) == b"\x00\xff"
    np.testing.assert_array_equal(back.column("routed_experts", 2), pushed.column("routed_experts", 2))


def test_a_sample_has_different_groups_and_never_mixes_their_columns(service: InProcessService) -> None:
    """Three of three are three different ones; a checksum over all columns of each group still holds."""
    client = _run(service, "checksums")

    def checksum(group: RolloutGroup) -> int:
        parts = (group.prompt_token_ids, group.response_token_ids, group.behavior_log_probs, group.rewards)
        return zlib.crc32(b"".join([group.prompt_id.encode(), *(part.tobytes() for part in parts)]))

    groups = []
    for i, prompt_id in enumerate(prompts(3)):
        bare = group_of(prompt_id, i, [1.0, 0.0, float(i % 2)])
        groups.append(
            group_of(prompt_id, i, [1.0, 0.0, float(i % 2)], columns={"checksum": np.array([checksum(bare)])})
        )
    client.push_rollouts(2, groups)
    for step in range(3, 8):
        sample = client.sample_rollouts(step, 3)
        assert {group.prompt_id for group in sample} == set(prompts(3))
        assert all(checksum(group) == group.column("checksum")[0] for group in sample)


def test_groups_beyond_the_largest_age_are_never_returned(service: InProcessService) -> None:
    """With max_age_steps 4, age 4 is returned and age 5 is gone; ages show in the metrics."""
    client = _run(service, "ages", {"max_age_steps": 4})
    client.push_rollouts(10, [group_of("p000", 10)])
    client.push_rollouts(11, [group_of("p001", 11)])
    assert sorted(group.age_steps or 0 for group in client.sample_rollouts(14, 2)) == [3, 4]
    figures = scraped(service.metrics_address, "ages")
    assert figures["selector_replay_age_steps_bucket", "2.0"] == 0
    assert figures["selector_replay_age_steps_bucket", "4.0"] == 2
    sample = client.sample_rollouts(15, 2)
    assert [group.prompt_id for group in sample] == ["p001"]
    assert (sample.shortfall, sample.shortfall_reason) == (1, "BUFFER_TOO_SMALL")
    figures = scraped(service.metrics_address, "ages")
    assert figures["selector_replay_groups", ""] == 1
    assert figures["selector_replay_evictions_total", "age"] == 1
    assert len(client.sample_rollouts(16, 2)) == 0
    # Too old on arrival is said so, not silently dropped.
    late = client.push_rollouts(17, [group_of("p002", 12)])
    assert (late.stored, late.outdated) == (0, 1)


def test_the_latest_mixed_groups_are_one_call(service: InProcessService) -> None:
    """Asking for the newest groups whose outcomes differ gives exactly those, newest first."""
    client = _run(service, "latest", {"informative_only": False})
    mixed = [0, 1, 3, 4, 6]
    for version, prompt_id in enumerate(prompts(8)):
        client.push_rollouts(version, [group_of(prompt_id, version, [1.0, 0.0] if version in mixed else [1.0, 1.0])])
    sample = client.sample_rollouts(8, 3, order="newest", informative_only=True)
    assert [group.policy_version for group in sample] == [6, 4, 3]
    assert sample.eligible_groups == 5


def test_payload_by_reference_is_kept_and_never_loaded(service: InProcessService) -> None:
    """Images are given as URI, digest and size; the service returns them as they are, whether they exist or not."""
    client = _run(service, "multimodal")
    uris = [b"file:///nowhere/image-1.png", b"s3://bucket/image-2.png"]
    digests = [hashlib.sha256(uri).digest() for uri in uris]
    columns = {"image_uri": uris, "image_sha256": digests, "image_bytes": [np.array([2**40]), np.array([7])]}
    client.push_rollouts(0, [group_of("p000", 0, columns=columns)])
    (back,) = client.sample_rollouts(0, 1)
    assert [back.column("image_uri", i) for i in range(2)] == uris
    assert [back.column("image_sha256", i) for i in range(2)] == digests
    assert [back.column("image_bytes", i)[0] for i in range(2)] == [2**40, 7]
    assert client.get_run().replay_bytes < 2000


def test_turns_and_tool_tokens_keep_their_spans(service: InProcessService) -> None:
    """Tokens a tool wrote are masked: their log-probs may be anything, and the spans of all turns come back."""
    client = _run(service, "turns")
    masks = [[1, 1, 0, 0, 0, 1], [1, 0, 1]]
    log_probs = [[-0.1, -0.2, math.nan, 3.0, math.inf, -0.3], [-0.4, -math.inf, 0.0]]
    tokens = [list(range(6)), [9, 8, 7]]
    turns = {"turns": [np.array([[0, 2], [2, 5], [5, 6]]), np.array([[0, 1], [1, 2], [2, 3]])]}
    fields: dict[str, Any] = {"response_token_ids": tokens, "behavior_log_probs": log_probs, "columns": turns}
    assert client.push_rollouts(0, [group_of("p000", 0, loss_masks=masks, **fields)]).stored == 1
    (back,) = client.sample_rollouts(0, 1)
    for i in range(2):
        assert back.mask(i).tolist() == masks[i] and back.response(i).tolist() == tokens[i]
        assert back.log_probs(i).tobytes() == np.array(log_probs[i], dtype="<f4").tobytes()
        assert np.asarray(back.column("turns", i)).tolist() == turns["turns"][i].tolist()
    # The same without the mask: those tokens would be trained on.
    with pytest.raises(InvalidArgument, match="behavior_log_probs"):
        client.push_rollouts(0, [group_of("p001", 0, **fields)])
    message = group_of("p001", 0, loss_masks=masks, **fields).to_proto()
    message.loss_mask = message.loss_mask[:-1]
    with pytest.raises(InvalidArgument, match="loss_mask"):
        client.push_rollouts(0, [_Message(message)])  # type: ignore[list-item]


class _Message:
    """A group as a message that no client would make."""

    def __init__(self, message: object) -> None:
        self._message = message

    def write_to(self, target: object) -> None:
        target.CopyFrom(self._message)  # type: ignore[attr-defined]

    @property
    def nbytes(self) -> int:
        return 0


def test_a_buffer_that_is_sampled_faster_than_filled_answers_at_once(service: InProcessService) -> None:
    """Fewer groups than asked come with the shortfall; an empty answer is not remembered."""
    client = _run(service, "starved")
    empty = client.sample_rollouts(0, 4)
    assert (len(empty), empty.shortfall, empty.shortfall_reason) == (0, 4, "BUFFER_TOO_SMALL")
    client.push_rollouts(0, [group_of("p000", 0), group_of("p001", 0)])
    some = client.sample_rollouts(0, 4)
    assert (len(some), some.shortfall, some.shortfall_reason) == (2, 2, "BUFFER_TOO_SMALL")


def test_a_wait_for_groups_consumes_nothing_until_there_are_enough(service: InProcessService) -> None:
    """A wait that ends with its deadline leaves uses and the step's sample untouched; a push ends a wait."""
    client = _run(service, "waiting", {"max_uses": 1})
    client.push_rollouts(0, [group_of("p000", 0)])
    with pytest.raises(DeadlineExceeded):
        client.sample_rollouts(1, 2, wait=True, timeout_s=0.3)
    assert client.get_run().replay_groups == 1
    answered: list[Sample] = []
    waiting = threading.Thread(target=lambda: answered.append(client.sample_rollouts(1, 2, wait=True, timeout_s=60)))
    waiting.start()
    client.push_rollouts(1, [group_of("p001", 1)])
    waiting.join(60)
    assert {group.prompt_id for group in answered[0]} == {"p000", "p001"}
    assert [group.times_sampled for group in answered[0]] == [1, 1]
    # Both have been used as often as they may be.
    assert client.get_run().replay_groups == 0
