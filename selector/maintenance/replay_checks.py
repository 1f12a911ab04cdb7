"""Whether a run's replay groups, samples, pushes and counters are as they were written, and fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from selector.config import ReplayConfig, RunConfig
from selector.maintenance.report import Check
from selector.replay.answers import decode_push_result
from selector.replay.checksum import crc32
from selector.replay.frozen import FrozenReplay
from selector.replay.history import SampleEvent
from selector.replay.plans import Eviction
from selector.replay.records import (
    RunMeta,
    decode_groups,
    decode_mark,
    decode_meta,
    decode_push,
    decode_sample,
    unsealed,
)
from selector.storage.runs import RunRow


@dataclass
class _Index:
    """Groups by position, as far as they could be decoded."""

    rows: dict[int, np.void] = field(default_factory=dict)
    identities: dict[int, tuple[str, str]] = field(default_factory=dict)


def check_replay(check: Check, replay: FrozenReplay, runs: Mapping[int, tuple[RunRow, RunConfig]]) -> None:
    """Every run of the store, and every run of the database."""
    stored = replay.runs()
    for number in stored:
        if number not in runs:
            check.note(f"replay/data.mdb: run number {number} is in no database; the next start removes it")
    for number, (row, config) in runs.items():
        if number in stored:
            _Checks(check, replay, row, config.replay).all()


class _Checks:
    """The checks of one run."""

    def __init__(self, check: Check, replay: FrozenReplay, row: RunRow, config: ReplayConfig) -> None:
        self._check = check
        self._replay = replay
        self._row = row
        self._config = config

    def all(self) -> None:
        meta = self._meta()
        if meta is None:
            return
        index = self._groups(meta)
        self._payloads(index)
        self._live(index)
        self._samples(index, meta)
        self._pushes(meta)
        self._marks(meta)

    def _problem(self, description: str) -> None:
        self._check.problem(f"replay/data.mdb: run {self._row.run_id}: {description}")

    def _meta(self) -> RunMeta | None:
        stored = self._replay.meta(self._row.id)
        if stored is None:
            self._problem("its counters are missing")
            return None
        try:
            meta = decode_meta(unsealed(stored))
        except Exception as error:  # whatever damaged bytes lead to
            self._problem(f"its counters cannot be decoded: {error!r}")
            return None
        if meta.rewind_epoch > self._row.rewind_epoch:
            self._problem(f"it was rewound {meta.rewind_epoch} times, the database says {self._row.rewind_epoch}")
        if meta.rewind_epoch < self._row.rewind_epoch:
            self._check.note(f"run {self._row.run_id}: a rewind was cut short; the next start finishes it")
        return meta

    def _groups(self, meta: RunMeta) -> _Index:
        index = _Index()
        sequence: set[int] = set()
        for position, value in self._replay.entries("groups", self._row.id):
            self._check.examined += 1
            try:
                rows, identities = decode_groups([unsealed(value)])
                row, identity = rows[0], identities[int(rows[0]["position"])]
            except Exception as error:  # whatever damaged bytes lead to
                self._problem(f"group at {position} cannot be decoded: {error!r}")
                continue
            wrong = _wrong_with(row, position, meta)
            number = int(row["seq"])
            if number >= 0 and number in sequence:
                wrong.append(f"its number {number} occurs twice")
            sequence.add(number)
            for description in wrong:
                self._problem(f"group at {position} ({identity[1]!r}): {description}")
            index.rows[position], index.identities[position] = row, identity
        return index

    def _payloads(self, index: _Index) -> None:
        found = set()
        for position, payload in self._replay.entries("payloads", self._row.id):
            found.add(position)
            row = index.rows.get(position)
            if row is None:
                self._problem(f"the payload at {position} belongs to no group")
            elif len(payload) != row["nbytes"] or crc32(payload) != row["checksum"]:
                prompt_id, group_id = index.identities[position]
                where = f"the payload of group {group_id!r} of prompt {prompt_id!r} at {position}"
                self._problem(f"{where} does not match its checksum")
        for position in sorted(index.rows.keys() - found):
            prompt_id, group_id = index.identities[position]
            self._problem(f"the payload of group {group_id!r} of prompt {prompt_id!r} at {position} is missing")

    def _live(self, index: _Index) -> None:
        live = [position for position, row in index.rows.items() if row["evicted_position"] < 0]
        if len(live) > self._config.capacity_groups:
            self._problem(f"{len(live)} groups are live, of at most {self._config.capacity_groups}")
        size = sum(int(index.rows[position]["nbytes"]) for position in live)
        if self._config.capacity_bytes and size > self._config.capacity_bytes:
            self._problem(f"live groups have {size} bytes, of at most {self._config.capacity_bytes}")
        groups = [index.identities[position][1] for position in live]
        if len(set(groups)) != len(groups):
            self._problem("two live groups have the same id")
        prompts = [index.identities[position][0] for position in live]
        if self._config.newest_per_prompt and len(set(prompts)) != len(prompts):
            self._problem("a prompt has two live groups")

    def _samples(self, index: _Index, meta: RunMeta) -> None:
        for step, value in self._replay.entries("samples", self._row.id):
            try:
                event = decode_sample(unsealed(value))
            except Exception as error:  # whatever damaged bytes lead to
                self._problem(f"the sample of step {step} cannot be decoded: {error!r}")
                continue
            for description in _wrong_with_sample(event, step, index, meta):
                self._problem(f"the sample of step {step}: {description}")

    def _pushes(self, meta: RunMeta) -> None:
        for position, value in self._replay.entries("pushes", self._row.id):
            try:
                event = decode_push(unsealed(value))
                decode_push_result(event.result)
            except Exception as error:  # whatever damaged bytes lead to
                self._problem(f"the push at {position} cannot be decoded: {error!r}")
                continue
            if event.position != position or position + event.groups >= meta.next_position:
                self._problem(f"the push at {position} says it is at {event.position}, with {event.groups} groups")

    def _marks(self, meta: RunMeta) -> None:
        last = -1
        for step, value in self._replay.entries("marks", self._row.id):
            try:
                mark = decode_mark(unsealed(value))
            except Exception as error:  # whatever damaged bytes lead to
                self._problem(f"the mark of step {step} cannot be decoded: {error!r}")
                continue
            if mark.step != step or not last < mark.position < meta.next_position or mark.next_seq > meta.next_seq:
                self._problem(f"the mark of step {step} makes no sense: {mark}")
            last = mark.position


def _wrong_with(row: np.void, position: int, meta: RunMeta) -> list[str]:
    wrong = []
    if row["position"] != position:
        wrong.append(f"it says it is at {row['position']}")
    if position >= meta.next_position or row["seq"] >= meta.next_seq:
        wrong.append("it lies beyond the end of the log")
    if row["eviction"] not in list(Eviction):
        wrong.append(f"its eviction is {row['eviction']}")
    elif (row["eviction"] == Eviction.LIVE) != (row["evicted_position"] < 0):
        wrong.append(f"it was evicted at {row['evicted_position']} by {Eviction(row['eviction']).name}")
    if row["pushed_step"] < row["policy_version"]:
        wrong.append(f"it was pushed at step {row['pushed_step']} with policy version {row['policy_version']}")
    return wrong


def _wrong_with_sample(event: SampleEvent, step: int, index: _Index, meta: RunMeta) -> list[str]:
    wrong = []
    if event.step != step or event.position >= meta.next_position:
        wrong.append(f"it says it is of step {event.step}, at {event.position}")
    if len(event.picks) > min(event.requested, event.eligible) or not 0 < event.probability <= 1:
        wrong.append(f"it took {len(event.picks)} of {event.eligible} groups with probability {event.probability}")
    if any(not 0 <= pick < event.position for pick in event.picks):
        wrong.append("it refers to groups that came later")
    # Groups leave for good only behind a gap, which ends where they left.
    if not any(low <= step <= high for low, high in meta.gaps):
        missing = [pick for pick in event.picks if pick not in index.rows]
        if missing:
            wrong.append(f"groups at {', '.join(map(str, missing[:5]))} are missing")
    return wrong
