"""How the cost of ours grows with the length of rollouts, and with callers at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from bench.performance.figures import Figure
from bench.performance.replay.beside import KINDS, OURS
from bench.performance.replay.content import group_bytes
from bench.performance.replay.serving import Settings
from bench.performance.replay.worker import Worker
from bench.performance.turns import compared

# Groups of a push where lengths are compared, and of each caller's where callers are.
_GROUPS = 64
_GROUPS_EACH = 16


def lengths(settings: Settings, tokens: Sequence[int], rounds: int) -> list[Figure]:
    """Seconds for a MB, at several response tokens a group, against the first of them."""
    with ExitStack() as open_workers:
        workers = {}
        for each in tokens:
            own = replace(settings, groups=_GROUPS, tokens=each, stored=8 * _GROUPS)
            workers[each] = Worker(OURS, replace(own, folder=settings.folder / f"{each}-tokens"))
            open_workers.callback(workers[each].close)
        seconds: dict[tuple[str, int], list[float]] = {(kind, each): [] for kind in KINDS for each in tokens}
        for number in range(1 + rounds):
            for (kind, each), found in seconds.items():
                took = getattr(workers[each], kind)(number).seconds
                # The first round warms up.
                if number:
                    found.append(took / (_GROUPS * group_bytes(each) / 1e6))
    first, *longer = tokens
    return [
        compared(
            f"{kind}, {each:,} tokens a group",
            seconds[kind, first],
            seconds[kind, each],
            f"ours, {first:,} tokens a group",
            unit="s/MB",
            groups=_GROUPS,
        )
        for kind in KINDS
        for each in longer
    ]


def callers(settings: Settings, counts: Sequence[int], rounds: int) -> list[Figure]:
    """Rates of several callers of one run at once, each a process with its own connection, against one of them."""
    most = max(counts)
    own = replace(settings, groups=most * _GROUPS_EACH, stored=4 * most * _GROUPS_EACH)
    with ExitStack() as open_workers:
        service = Worker(OURS, replace(own, folder=settings.folder / "callers"))
        open_workers.callback(service.close)
        address = service.name.rpartition(" ")[2]
        workers = []
        for place in range(most):
            one = replace(own, groups=_GROUPS_EACH, option=f"{address} {place} {most}")
            workers.append(Worker(OURS, replace(one, folder=settings.folder / f"caller-{place}")))
            open_workers.callback(workers[-1].close)
        seconds: dict[tuple[str, int], list[float]] = {(kind, count): [] for kind in KINDS for count in counts}
        step = 0
        _together(workers, "push", step)
        for number in range(1 + rounds):
            for count in counts:
                step += 1
                for kind in KINDS:
                    took = _together(workers[:count], kind, step)
                    if number:
                        seconds[kind, count].append(took)
    size = _GROUPS_EACH * group_bytes(settings.tokens) / 1e6
    return [
        compared(
            f"{kind}, {count} callers at once",
            [count * one for one in seconds[kind, counts[0]]],
            seconds[kind, count],
            "ours, one after the other",
            work=count * size,
            unit="MB/s",
            rate=True,
            groups_each=_GROUPS_EACH,
        )
        for kind in KINDS
        for count in counts[1:]
    ]


def _together(workers: Sequence[Worker], kind: str, step: int) -> float:
    begin = time.perf_counter()
    for worker in workers:
        worker.begin(kind, step)
    for worker in workers:
        worker.end()
    return time.perf_counter() - begin
