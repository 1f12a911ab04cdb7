"""A run of the service and its model: both are asked the same and must answer the same, bit for bit.

The model (``tests.resume.model``) runs in this process and is neither restarted nor rewound. What is compared:

    every answer      its bytes, or the named reason of the refusal
    a look            GetRun, the prediction of the whole pool, the figures of quality, the whole history of selections
                      and outcomes, and some prompts explained

Selections are given so much time that none is answered from an older estimate (``degraded``).
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from selector.replay.plans import Eviction
from tests.resume import calls
from tests.resume.engine import Engine
from tests.resume.model import Model
from tests.resume.operations import Answer, Operation
from tests.resume.sites import LocalSite, Site
from tests.service.trainer import noise

NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Batch:
    """A selection as the trainer remembers it: who has not been reported yet."""

    step: int
    reference: bool
    waiting: tuple[str, ...]


def _optional(**choices: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields, with one of their values."""
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in choices.items()})


_REFERENCES = [
    {"mode": "IN_BATCH", "fraction": 0.3},
    {"mode": "DEDICATED", "size": 6, "every_steps": 2},
    {"mode": "NONE"},
]

CONFIGS = st.fixed_dictionaries(
    {
        "estimator": st.sampled_from([{"name": name} for name in ("FUSED", "ATTENTION", "TRACKER")]),
        "score": st.sampled_from(["LEARNABLE", "INFORMATIVE", "NEAR_TARGET", "UNIFORM"]),
        "reference": st.sampled_from(_REFERENCES),
        "seed": st.integers(0, 3),
        "replay": _optional(
            fresh_fraction=[0.25, 0.5, 1.0],
            capacity_groups=[3, 5, 9],
            capacity_bytes=[600, 1200],
            max_age_steps=[1, 2, 4],
            max_uses=[1, 2, 3],
            min_effective_sample_size=[0.5],
            informative_only=[False],
            newest_per_prompt=[False],
        ),
    },
    optional={
        "preset": st.sampled_from(["PAPER", "UNIFORM"]),
        "score_evaluation": st.just("THOMPSON"),
        "cool_down_steps": st.sampled_from([1, 2, 4]),
        "strict_cool_down": st.just(True),
        "lease_steps": st.sampled_from([0, 1, 3]),
        "max_unselected_steps": st.sampled_from([2, 4]),
        "max_prompt_tokens": st.just(30),
    },
)


def _consistent(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what its other values contradict."""
    config = {name: value for name, value in config.items() if value != {}}
    if "strict_cool_down" in config:
        config.setdefault("cool_down_steps", 2)
    return config


class Comparison(RuleBasedStateMachine):
    """One run of the service beside its model; the rules are in the subclasses."""

    make_site: Callable[[Path, int], Site] = LocalSite
    # Steps that a fork is followed for.
    ahead = 20
    # Calls between two interruptions, at least.
    patience = 2
    # Over all machines of the process.
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(
        values=CONFIGS,
        prompts=st.sampled_from([5, 8, 12, 20]),
        embedded=st.booleans(),
        window=st.sampled_from([100, 3]),
    )
    def begin(self, values: dict[str, Any], prompts: int, embedded: bool, window: int) -> None:
        fast = Path("/dev/shm")
        self.path = Path(tempfile.mkdtemp(dir=fast if fast.is_dir() else None))
        self.site = type(self).make_site(self.path / "service", window)
        self.engine = Engine(self.path / "reference")
        self.run_id = "run"
        config = calls.config_of(_consistent(values))
        self.embedded = embedded or values["estimator"]["name"] == "ATTENTION"
        self.model = Model(self.engine, config)
        created = self.site.call(calls.create(self.run_id, config))
        assert not created.reason, created
        self.step = 0
        self.ids: list[str] = []
        # What the text and embedding of each prompt follow from.
        self.salts: dict[str, object] = {}
        # Selections whose outcomes have not all been reported.
        self.open: list[Batch] = []
        # Ids of calls that a rewind has taken back: they are free again.
        self.dropped_ids: list[str] = []
        self.evicted = False
        # Calls since the last interruption, and since the last look.
        self.undisturbed = self.unseen = 0
        # The largest step of the replay log, whatever was rewound since: what was forgotten then stays so.
        self.reached = -1
        # Of the latest whole step.
        self.answers: list[Answer] = []
        self.saw(f"estimator {values['estimator']['name']}")
        self.saw(f"score {values['score']}")
        self.saw(f"reference {values['reference']['mode']}")
        for name in values["replay"]:
            self.saw(f"replay {name}")
        self.add([f"p{i}" for i in range(prompts)])

    def teardown(self) -> None:
        if hasattr(self, "site"):
            self.site.close()
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.path)

    def saw(self, kind: str, times: int = 1) -> None:
        self.counts[kind] += times

    def do(self, operation: Operation) -> Answer:
        """Both sides do it and answer alike."""
        return self.compare(operation, self.site.call(operation))

    def compare(self, operation: Operation, got: Answer) -> Answer:
        """The model does what the service has answered, and answers alike."""
        entries = len(self.model.log)
        expected = self.model.apply(operation)
        assert got == expected, f"{operation}:\nservice {got}\nmodel   {expected}"
        self.reached = max(self.reached, self.model.run.replay.buffer.log.step)
        self.undisturbed += 1
        self.unseen += 1
        self.answers.append(got)
        self.saw(operation.rpc)
        self.saw("operations")
        if got.reason:
            self.saw(f"refused {got.reason}")
        elif len(self.model.log) == entries and operation.step is not None:
            self.saw(f"{operation.rpc} that changes nothing")
        return got

    def look(self, run_id: str, model: Model, explained: Iterable[str] = ()) -> None:
        """Both sides show the same of a run."""
        self.unseen = 0
        for operation in calls.looks(run_id, explained):
            got, expected = self.site.call(operation), model.look(operation)
            assert got == expected, f"{operation}:\nservice {got}\nmodel   {expected}"
            self.saw("operations")
            self.saw(operation.rpc)

    def some(self, of: Sequence[str], count: int, *key: object) -> list[str]:
        """Some of the prompts, in an order that follows from the key."""
        return [of[i] for i in noise(*key).permutation(len(of))[:count].tolist()]

    def select(self, step: int, size: int, **fields: Any) -> Answer:
        answer = self.do(calls.select(self.run_id, step, size, **fields))
        if not answer.reason and answer.message.prompt_ids:
            waiting = tuple(answer.message.prompt_ids)
            self.open.append(Batch(step, fields.get("reference", False), waiting))
        if not answer.reason and answer.message.shortfall:
            self.saw("shortfall")
        return answer

    def report(self, step: int, ids: Sequence[str], **fields: Any) -> Answer:
        answer = self.do(calls.report(self.run_id, step, ids, **fields))
        if not answer.reason:
            reference = fields.get("reference", False)
            self.open = [
                Batch(b.step, b.reference, tuple(p for p in b.waiting if p not in ids or b.reference != reference))
                for b in self.open
            ]
            self.open = [batch for batch in self.open if batch.waiting]
        return answer

    def push(self, step: int, groups: Sequence[tuple[str, int, str]], **fields: Any) -> Answer:
        answer = self.do(calls.push(self.run_id, step, groups, **fields))
        rows = self.model.run.replay.buffer.rows
        if (rows["eviction"] != Eviction.LIVE).any():
            self.evicted = True
        return answer

    def add(self, ids: Sequence[str], **fields: Any) -> Answer:
        """Register prompts; ``said``: known ones as they are, but for what is said about them."""
        salt, said = fields.pop("salt", ""), fields.pop("said", None)
        salts = dict.fromkeys(ids, salt) if said is None else {p: self.salts[p] for p in ids}
        prompts = [calls.prompt(prompt_id, self.embedded, salts[prompt_id], said) for prompt_id in ids]
        answer = self.do(calls.register(self.run_id, prompts, **fields))
        if not answer.reason:
            self.salts.update(salts)
            self.ids += [prompt_id for prompt_id in ids if prompt_id not in self.ids]
        return answer

    def forgotten(self, step: int) -> bool:
        """Whether the service may have deleted groups that a rewind to this step would bring back."""
        return step <= self.reached - self.site.window

    def new_id(self) -> str:
        return f"id-{next(NUMBERS)}"

    def free_id(self) -> str:
        """An id of a call that was taken back, or a new one."""
        if self.dropped_ids:
            self.saw("id of a dropped call used again")
            return self.dropped_ids.pop()
        return self.new_id()
