"""What users of replay stores run into: the P and R behaviours, on a real store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from selector.config import ReplayConfig
from selector.replay import (
    GroupRefused,
    ReplayRun,
    ReplayStore,
    RequestIdReused,
    SampleDiffers,
    SampleOrder,
    SampleRequest,
    replay_run,
)
from selector.v1.reasons import Reason
from tests.replay.groups import checked, payload, pushed, sampled


def run_of(store: ReplayStore, **config: object) -> ReplayRun:
    return ReplayRun(store, 1, ReplayConfig(**config), seed=0)  # type: ignore[arg-type]


def everything(run: ReplayRun, step: int) -> dict[str, bytes]:
    return {group.group_id: group.payload for group in sampled(run, SampleRequest(step, 10_000)).groups}


def test_case_7_groups_survive_a_restart(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path)
    groups = pushed(0, 6)
    run_of(store).push(groups, 0)
    store.close()
    store = ReplayStore(tmp_path)
    assert everything(run_of(store), 0) == {group.group_id: data for group, data in groups}
    store.close()


def test_case_26_bytes_come_back_as_pushed(store: ReplayStore) -> None:
    run = run_of(store)
    # Unaligned, empty, one byte, page-sized, larger than a page, and bytes that look like anything.
    sizes = [0, 1, 4095, 4096, 4097, 300_000]
    groups = [(checked(f"p{i}", 0), payload(i, size=size)) for i, size in enumerate(sizes)]
    groups.append((checked("odd", 0), bytes(range(256)) * 3 + np.array([np.nan, -0.0]).tobytes()))
    run.push(groups, 0)
    assert everything(run, 0) == {group.group_id: data for group, data in groups}


def test_case_43_references_are_kept_as_they_are(store: ReplayStore) -> None:
    run = run_of(store)
    reference = b'{"uri": "s3://bucket/image.png", "sha256": "' + hashlib.sha256(b"x").hexdigest().encode() + b'"}'
    run.push([(checked("p", 0), reference)], 0)
    assert everything(run, 0) == {"p@0": reference}


def test_case_31_age_limit(store: ReplayStore) -> None:
    run = run_of(store, max_age_steps=4)
    for step in range(3):
        run.push(pushed(step, 2), step)
    assert run.stats().ages == {0: 2, 1: 2, 2: 2}
    assert {group.age_steps for group in sampled(run, SampleRequest(4, 99)).groups} == {2, 3, 4}
    assert {group.age_steps for group in sampled(run, SampleRequest(5, 99)).groups} == {3, 4}
    assert run.stats().ages == {3: 2, 4: 2}
    assert run.stats().counters["evicted_age"] == 2
    assert run.eligible_count(SampleRequest(7, 99)) == 0


def test_group_too_old_on_arrival_is_counted(store: ReplayStore) -> None:
    result = run_of(store, max_age_steps=4).push([(checked("a", 5), b"a"), (checked("b", 6), b"b")], 10)
    assert (result.stored, result.too_old) == (1, 1)


def test_case_46_waiting_consumes_nothing(store: ReplayStore) -> None:
    run = run_of(store, max_uses=1)
    run.push(pushed(0, 2), 0)
    request = SampleRequest(1, 4)
    before = run.stats()
    for _ in range(10):
        assert run.eligible_count(request) == 2
        assert not run.answered(1)
    assert run.stats() == before
    run.push(pushed(1, 2), 1)
    assert run.eligible_count(request) == 4
    assert sampled(run, request).shortfall == 0


def test_case_46_shortfall_at_once(store: ReplayStore) -> None:
    run = run_of(store)
    empty = sampled(run, SampleRequest(0, 4))
    assert (empty.groups, empty.shortfall) == ((), 4)
    assert not run.answered(0)
    run.push(pushed(0, 3), 0)
    short = sampled(run, SampleRequest(0, 4))
    assert (len(short.groups), short.shortfall, short.eligible) == (3, 1, 3)
    run.push(pushed(1, 3), 1)
    assert sampled(run, SampleRequest(0, 4)) == short


def test_a_step_has_one_sample(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path)
    run = run_of(store)
    run.push(pushed(0, 20), 0)
    first = sampled(run, SampleRequest(3, 5))
    assert sampled(run, SampleRequest(3, 5)) == first
    store.close()
    store = ReplayStore(tmp_path)
    run = run_of(store)
    assert sampled(run, SampleRequest(3, 5)) == first
    assert run.stats().times_sampled == {0: 15, 1: 5}
    for other in (
        SampleRequest(3, 6),
        SampleRequest(3, 5, SampleOrder.NEWEST),
        SampleRequest(3, 5, min_age_steps=1),
        SampleRequest(3, 5, exclude=frozenset({"p"})),
        SampleRequest(3, 5, informative_only=True),
    ):
        with pytest.raises(SampleDiffers):
            sampled(run, other)
    store.close()


def test_use_limit(store: ReplayStore) -> None:
    run = run_of(store, max_uses=2)
    run.push(pushed(0, 3), 0)
    for step in (1, 2):
        assert {group.times_sampled for group in sampled(run, SampleRequest(step, 3)).groups} == {step}
    assert sampled(run, SampleRequest(3, 3)).shortfall == 3
    assert run.stats().counters["evicted_uses"] == 3
    assert len(sampled(run, SampleRequest(2, 3)).groups) == 3


def test_first_in_first_out(store: ReplayStore) -> None:
    run = run_of(store, capacity_groups=5)
    run.push(pushed(0, 4), 0)
    result = run.push(pushed(1, 4), 1)
    assert (result.stored, result.evicted) == (4, 3)
    assert set(everything(run, 1)) == {"p3@0", "p4@1", "p5@1", "p6@1", "p7@1"}
    assert run.stats().counters["evicted_capacity"] == 3


def test_push_larger_than_the_buffer(store: ReplayStore) -> None:
    run = run_of(store, capacity_groups=3)
    result = run.push(pushed(0, 8), 0)
    assert result.stored - result.evicted == 3
    assert set(everything(run, 0)) == {"p5@0", "p6@0", "p7@0"}


def test_byte_limit(store: ReplayStore) -> None:
    run = run_of(store, capacity_bytes=1000)
    run.push([(checked(f"p{i}", 0), payload(i, size=300)) for i in range(3)], 0)
    assert run.push([(checked("q", 0), payload(9, size=600))], 0).evicted == 2
    assert run.stats().live_bytes == 900
    with pytest.raises(GroupRefused) as caught:
        run.push([(checked("big", 0), payload(9, size=1001))], 0)
    assert caught.value.reason is Reason.QUOTA_EXCEEDED
    assert run.stats().live_bytes == 900


def test_newest_per_prompt(store: ReplayStore) -> None:
    run = run_of(store)
    run.push([(checked("p", 3), b"three")], 5)
    outdated = run.push([(checked("p", 2), b"two")], 5)
    assert (outdated.stored, outdated.outdated) == (0, 1)
    same_version = run.push([(checked("p", 3, "again"), b"later")], 5)
    assert (same_version.stored, same_version.evicted) == (1, 1)
    within = run.push([(checked("q", 4), b"4"), (checked("q", 5), b"5"), (checked("q", 3), b"3")], 5)
    assert (within.stored, within.evicted, within.outdated) == (2, 1, 1)
    assert everything(run, 5) == {"again": b"later", "q@5": b"5"}


def test_uninformative_groups(store: ReplayStore) -> None:
    group = [(checked("p", 0, informative=False), b"x")]
    assert run_of(store).push(group, 0).uninformative == 1
    assert ReplayRun(store, 2, ReplayConfig(informative_only=False), 0).push(group, 0).stored == 1


def test_request_id_applies_once(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path)
    run = run_of(store, capacity_groups=4, newest_per_prompt=False)
    first = run.push(pushed(0, 3), 0, request_id="r")
    run.push(pushed(1, 3), 1)
    for _ in range(2):
        again = run.push(pushed(0, 3), 0, request_id="r")
        assert again.already_applied
        assert (again.stored, again.evicted) == (first.stored, first.evicted)
        with pytest.raises(RequestIdReused):
            run.push(pushed(2, 3), 2, request_id="r")
        with pytest.raises(RequestIdReused):
            run.push(pushed(0, 3), 0, request_id="r", fingerprint=b"other")
        store.close()
        store = ReplayStore(tmp_path)
        run = run_of(store, capacity_groups=4, newest_per_prompt=False)
    assert run.stats().live_groups == 4
    store.close()


def test_unchanged_and_conflicting_ids(store: ReplayStore) -> None:
    run = run_of(store)
    run.push([(checked("p", 0), b"x"), (checked("q", 0), b"y")], 0)
    assert run.push([(checked("p", 0), b"x")], 0).unchanged == 1
    conflicting = [(checked("new", 0), b"n"), (checked("q", 0), b"other")]
    with pytest.raises(GroupRefused) as caught:
        run.push(conflicting, 0)
    assert (caught.value.index, caught.value.field, caught.value.reason) == (1, "group_id", Reason.INVALID_GROUP)
    assert run.stats().live_groups == 2
    skipped = run.push(conflicting, 0, request_id="r", skip_refused=True)
    assert (skipped.stored, [r.index for r in skipped.refused]) == (1, [1])
    assert run.push(conflicting, 0, request_id="r", skip_refused=True).refused == skipped.refused
    assert everything(run, 0) == {"p@0": b"x", "q@0": b"y", "new@0": b"n"}


def test_runs_do_not_see_each_other(store: ReplayStore) -> None:
    runs = [ReplayRun(store, number, ReplayConfig(), 0) for number in (0, 1, 2**64 - 1)]
    for index, run in enumerate(runs):
        run.push(pushed(index, 2), index)
        sampled(run, SampleRequest(index, 1))
    assert store.runs() == [0, 1, 2**64 - 1]
    store.drop_run(1)
    assert store.runs() == [0, 2**64 - 1]
    assert ReplayRun(store, 1, ReplayConfig(), 0).stats().live_groups == 0
    for index in (0, 2):
        again = ReplayRun(store, (0, 1, 2**64 - 1)[index], ReplayConfig(), 0)
        assert again.stats() == runs[index].stats()


def test_deleted_space_is_used_again(store: ReplayStore) -> None:
    sizes = []
    for _ in range(6):
        run = run_of(store)
        for step in range(5):
            run.push(pushed(step, 10, size=20_000), step)
        store.drop_run(1)
        sizes.append(store.file_bytes())
    assert sizes[-1] < 1.5 * sizes[0]


def test_sample_outlives_its_groups(store: ReplayStore) -> None:
    """A group that came, was sampled and left within one step is still there for a retry of that sample."""
    run = run_of(store)
    run.push([(checked("p", 5, "first"), b"1")], 5)
    sample = sampled(run, SampleRequest(5, 1))
    for number in range(3):
        run.push([(checked("p", 5, f"later{number}"), b"2")], 5)
    assert sampled(run, SampleRequest(5, 1)) == sample
    assert run.stats().live_groups == 1


def test_request_ids_outlive_the_rewind_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that comes again is known by its id however many steps ago it was, up to a number of pushes."""
    monkeypatch.setattr(replay_run, "REQUESTS_KEPT", 30)
    store = ReplayStore(tmp_path)
    run = ReplayRun(store, 1, ReplayConfig(capacity_groups=4), 0, rewind_window_steps=3)
    for step in range(50):
        run.push(pushed(step, 2), step, request_id=f"push-{step}")
    before = run.stats()
    for _ in range(2):
        assert run.push(pushed(20, 2), 20, request_id="push-20").already_applied
        with pytest.raises(RequestIdReused):
            run.push(pushed(21, 2), 21, request_id="push-20")
        assert run.stats().live_groups == before.live_groups
        store.close()
        store = ReplayStore(tmp_path)
        run = ReplayRun(store, 1, ReplayConfig(capacity_groups=4), 0, rewind_window_steps=3)
    assert not run.push(pushed(19, 2), 50, request_id="push-19").already_applied
    store.close()
