"""Two ranks over gloo: one asks the service, both train on their share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.trainers.service import Service
from tests.trainers.trl.tiny import GROUP_SIZE, client

_CLONE = Path(__file__).parents[3]
_TIMEOUT_S = 300


def train(service: Service, folder: Path, name: str, *arguments: str) -> list[dict[str, Any]]:
    """What both ranks saw."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    program = [str(_CLONE / "tests" / "trainers" / "trl" / "ranks.py"), service.target, str(folder), name]
    ended = subprocess.run(
        [*launcher, *program, *arguments],
        cwd=_CLONE,
        env={**os.environ, "PYTHONPATH": str(_CLONE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_share_selections_and_replay_and_resume_exactly(service: Service, tmp_path: Path) -> None:
    ranks = train(service, tmp_path, "whole", "6")
    with client(service.target) as looked:
        run = looked.get_run()
        reported = sorted((row.record.step, row.prompt_id) for row in looked.export("outcomes"))
    assert run.selections >= 6 and run.last_step == 5
    fresh = [[{prompt for prompt, _ in batch} for batch in rank["batches"]] for rank in ranks]
    for step in range(6):
        mine, other = (rank["replayed"][step] for rank in ranks)
        assert len(mine) == len(other) and len(fresh[0][step]) == len(fresh[1][step])
        assert fresh[0][step].isdisjoint(fresh[1][step])
        assert {group for group, *_ in mine}.isdisjoint({group for group, *_ in other})
        assert len(fresh[0][step]) + len(mine) == 4
        # Every rank has its four groups whole, and both know the tokens of all.
        assert [rank["rows"][step] for rank in ranks] == [4 * GROUP_SIZE] * 2
        assert {rank["items"][step] for rank in ranks} == {sum(rank["tokens"][step] for rank in ranks)}
    assert len(reported) == sum(len(asked) for rank in fresh for asked in rank)
    assert sum(len(groups) for groups in ranks[0]["replayed"]) > 0
    for rank in ranks:
        assert sum(rank["replayed_rows"]) > 0
        assert max(loss for loss, _ in rank["differences"]) < 1e-6

    resumed = train(service, tmp_path, "resumed", "6", str(tmp_path / "checkpoint-3"))
    for rank, again in zip(ranks, resumed, strict=True):
        assert again["batches"] == rank["batches"][3:]
        assert again["replayed"] == rank["replayed"][3:]
