"""Runs never see each other, and a deleted run leaves nothing behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from clients import AlreadyExists, InvalidArgument, NotFound, SelectorClient
from selector.replay.store import ReplayStore
from selector.storage.state_dir import StateDirectory
from tests.service.running import InProcessService
from tests.service.trainer import (
    Trainer,
    group_contents,
    group_of,
    outcomes_of,
    prediction_contents,
    prompts,
    scraped,
)

POOL, BATCH = 16, 4


def _begin(client: SelectorClient, **config: object) -> SelectorClient:
    client.create_run({"seed": 5, "cool_down_steps": 1, **config})
    client.register_prompts(prompts(POOL))
    return client


def _shown(client: SelectorClient) -> list[object]:
    """Everything a run shows of itself."""
    run = client.get_run()
    return [
        prediction_contents(client.predict_difficulty()),
        client.quality(),
        run.pool,
        (run.last_step, run.selections, run.outcome_groups, run.replay_groups, run.replay_bytes),
        [(row.prompt_id, row.record.step) for row in client.export("outcomes")],
        [(row.prompt_id, row.record.step) for row in client.export("selections")],
        [group_contents(group) for group in client.sample_rollouts(3, 2)],
    ]


def _rows(state_dir: Path) -> dict[str, int]:
    """Rows of every table of the state database, and entries of every table of the replay store."""
    counts = {}
    with closing(sqlite3.connect(f"file:{state_dir / 'state.db'}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in sorted(set(tables) - {"alembic_version", "sqlite_sequence"}):
            ((counts[table],),) = database.execute(f"SELECT COUNT(*) FROM {table}")
    return counts


def test_what_one_run_does_no_other_run_sees(own_service: InProcessService) -> None:
    """Two runs with the same prompts, steps and request ids: each is as it would be alone, whatever the other does."""
    alone = Trainer(_begin(own_service.client("alone")), BATCH, replays=True)
    expected = alone.steps(0, 6)
    shown = _shown(alone.client)
    # The same steps in turn with a run in which everything comes out differently.
    left = Trainer(_begin(own_service.client("left")), BATCH, replays=True)
    right = Trainer(_begin(own_service.client("right")), BATCH, salt="another world", replays=True)
    answers = []
    for step in range(6):
        right.step(step)
        answers.append(left.step(step))
        right.client.report_training(step, effective_sample_size=0.25, signals={"s": {"p000": 1.0}})
    assert answers == expected
    right.client.retire_prompts(prompts(3))
    right.client.register_prompts(["p010"], texts=["other content"], replace=True)
    right.client.rewind(2)
    right.client.register_prompts(prompts(4, "more"))
    assert _shown(left.client) == shown
    assert {row.prompt_id for row in left.client.export("outcomes")} <= set(prompts(POOL))


def test_request_ids_belong_to_their_run(own_service: InProcessService) -> None:
    """The same id with other content is a mistake within a run, and nothing at all between two."""
    one, other = _begin(own_service.client("one")), _begin(own_service.client("other"))
    for client, outcome in ((one, 1.0), (other, 0.0)):
        client.select_batch(0, 2, request_id="select")
        answer = client.report_outcomes(0, {"p000": [outcome] * 4}, request_id="report")
        assert not answer.already_applied
        pushed = client.push_rollouts(0, [group_of("p000", 0, [outcome, 0.5])], request_id="push")
        assert (pushed.stored, pushed.already_applied) == (1, False)
    assert one.explain("p000").outcomes[0].difficulty == 0.0
    assert other.explain("p000").outcomes[0].difficulty == 1.0
    # Group ids are unique within a run only.
    assert one.sample_rollouts(0, 1)[0].outcomes[0] == 1.0
    assert other.sample_rollouts(0, 1)[0].outcomes[0] == 0.0


def test_figures_are_told_apart_by_run(own_service: InProcessService) -> None:
    own_service.restart(metrics_listen="127.0.0.1:0")
    solved, failed = _begin(own_service.client("solved")), _begin(own_service.client("failed"))
    for client, outcome in ((solved, 1.0), (failed, 0.0)):
        batch = client.select_batch(0, BATCH)
        client.report_outcomes(0, dict.fromkeys(batch.prompt_ids, [outcome] * 4))
    failed.push_rollouts(0, [group_of("p000", 0)])
    figures = {name: scraped(own_service.metrics_address, name) for name in ("solved", "failed")}
    for name, zeros, ones, groups in (("solved", 0, BATCH, 0), ("failed", BATCH, 0, 1)):
        assert figures[name]["selector_uninformative_groups", "constant_zero"] == zeros
        assert figures[name]["selector_uninformative_groups", "constant_one"] == ones
        assert figures[name]["selector_replay_groups", ""] == groups
    solved.delete_run()
    assert scraped(own_service.metrics_address, "solved") == {}
    after = scraped(own_service.metrics_address, "failed")
    last_active = ("selector_run_last_active_timestamp_seconds", "")
    assert {**after, last_active: 0.0} == {**figures["failed"], last_active: 0.0}


def test_a_deleted_run_leaves_the_others_alone_and_nothing_behind(tmp_path: Path) -> None:
    """No row and no payload of it is left, in either store; the other run is as before, also after a restart."""
    service = InProcessService(tmp_path)
    kept = Trainer(_begin(service.client("kept")), BATCH, replays=True)
    kept.steps(0, 4)
    shown = _shown(kept.client)
    rows = _rows(tmp_path)
    doomed = Trainer(_begin(service.client("doomed")), BATCH, salt="other", replays=True)
    doomed.steps(0, 4)
    doomed.client.fork("doomed.fork", 2)
    more = _rows(tmp_path)
    assert all(more[table] > rows[table] for table in rows.keys() - {"deletions"})
    doomed.client.delete_run()
    service.client("doomed.fork").delete_run()
    # Only that they were deleted is remembered, for the requests' sake.
    assert _rows(tmp_path) == {**rows, "deletions": 2}
    for call in (doomed.client.get_run, doomed.client.quality, lambda: doomed.client.select_batch(9, 1)):
        with pytest.raises(NotFound) as refused:
            call()
        assert refused.value.reason == "RUN_NOT_FOUND"
    assert [run.run_id for run in kept.client.list_runs()] == ["kept"]
    assert _shown(kept.client) == shown
    service.close()
    directory = StateDirectory(tmp_path)
    replay = ReplayStore(directory.replay)
    try:
        assert len(replay.runs()) == 1
        with replay._env.lmdb.begin() as transaction:
            for name, table in replay._env.tables.items():
                owners = {bytes(key)[:8] for key in transaction.cursor(db=table).iternext(values=False)}
                assert len(owners) == 1, name
    finally:
        replay.close()
        directory.close()
    service = InProcessService(tmp_path)
    assert _shown(service.client("kept")) == shown
    service.close()


def test_storage_of_deleted_runs_is_used_again(tmp_path: Path) -> None:
    """Ten runs of the same size, one after the other, take no more room than the first two."""
    service = InProcessService(tmp_path)
    tokens = np.arange(10_000)
    sizes = []
    for i in range(10):
        client = _begin(service.client(f"run-{i}"))
        groups = [
            group_of(p, 0, response_token_ids=[tokens] * 2, behavior_log_probs=[-tokens] * 2) for p in prompts(POOL)
        ]
        assert client.push_rollouts(0, groups).stored == POOL
        client.delete_run()
        sizes.append((tmp_path / "replay" / "data.mdb").stat().st_size)
    assert sizes[-1] < 1.2 * sizes[1]
    service.close()


def test_a_deleted_id_can_be_used_again_and_starts_empty(own_service: InProcessService) -> None:
    """The new run has its own config, no prompts, no requests and no groups; it does as any fresh run does."""
    first = _begin(own_service.client("again"))
    for step in range(3):
        batch = first.select_batch(step, BATCH)
        first.report_outcomes(step, outcomes_of(batch.prompt_ids, step), request_id=f"report-{step}")
        first.push_rollouts(step, [group_of(p, step) for p in batch.prompt_ids])
    with pytest.raises(AlreadyExists):
        first.create_run({"seed": 6})
    first.delete_run()
    created = first.create_run({"seed": 6})
    assert created.created
    run = created.run
    assert (run.pool.registered, run.last_step, run.selections, run.outcome_groups) == (0, -1, 0, 0)
    assert (run.replay_groups, run.replay_bytes, run.embedding_width) == (0, 0, 0)
    first.register_prompts(prompts(POOL), embeddings=np.eye(POOL))
    fresh = own_service.client("fresh")
    fresh.create_run({"seed": 6})
    fresh.register_prompts(prompts(POOL), embeddings=np.eye(POOL))
    for step in range(3):
        chosen = [client.select_batch(step, BATCH).prompt_ids for client in (first, fresh)]
        assert chosen[0] == chosen[1]
        for client in (first, fresh):
            answer = client.report_outcomes(step, outcomes_of(chosen[0], step), request_id=f"report-{step}")
            assert not answer.already_applied
    assert prediction_contents(first.predict_difficulty()) == prediction_contents(fresh.predict_difficulty())
    assert first.sample_rollouts(3, 4).eligible_groups == 0
    own_service.restart()
    assert own_service.client("again").get_run().pool.registered == POOL


def test_a_repeated_deletion_is_answered_alike_and_spares_a_new_run(own_service: InProcessService) -> None:
    client = own_service.client("again")
    client.create_run({"seed": 1}, request_id="create")
    client.delete_run(request_id="delete")
    client.delete_run(request_id="delete")
    client.create_run({"seed": 2}, request_id="create")
    own_service.restart()
    client = own_service.client("again")
    client.delete_run(request_id="delete")
    assert client.get_run().config.seed == 2
    with pytest.raises(InvalidArgument, match="request_id"):
        client.create_run({"seed": 3}, request_id="create")
    client.delete_run(request_id="delete too")
    with pytest.raises(LookupError):
        client.delete_run(request_id="and once more")
