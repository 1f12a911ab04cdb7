"""Quotas of what is kept: exact however many write at once, free again after deletions and failures, known at start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import SelectorClient
from clients.errors import ResourceExhausted, Unavailable
from clients.retry import RetryPolicy
from selector.errors import ServiceError
from selector.quotas import Ledger, Quotas, Usage
from selector.storage.runs import Transaction
from selector.v1.reasons import Reason
from tests.service.running import InProcessService
from tests.service.trainer import group_of

_ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path / "state")
    yield running
    running.close()


def _run(service: InProcessService, run_id: str, **config: Any) -> SelectorClient:
    client = service.client(run_id, retry=_ONCE)
    client.create_run(config)
    return client


def _at_once(works: Sequence[Callable[[], Any]], limit: str) -> int:
    """Do everything at the same time; how much of it was not refused by the limit."""

    def done(work: Callable[[], Any]) -> bool:
        try:
            work()
        except ResourceExhausted as error:
            assert (error.reason, error.metadata["limit"]) == ("QUOTA_EXCEEDED", limit)
            assert error.retry_after_s is not None
            assert f"{limit}={error.metadata['value']}" in error.message
            # Where only a larger limit helps, it is not said that deleting other runs would.
            one_run = not limit.startswith("max_total_") and limit != "max_runs"
            assert ("delete runs" in error.message) == (not one_run and limit != "max_total_embedding_bytes")
            if one_run:
                assert f"per run: start the server with a larger --{limit.replace('_', '-')}" in error.message
            return False
        return True

    with ThreadPoolExecutor(len(works)) as executor:
        return sum(executor.map(done, works))


def _registration(client: SelectorClient, *prompt_ids: str, text: str = "") -> Callable[[], Any]:
    return lambda: client.register_prompts(list(prompt_ids), texts=[text] * len(prompt_ids) if text else None)


def _push(client: SelectorClient, step: int, *prompt_ids: str) -> Callable[[], Any]:
    return lambda: client.push_rollouts(step, [group_of(prompt_id, step) for prompt_id in prompt_ids])


def test_prompts_of_one_run_and_of_all(service: InProcessService) -> None:
    service.restart(max_prompts=5, max_total_prompts=12)
    a, *others = (_run(service, run_id) for run_id in "abcd")
    assert _at_once([_registration(a, f"p{i}") for i in range(9)], "max_prompts") == 5
    assert a.get_run().pool.registered == 5
    # What is known already takes no room.
    a.register_prompts(a.predict_difficulty().prompt_ids)
    works = [_registration(client, f"p{i}", f"q{i}") for client in others for i in range(2)]
    assert _at_once(works, "max_total_prompts") == 3
    assert sum(client.get_run().pool.registered for client in others) == 6
    a.delete_run()
    b = others[0]
    left = 5 - b.get_run().pool.registered
    assert _at_once([_registration(b, f"r{i}") for i in range(7)], "max_prompts") == left


def test_bytes_of_prompts(service: InProcessService) -> None:
    service.restart(max_prompt_bytes=1000, max_total_prompt_bytes=2500)
    a, b, c = (_run(service, run_id) for run_id in "abc")
    # 8 bytes of id and 192 of text.
    assert _at_once([_registration(a, f"prompt-{i}", text="é" * 96) for i in range(9)], "max_prompt_bytes") == 5
    works = [_registration(client, f"prompt-{i}", text="x" * 192) for client in (b, c) for i in range(5)]
    assert _at_once(works, "max_total_prompt_bytes") == 7
    known = a.predict_difficulty().prompt_ids[:1]
    a.register_prompts(known, texts=["x"], replace=True)
    assert _at_once([_registration(c, "prompt-7", text="x" * 184)], "max_total_prompt_bytes") <= 1
    with pytest.raises(ResourceExhausted):
        a.register_prompts(known, texts=["x" * 1000], replace=True)


def test_groups_and_bytes_of_replay(service: InProcessService) -> None:
    service.restart(max_replay_groups=6, max_total_replay_groups=13)
    config = {"replay": {"newest_per_prompt": False}}
    clients = [_run(service, run_id, **config) for run_id in "abc"]
    for client in clients:
        client.register_prompts([f"p{i}" for i in range(9)])
    a, *others = clients
    assert _at_once([_push(a, 0, f"p{i}") for i in range(9)], "max_replay_groups") == 6
    works = [_push(client, 0, f"p{2 * i}", f"p{2 * i + 1}") for client in others for i in range(3)]
    assert _at_once(works, "max_total_replay_groups") == 3
    assert sum(client.get_run().replay_groups for client in clients) == 12
    used = service.server._runs.ledger.total()
    assert used.replay_bytes == sum(client.get_run().replay_bytes for client in clients)
    service.restart(max_replay_groups=100, max_total_replay_groups=100, max_total_replay_bytes=used.replay_bytes + 100)
    clients = [service.client(run_id, retry=_ONCE) for run_id in "abc"]
    assert _at_once([_push(client, 1, f"p{i}") for i in range(9) for client in clients], "max_total_replay_bytes") < 2
    clients[0].delete_run()
    clients[1].push_rollouts(2, [group_of("p8", 2)])


def test_a_buffer_that_the_server_will_not_fill_is_warned_about(service: InProcessService) -> None:
    service.restart(max_replay_groups=600)
    assert not [warning for warning in service.client("a").create_run().warnings if "max_replay_groups" in warning]
    large = service.client("b").create_run({"replay": {"capacity_groups": 601}})
    assert [warning for warning in large.warnings if "max_replay_groups=600" in warning]


def test_groups_that_are_kept_for_a_rewind_count(service: InProcessService) -> None:
    service.restart(max_replay_groups=6, rewind_window_steps=3)
    client = _run(service, "a", replay={"capacity_groups": 2})
    client.register_prompts([f"p{i}" for i in range(9)])
    for step in range(3):
        client.push_rollouts(step, [group_of(f"p{step}", step), group_of(f"p{step + 1}", step)])
    assert client.get_run().replay_groups == 2
    with pytest.raises(ResourceExhausted, match="rewind"):
        client.push_rollouts(3, [group_of("p7", 3)])
    client.rewind(2)
    client.push_rollouts(2, [group_of("p7", 2)])


def test_embeddings_of_all_runs(service: InProcessService) -> None:
    # 8 numbers of 4 bytes, a hash of 32 and a checksum of 4.
    service.restart(max_total_embedding_bytes=10 * 68)
    clients = [_run(service, run_id) for run_id in "ab"]
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)

    def register(i: int) -> Callable[[], Any]:
        return lambda: clients[i % 2].register_prompts([f"p{i}"], embeddings=vectors[i : i + 1])

    assert _at_once([register(i) for i in range(15)], "max_total_embedding_bytes") == 10
    service.restart()
    clients = [service.client(run_id, retry=_ONCE) for run_id in "ab"]
    assert _at_once([register(i) for i in range(15, 20)], "max_total_embedding_bytes") == 0
    # A known embedding takes no room.
    taken = service.server._runs.get("a").pool.prompt_ids[0]
    clients[1].register_prompts(["again"], embeddings=vectors[[int(taken[1:])]])


def test_runs(service: InProcessService) -> None:
    service.restart(max_runs=4)
    assert _at_once([lambda i=i: _run(service, f"run-{i}") for i in range(9)], "max_runs") == 4  # type: ignore[misc]
    runs = [run.run_id for run in service.client("any").list_runs()]
    assert len(runs) == 4
    with pytest.raises(ResourceExhausted):
        service.client(runs[0], retry=_ONCE).fork("fork", 0)
    service.client(runs[0]).create_run()
    service.client(runs[1]).delete_run()
    service.client(runs[0]).fork("fork", 0)


def test_a_fork_counts_and_leaves_nothing_behind_when_refused(service: InProcessService) -> None:
    service.restart(max_total_prompts=10)
    a = _run(service, "a")
    a.register_prompts([f"p{i}" for i in range(5)])
    a.fork("b", 0)
    with pytest.raises(ResourceExhausted, match="max_total_prompts=10"):
        a.fork("c", 0)
    assert [run.run_id for run in a.list_runs()] == ["a", "b"]
    service.client("b").delete_run()
    a.fork("c", 0)


def test_usage_is_known_after_a_restart_and_lower_limits_refuse_growth_only(service: InProcessService) -> None:
    a = _run(service, "a")
    a.register_prompts([f"p{i}" for i in range(5)], texts=["text"] * 5)
    a.push_rollouts(0, [group_of("p0", 0), group_of("p1", 0)])
    used = service.server._runs.ledger.total()
    assert (used.prompts, used.prompt_bytes, used.replay_groups) == (5, 30, 2)
    service.restart(max_prompts=3, max_replay_groups=1)
    assert service.server._runs.ledger.total() == used
    a = service.client("a", retry=_ONCE)
    chosen = a.select_batch(1, 2)
    a.report_outcomes(1, dict.fromkeys(chosen.prompt_ids, (1.0, 0.0)))
    assert a.retire_prompts(["p4"]).retired == 1
    assert len(a.sample_rollouts(1, 2)) == 2
    with pytest.raises(ResourceExhausted, match="max_prompts=3"):
        a.register_prompts(["p9"])


def test_a_write_that_fails_takes_no_room(service: InProcessService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.restart(max_prompts=5)
    a = _run(service, "a")

    def failing(*_: object) -> None:
        raise ServiceError(Reason.STORAGE_FAILED, "no")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "put_prompts", failing)
        for _ in range(3):
            with pytest.raises(Unavailable):
                a.register_prompts(["p0", "p1", "p2"])
    assert service.server._runs.ledger.total() == Usage()
    a.register_prompts([f"p{i}" for i in range(5)])


def test_the_ledger_never_overshoots_and_forgets_nothing() -> None:
    """Writes of many runs at once, of which some fail."""
    ledger = Ledger(Quotas(max_prompts=10, max_total_prompts=35))
    seen: list[int] = []

    def write(run: int) -> None:
        random, mine = np.random.default_rng(run), 0
        for _ in range(300):
            wanted = int(random.integers(0, 14))
            try:
                with ledger.change(run, prompts=wanted):
                    seen.append(ledger.total().prompts)
                    if random.random() < 0.3:
                        raise ZeroDivisionError
                    mine = wanted
            except (ServiceError, ZeroDivisionError):
                pass
        assert ledger._used.get(run, Usage()) == replace(Usage(), prompts=mine)

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(write, range(8)))
    assert max(seen) <= 35
    assert ledger.total() == Usage(prompts=sum(usage.prompts for usage in ledger._used.values()))
    for run in range(8):
        ledger.settle(run, Usage())
        ledger.close(run)
    assert ledger.total() == Usage()
