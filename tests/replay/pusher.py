"""A process that pushes and samples until it is killed, saying what was acknowledged: ``pusher.py DIRECTORY STEP``."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from selector.config import ReplayConfig
from selector.replay import ReplayRun, ReplayStore, SampleRequest
from tests.replay.groups import pushed, sampled

CONFIG = ReplayConfig(capacity_groups=100_000)
GROUPS = 5
SIZE = 40_000


def digest(run: ReplayRun, step: int) -> str:
    """What a step's sample holds."""
    groups = sampled(run, SampleRequest(step, 4)).groups
    return hashlib.sha256(b"".join(group.payload for group in groups)).hexdigest()


def main() -> None:
    """Push and sample, step after step."""
    run = ReplayRun(ReplayStore(Path(sys.argv[1])), 1, CONFIG, seed=0)
    step = int(sys.argv[2])
    while True:
        run.push(pushed(step, GROUPS, size=SIZE), step)
        sys.stdout.write(f"pushed {step}\n")
        sys.stdout.flush()
        sys.stdout.write(f"sampled {step} {digest(run, step)}\n")
        sys.stdout.flush()
        step += 1


if __name__ == "__main__":
    main()
