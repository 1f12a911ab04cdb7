"""Ours beside the other stores: pushes and samples of a step's groups, in turns."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from bench.performance.figures import Figure
from bench.performance.replay.content import group_bytes
from bench.performance.replay.processes import file_bytes, memory_bytes
from bench.performance.replay.serving import REWIND_STEPS, Settings
from bench.performance.replay.worker import Spent, Worker, environment_of
from bench.performance.turns import compared

OURS = "ours"
_WIRE = "wire"
# Ways to reach ours, by name of the worker.
_WAYS = {OURS: "same host", _WIRE: "over the wire"}
KINDS = ("push", "sample")
# As many steps as ours keeps for a rewind, and a few to be sure.
_KEPT_STEPS = REWIND_STEPS + 4
_MEMORY = "memory of the server per payload byte stored"
_MEMORY_MUST = 1.3


@dataclass(frozen=True)
class Peer:
    """What ours is compared with.

    Attributes:
        store: module of ``stores``.
        environment: list of ``scripts/peers`` that it needs; empty = none beyond the service's own.
        option: of the store.
        must: ratio to be reached, of push and sample; None = none was set.
    """

    store: str
    environment: str = ""
    option: str = ""
    must: tuple[float | None, float | None] = (None, None)


PEERS = {
    "reverb": Peer("reverb", "reverb", must=(2.0, 3.0)),
    "transferqueue": Peer("transferqueue", "transferqueue", must=(2.0, 3.0)),
    "redis": Peer("redis", "redis", "volatile"),
    "redis-aof": Peer("redis", "redis", "always", must=(3.0, None)),
    "ray": Peer("ray", "ray"),
    "fields": Peer("fields"),
    "tcp": Peer("tcp"),
}


def beside(peers: Mapping[str, Peer], settings: Settings, rounds: int, warm_up: int) -> list[Figure]:
    """Figures of ours against each peer, and what ours takes by itself."""
    with ExitStack() as open_workers:
        workers: dict[str, Worker] = {}
        for name, peer in {OURS: Peer(OURS), _WIRE: Peer(OURS, option=_WIRE), **peers}.items():
            python = environment_of(peer.environment) if peer.environment else sys.executable
            own = replace(settings, folder=settings.folder / name, option=peer.option)
            workers[name] = Worker(peer.store, own, python)
            open_workers.callback(workers[name].close)
        steps = settings.stored // settings.groups
        memory, growing = {}, []
        for name, worker in workers.items():
            before = memory_bytes(worker.servers)
            filling = [worker.push(step) for step in range(steps)]
            memory[name] = {kind: size - before[kind] for kind, size in memory_bytes(worker.servers).items()}
            # Until groups have left that no rewind brings back, the file of ours grows.
            again = [worker.push(step) for step in range(steps, steps + _KEPT_STEPS)]
            if name == OURS:
                growing = filling + again
        steps += _KEPT_STEPS
        spent = _in_turns(workers, steps, rounds, warm_up)
        ours = workers[OURS]
        figures = []
        for kind, position in zip(KINDS, range(2), strict=True):
            figures += [
                _compared(kind, settings, spent[kind], (way, name), workers[name].name, peer.must[position])
                for name, peer in peers.items()
                for way in _WAYS
            ]
            figures.append(_compared(kind, settings, spent[kind], (OURS, _WIRE), f"ours, {_WAYS[_WIRE]}", None))
        figures += [
            _alone(f"{kind}, median, {words}", spent[kind][way]) for kind in KINDS for way, words in _WAYS.items()
        ]
        figures.append(_alone("push while the file grows, median", growing[1:]))
        kept = settings.stored * group_bytes(settings.tokens)
        files = file_bytes(settings.folder / OURS / "state" / "replay")
        later = memory_bytes(ours.servers)
    for name, grown in memory.items():
        # A store that took its memory when it started has hardly grown.
        if name not in _WAYS and grown["all"] > kept // 100:
            figures.append(
                Figure(
                    _MEMORY,
                    grown["all"] / kept,
                    memory[OURS]["all"] / kept,
                    grown["all"] / memory[OURS]["all"],
                    "bytes",
                    workers[name].name,
                )
            )
    figures.append(
        Figure(
            _MEMORY,
            None,
            memory[OURS]["all"] / kept,
            None,
            "bytes",
            must=_MEMORY_MUST,
            detail={"payload bytes": kept, "grown by": memory[OURS], "after the rounds": later},
        )
    )
    on_disk = kept + REWIND_STEPS * settings.groups * group_bytes(settings.tokens)
    figures.append(
        Figure(
            "file of the server per payload byte stored",
            None,
            files / on_disk,
            None,
            "bytes",
            must=_MEMORY_MUST,
            detail={"payload bytes, with those kept for rewinds": on_disk, "file bytes": files},
        )
    )
    return figures


def _in_turns(workers: Mapping[str, Worker], step: int, rounds: int, warm_up: int) -> dict[str, dict[str, list[Spent]]]:
    """What each round took, by kind and store; in every round the order is another."""
    random = np.random.default_rng(0)
    spent: dict[str, dict[str, list[Spent]]] = {kind: {name: [] for name in workers} for kind in KINDS}
    names = list(workers)
    for number in range(warm_up + rounds):
        for kind in KINDS:
            random.shuffle(names)
            for name in names:
                took = getattr(workers[name], kind)(step + number)
                if number >= warm_up:
                    spent[kind][name].append(took)
    return spent


def _compared(
    kind: str,
    settings: Settings,
    spent: Mapping[str, list[Spent]],
    names: tuple[str, str],
    against: str,
    must: float | None,
) -> Figure:
    """One way to reach ours against a peer; ``names`` of the workers."""
    size = settings.groups * group_bytes(settings.tokens)
    ours, baseline = (spent[name] for name in names)
    return compared(
        f"{kind}, {size / 2**20:.4g} MiB, {_WAYS[names[0]]}",
        [each.seconds for each in baseline],
        [each.seconds for each in ours],
        against,
        work=size / 1e6,
        unit="MB/s",
        rate=True,
        must=must,
        seconds={"baseline": _median(baseline), "ours": _median(ours)},
        cpu_seconds={"baseline": _cpu(baseline), "ours": _cpu(ours)},
    )


def _alone(name: str, spent: list[Spent]) -> Figure:
    return Figure(name, None, _median(spent), None, "s", detail={"cpu seconds": _cpu(spent)})


def _median(spent: list[Spent]) -> float:
    return statistics.median(each.seconds for each in spent)


def _cpu(spent: list[Spent]) -> dict[str, float]:
    """Means, since ticks are coarse."""
    return {
        "client": statistics.fmean(each.client for each in spent),
        "server": statistics.fmean(each.server for each in spent),
    }
