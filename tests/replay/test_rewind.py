"""A rewound run goes on exactly as if what was dropped had never happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from selector.config import ReplayConfig
from selector.replay import PushResult, ReplayRun, ReplayStore, RewindBeyondHistory, SampleDiffers, SampleRequest
from tests.replay.groups import Answer, checked, pushed, sampled

CONFIGS = {
    "capacity": ReplayConfig(capacity_groups=9),
    "bytes": ReplayConfig(capacity_bytes=2000),
    "newest": ReplayConfig(capacity_groups=100),
    "age": ReplayConfig(capacity_groups=30, max_age_steps=2),
    "uses": ReplayConfig(capacity_groups=12, max_uses=2),
    "all kept": ReplayConfig(capacity_groups=9, newest_per_prompt=False, max_uses=3, max_age_steps=4),
}


def train(run: ReplayRun, steps: range) -> list[tuple[Answer, PushResult]]:
    """What the trainer sees over some steps: it samples, then pushes; prompts recur every five steps."""
    return [
        (sampled(run, SampleRequest(step, 3)), run.push(pushed(step, 4, prompts=20), step, request_id=f"push-{step}"))
        for step in steps
    ]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("back_to", [0, 1, 7, 11])
def test_rewound_run_repeats_itself(tmp_path: Path, name: str, back_to: int) -> None:
    store = ReplayStore(tmp_path)
    run = ReplayRun(store, 1, CONFIGS[name], seed=3)
    train(run, range(back_to))
    before = run.stats()
    first = train(run, range(back_to, 14))
    run.rewind(back_to, epoch=1)
    after = run.stats()
    names = ("live_groups", "live_bytes", "ages", "times_sampled", "step")
    assert [getattr(after, n) for n in names] == [getattr(before, n) for n in names]
    assert train(run, range(back_to, 14)) == first
    run.rewind(back_to, epoch=2)
    store.close()
    store = ReplayStore(tmp_path)
    assert train(ReplayRun(store, 1, CONFIGS[name], seed=3), range(back_to, 14)) == first
    store.close()


@pytest.mark.parametrize("name", CONFIGS)
def test_scenarios_reach_the_evictions(store: ReplayStore, name: str) -> None:
    """The test above says little unless groups left before and after the rewind."""
    run = ReplayRun(store, 1, CONFIGS[name], seed=3)
    train(run, range(14))
    reason = {"all kept": "capacity", "newest": "newer"}.get(name, name)
    assert run.stats().counters[f"evicted_{reason}"] > 5


def test_rewind_counts_and_is_applied_once(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, ReplayConfig(capacity_groups=4), seed=0)
    run.push(pushed(0, 3), 0)
    run.push(pushed(1, 3), 1)
    result = run.rewind(1, epoch=1)
    assert (result.dropped, result.restored) == (3, 2)
    run.push(pushed(1, 3), 1)
    assert run.rewind(1, epoch=1) == result
    assert run.stats().live_groups == 4
    assert ReplayRun(store, 1, ReplayConfig(capacity_groups=4), seed=0).rewind(0, epoch=1) == result


def test_rewind_to_the_future_changes_nothing(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, ReplayConfig(), seed=0)
    train(run, range(3))
    before = run.stats()
    assert run.rewind(3, epoch=1).dropped == 0
    assert run.stats() == before


def test_request_ids_of_dropped_pushes_are_free(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, ReplayConfig(), seed=0)
    run.push(pushed(0, 2), 0, request_id="zero")
    run.push(pushed(1, 2), 1, request_id="one")
    run.rewind(1, epoch=1)
    assert run.push(pushed(0, 2), 0, request_id="zero").already_applied
    assert not run.push(pushed(5, 2), 5, request_id="one").already_applied


def test_late_outdated_group_takes_its_place(store: ReplayStore) -> None:
    """Step 5's push arrives after step 7's; without step 7 its group is the newest of the prompt."""
    run = ReplayRun(store, 1, ReplayConfig(), seed=0)
    run.push([(checked("p", 3), b"3")], 3)
    run.push([(checked("p", 7), b"7")], 7)
    assert run.push([(checked("p", 5), b"5")], 5).outdated == 1
    run.rewind(6, epoch=1)
    assert [group.payload for group in sampled(run, SampleRequest(6, 9)).groups] == [b"5"]


def test_beyond_history(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path)
    config = ReplayConfig(capacity_groups=6)
    run = ReplayRun(store, 1, config, seed=0, rewind_window_steps=5)
    first = train(run, range(40))
    kept = run.stats()
    assert kept.tombstone_groups <= 4 * 7
    for step in (3, 20, 30):
        with pytest.raises(RewindBeyondHistory):
            run.rewind(step, epoch=1)
        with pytest.raises(RewindBeyondHistory):
            run.fork(2, step)
        assert run.stats() == kept
    run.rewind(36, epoch=1)
    assert train(run, range(36, 40)) == first[36:]
    store.close()
    store = ReplayStore(tmp_path)
    run = ReplayRun(store, 1, config, seed=0, rewind_window_steps=5)
    with pytest.raises(RewindBeyondHistory):
        run.rewind(20, epoch=2)
    # Nothing of before step 0 was deleted, for there was nothing.
    run.rewind(0, epoch=2)
    assert train(run, range(40)) == first
    store.close()


def test_samples_fade_with_their_groups(tmp_path: Path) -> None:
    """Which groups a sample held is forgotten once they all are gone; that its step was answered is not."""
    config = ReplayConfig(capacity_groups=6)
    store = ReplayStore(tmp_path)
    run = ReplayRun(store, 1, config, 3, rewind_window_steps=5)
    train(run, range(60))
    samples = list(store.samples(1))
    # The first step had nothing to sample.
    assert [event.step for event in samples] == list(range(1, 60))
    # Groups live for two steps and are kept for five more; samples are looked through every five.
    assert next(event.step for event in samples if event.picks) > 60 - 2 - 5 - 5 - 1
    twin = ReplayRun(store, 1, config, 3, rewind_window_steps=5)
    before = twin.stats()
    for again in (run, twin):
        assert again.answered(4)
        with pytest.raises(RewindBeyondHistory):
            again.sample(SampleRequest(4, 3))
        with pytest.raises(SampleDiffers):
            again.sample(SampleRequest(4, 2))
        assert again.stats() == before
    store.close()


def test_samples_of_groups_that_are_there_never_fade(store: ReplayStore) -> None:
    """Without evictions every step's sample stays, and so does any rewind, however long ago."""
    run = ReplayRun(store, 1, ReplayConfig(newest_per_prompt=False), 3, rewind_window_steps=2)
    train(run, range(8))
    before = run.stats()
    first = train(run, range(8, 30))
    assert sampled(run, SampleRequest(9, 3)) == first[1][0]
    run.rewind(8, epoch=1)
    assert run.stats().times_sampled == before.times_sampled
    assert train(run, range(8, 30)) == first


def test_fork_goes_on_like_the_original(store: ReplayStore) -> None:
    run = ReplayRun(store, 1, CONFIGS["all kept"], seed=3)
    first = train(run, range(12))
    forked = run.fork(2, before_step=8)
    assert train(forked, range(8, 12)) == first[8:]
    assert sampled(forked, SampleRequest(5, 3)) == first[5][0]
    assert train(run, range(12, 14)) == train(forked, range(12, 14))
    store.drop_run(1)
    assert sampled(forked, SampleRequest(13, 3)).groups
