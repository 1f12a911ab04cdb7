"""Snapshots of the folded state: loaded instead of the log's beginning, and never believed when they may be wrong."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clients import SelectorClient
from tests.service.running import InProcessService
from tests.service.test_restart import check_against_a_twin
from tests.service.trainer import Trainer, noise, prediction_contents, prompts

POOL, BATCH, STEPS = 12, 4, 9

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "fused": {"score": "LEARNABLE"},
    "attention": {
        "estimator": {"name": "ATTENTION"},
        "reference": {"mode": "DEDICATED", "size": 6, "every_steps": 2},
        "score": "NEAR_TARGET",
    },
    "tracker": {"estimator": {"name": "TRACKER"}, "reference": {"mode": "NONE"}, "score": "INFORMATIVE"},
}


@pytest.fixture
def service(tmp_path: Path) -> Any:
    made = InProcessService(tmp_path / "state", snapshot_groups=1)
    yield made
    made.close()


def _snapshots(service: InProcessService) -> list[Path]:
    return sorted(service.state_dir.glob("snapshots/*/*.snapshot"))


def _trained(service: InProcessService, run_id: str = "run") -> SelectorClient:
    client = service.client(run_id)
    client.create_run({"seed": 3, "cool_down_steps": 1})
    client.register_prompts(prompts(POOL), embeddings=noise("pool").normal(size=(POOL, 5)))
    Trainer(client, BATCH, "", signals=True).steps(0, STEPS)
    return client


def _shown(client: SelectorClient) -> list[object]:
    # First, since what is predicted depends on the step that the run has come to.
    selected = client.select_batch(STEPS, BATCH).prompt_ids
    run = client.get_run()
    return [
        selected,
        prediction_contents(client.predict_difficulty()),
        client.quality(),
        (run.last_step, run.selections, run.outcome_groups, run.outcome_rollouts),
    ]


def test_runs_that_use_snapshots_go_on_as_their_twins(service: InProcessService) -> None:
    check_against_a_twin(service, CONFIGS, signals=True)
    assert len(_snapshots(service)) > len(CONFIGS)


def _without_the_beginning(state_dir: Path) -> None:
    """Delete the log up to the event before the one that the newest snapshot ends with."""
    newest = max(int(path.name.split("-")[1]) for path in state_dir.glob("snapshots/*/*.snapshot"))
    with closing(sqlite3.connect(state_dir / "state.db")) as database, database:
        deleted = database.execute("DELETE FROM events WHERE seq < ?", (newest,)).rowcount
    assert deleted > STEPS


def test_a_start_reads_only_the_rest_of_the_log(service: InProcessService, tmp_path: Path) -> None:
    expected = _shown(_trained(service))
    service.restart(between=lambda: _without_the_beginning(service.state_dir))
    assert _shown(service.client("run")) == expected


def test_rewinds_and_forks_start_from_a_snapshot_that_lies_before_them(service: InProcessService) -> None:
    client = _trained(service)
    client.fork("expected", STEPS - 2)
    expected = prediction_contents(service.client("expected").predict_difficulty())
    oldest = min(int(path.name.split("-")[1]) for path in _snapshots(service))
    with closing(sqlite3.connect(service.state_dir / "state.db")) as database, database:
        assert database.execute("DELETE FROM events WHERE seq < ?", (oldest,)).rowcount > STEPS
    client.fork("fork", STEPS - 2)
    assert prediction_contents(service.client("fork").predict_difficulty()) == expected
    client.rewind(STEPS - 2)
    assert prediction_contents(client.predict_difficulty()) == expected
    service.restart()
    assert prediction_contents(service.client("run").predict_difficulty()) == expected


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _other_code(path: Path) -> None:
    from selector.state_codec import decode, encode

    tree = decode(path.read_bytes())
    # A state that would be noticed if it were used.
    tree["state"]["outcome_groups"] += 1000
    path.write_bytes(encode({**tree, "code": "of another version"}))


@pytest.mark.parametrize("harm", [_flip, _truncate, _other_code, Path.unlink])
def test_a_snapshot_that_cannot_be_trusted_is_not_used(service: InProcessService, harm: Callable[[Path], None]) -> None:
    expected = _shown(_trained(service))

    def harm_all() -> None:
        assert _snapshots(service)
        for path in _snapshots(service):
            harm(path)

    service.restart(between=harm_all)
    assert _shown(service.client("run")) == expected


def test_a_snapshot_of_another_history_under_the_same_numbers_is_not_used(
    service: InProcessService, tmp_path: Path
) -> None:
    """The database alone is put back from an older copy, and training goes on differently from there."""
    client = service.client("run")
    client.create_run({"seed": 3})
    client.register_prompts(prompts(POOL))
    service.restart(between=lambda: shutil.copy(service.state_dir / "state.db", tmp_path / "older.db"))
    Trainer(service.client("run"), BATCH, "").steps(0, STEPS)
    kept = tmp_path / "kept"

    def put_back() -> None:
        shutil.copytree(service.state_dir / "snapshots", kept)
        shutil.copy(tmp_path / "older.db", service.state_dir / "state.db")
        # Otherwise the server refuses a database that has lost changes.
        (service.state_dir / "watermark").unlink()

    service.restart(between=put_back)
    Trainer(service.client("run"), BATCH, "another world").steps(0, STEPS)
    expected = prediction_contents(service.client("run").predict_difficulty())

    def bring_the_old_snapshots_back() -> None:
        shutil.rmtree(service.state_dir / "snapshots")
        shutil.copytree(kept, service.state_dir / "snapshots")
        assert _snapshots(service)

    service.restart(between=bring_the_old_snapshots_back)
    assert prediction_contents(service.client("run").predict_difficulty()) == expected


def test_reports_are_answered_when_snapshots_cannot_be_written(
    service: InProcessService, caplog: pytest.LogCaptureFixture
) -> None:
    (service.state_dir / "snapshots").write_text("a file where the directory should be")
    expected = _shown(_trained(service))
    assert "no snapshot of run" in caplog.text
    service.restart()
    assert _shown(service.client("run")) == expected


def test_snapshots_of_a_deleted_run_are_deleted(service: InProcessService) -> None:
    _trained(service, "kept")
    kept = set(_snapshots(service))
    _trained(service, "deleted")
    assert set(_snapshots(service)) > kept
    service.client("deleted").delete_run()
    assert set(_snapshots(service)) == kept
