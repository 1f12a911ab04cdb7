"""Groups large enough for memory to be lent, and what memory a process has lent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clients import RolloutGroup

PROMPTS = [f"p{number}" for number in range(48)]
# Enough for memory to be lent.
GROUPS = 12
TOKENS = 6_000
PATIENCE_S = 30.0


def made(step: int, count: int = GROUPS, tokens: int = TOKENS, first: int = 0) -> list[RolloutGroup]:
    """Groups with random content that follows from the step, masks and a column among it."""
    random = np.random.default_rng((step, count, first))
    groups = []
    for number in range(count):
        cut = int(random.integers(1, tokens))
        groups.append(
            RolloutGroup.from_arrays(
                prompt_id=PROMPTS[(first + number) % len(PROMPTS)],
                policy_version=step,
                prompt_token_ids=random.integers(0, 1000, 7),
                response_token_ids=np.split(random.integers(0, 150_000, tokens), [cut]),
                behavior_log_probs=np.split(-random.random(tokens, dtype=np.float32), [cut]),
                loss_masks=np.split(random.integers(0, 2, tokens), [cut]),
                rewards=[0.5, -1],
                outcomes=[0, 1],
                columns={"experts": random.integers(0, 255, (5, 3), dtype=np.uint8), "opaque": random.bytes(9)},
            )
        )
    return groups


def content(groups: list[RolloutGroup]) -> dict[str, bytes]:
    """Bytes by prompt, ids aside, which the service may have made."""
    found = {}
    for group in groups:
        message = group.to_proto()
        message.group_id = ""
        found[group.prompt_id] = message.SerializeToString(deterministic=True)
    return found


# Inodes of memory that clients of other tests in this process still have.
of_others: set[int] = set()


def lent_by(process: int) -> list[str]:
    """Memory that a process has open, but for what it had when the test began."""
    return [descriptor for descriptor, inode in lent(process).items() if inode not in of_others]


def lent(process: int) -> dict[str, int]:
    """Descriptors of lent memory, with the inodes."""
    found = {}
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:selector-replay"):
                found[entry.name] = entry.stat().st_ino
        except OSError:
            continue
    return found


def eventually(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
