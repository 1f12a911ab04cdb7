"""Restart, kill, rewind and fork: a run goes on exactly as one that was never interrupted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clients import SelectorClient
from tests.service.running import InProcessService, ServiceProcess
from tests.service.trainer import (
    Trainer,
    contents,
    group_contents,
    group_of,
    noise,
    outcomes_of,
    prediction_contents,
    prompts,
)

POOL, BATCH, REFERENCES = 20, 4, 6
# The steps of every run, and the step at which it is interrupted, forked or rewound to.
LAST, CUT = 8, 4

MODES: Mapping[str, Mapping[str, Any]] = {
    "IN_BATCH": {"mode": "IN_BATCH", "fraction": 0.3},
    "DEDICATED": {"mode": "DEDICATED", "size": REFERENCES, "every_steps": 2},
    "NONE": {"mode": "NONE"},
}
SCORES = ("LEARNABLE", "INFORMATIVE", "NEAR_TARGET", "UNIFORM")
REPLAY: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "few": {"capacity_groups": 5},
    "small": {"capacity_bytes": 700},
    "young": {"max_age_steps": 1},
    "used-up": {"max_uses": 2},
    "everything": {"informative_only": False, "newest_per_prompt": False, "capacity_groups": 9},
    "mostly-replay": {"fresh_fraction": 0.25, "max_age_steps": 3, "max_uses": 3},
}


def begin(client: SelectorClient, config: Mapping[str, Any]) -> SelectorClient:
    client.create_run({"seed": 7, "cool_down_steps": 2, **config})
    random = noise("pool")
    client.register_prompts(
        prompts(POOL),
        texts=[f"What is {i} times {i * i}?" for i in range(POOL)],
        embeddings=random.normal(size=(POOL, 6)),
        domains=[("algebra", "geometry", None)[i % 3] for i in range(POOL)],
        priors=[(float(random.random()), 8) if i % 2 else None for i in range(POOL)],
    )
    return client


def ending(client: SelectorClient) -> list[object]:
    """What a run shows of itself, but for its name and age."""
    run = client.get_run()
    explained = client.explain("p003")
    return [
        prediction_contents(client.predict_difficulty()),
        client.quality(),
        run.pool,
        (run.last_step, run.selections, run.outcome_groups, run.outcome_rollouts, run.replay_groups, run.replay_bytes),
        run.reference_due,
        [(record.step, record.arm, record.probability) for record in explained.selections],
        [(record.step, record.arm, record.difficulty) for record in explained.outcomes],
        (explained.references, explained.score_rank, explained.not_selected_because),
    ]


def check_against_a_twin(service: InProcessService, configs: Mapping[str, Mapping[str, Any]], **habits: Any) -> None:
    """Every config: a run that is restarted, forked, and rewound twice, against its twin that runs through."""

    def trainer(run_id: str, salt: str = "") -> Trainer:
        dedicated = configs[run_id.partition("/")[0]].get("reference", {}).get("mode") == "DEDICATED"
        client = service.client(run_id.replace("/", "."))
        return Trainer(client, BATCH, salt, references=REFERENCES if dedicated else 0, **habits)

    begun = {}
    for name, config in configs.items():
        run = trainer(name)
        begin(run.client, config)
        begun[name] = run.steps(0, CUT)
    service.restart()
    for name, config in configs.items():
        run, twin = trainer(name), trainer(f"{name}/twin")
        begin(twin.client, config)
        expected = twin.steps(0, LAST)
        last = ending(twin.client)
        assert begun[name] == expected[:CUT], name
        assert run.steps(CUT, LAST) == expected[CUT:], name
        assert ending(run.client) == last, name

        run.client.fork(f"{name}.fork", CUT)
        fork = trainer(f"{name}/fork")
        assert fork.steps(CUT, LAST) == expected[CUT:], name
        assert ending(fork.client) == last, name

        rewound = run.client.rewind(CUT)
        assert rewound.dropped_reports >= LAST - CUT, name
        elsewhere = trainer(name, salt="another world")
        assert elsewhere.steps(CUT, LAST) != expected[CUT:], name
        run.client.rewind(CUT)
        assert run.steps(CUT, LAST) == expected[CUT:], name
        assert ending(run.client) == last, name
        # The fork has a life of its own.
        assert ending(fork.client) == last, name


_ESTIMATORS = ("FUSED", "ATTENTION", "TRACKER")
_ALL = list(itertools.product(range(len(SCORES)), range(len(MODES))))


@pytest.mark.parametrize("estimator", _ESTIMATORS)
@pytest.mark.parametrize(
    "pairs",
    [
        # With every estimator each score and each mode once; the whole product takes three times as long.
        pytest.param([(i, i % len(MODES)) for i in range(len(SCORES))], id="each"),
        pytest.param(_ALL, id="product", marks=pytest.mark.slow),
    ],
)
def test_every_estimator_score_and_reference_mode_goes_on_as_its_twin(
    own_service: InProcessService, estimator: str, pairs: list[tuple[int, int]]
) -> None:
    shift = _ESTIMATORS.index(estimator)
    configs: dict[str, dict[str, Any]] = {}
    for score, mode in pairs:
        name = list(MODES)[(mode + shift) % len(MODES)]
        config = {"estimator": {"name": estimator}, "score": SCORES[score], "reference": MODES[name]}
        configs[f"{SCORES[score]}-{name}"] = config
    check_against_a_twin(own_service, configs, signals=estimator == "FUSED")


@pytest.mark.parametrize(
    "policies",
    [pytest.param(list(REPLAY)[:2], id="some"), pytest.param(list(REPLAY), id="every", marks=pytest.mark.slow)],
)
def test_replay_policies_go_on_as_their_twins(own_service: InProcessService, policies: Sequence[str]) -> None:
    """Sampled groups, their ages, uses and probabilities, and how much of a batch is replayed."""
    check_against_a_twin(own_service, {name: {"replay": REPLAY[name]} for name in policies}, replays=True)


@pytest.mark.slow
def test_draws_from_the_posterior_review_and_staged_rounds_go_on_as_their_twin(own_service: InProcessService) -> None:
    configs: dict[str, dict[str, Any]] = {
        "thompson": {"score_evaluation": "THOMPSON"},
        "review": {"max_unselected_steps": 2, "review_fraction": 0.5},
        "strict": {"strict_cool_down": True, "cool_down_steps": 4},
        "leases": {"cool_down_steps": 0, "lease_steps": 0},
        "paper": {"preset": "PAPER", "reference": MODES["DEDICATED"], "cool_down_steps": 0},
    }
    check_against_a_twin(own_service, configs, replays=True)


_Call = Callable[[SelectorClient], object]


def _calls(steps: int) -> list[_Call]:
    """Every call of some steps: rounds, reports that are late, pushes and samples; each says what it was answered."""
    calls: list[_Call] = []
    waiting: dict[tuple[int, int], tuple[str, ...]] = {}

    def select(client: SelectorClient, step: int, round_: int) -> object:
        selection = client.select_batch(step, BATCH // (1 + round_), round=round_)
        waiting[step, round_] = selection.prompt_ids
        return contents(selection)

    def report(client: SelectorClient, step: int, round_: int, part: slice) -> object:
        ids = waiting[step, round_][part]
        return client.report_outcomes(step, outcomes_of(ids, step)) if ids else None

    def push(client: SelectorClient, step: int) -> object:
        return client.push_rollouts(step, [group_of(prompt_id, step) for prompt_id in waiting[step, 0]])

    def sample(client: SelectorClient, step: int) -> object:
        return [group_contents(group) for group in client.sample_rollouts(step, 3)]

    def signal(client: SelectorClient, step: int) -> object:
        return client.report_training(step, signals={"entropy": {"p001": float(step)}})

    for step in range(steps):
        calls += [
            partial(select, step=step, round_=0),
            partial(report, step=step, round_=0, part=slice(0, 3)),
            partial(select, step=step, round_=1),
            partial(push, step=step),
            partial(report, step=step, round_=1, part=slice(None)),
            partial(sample, step=step),
        ]
        if step > 0:
            # The rest of the previous step comes late.
            calls.append(partial(report, step=step - 1, round_=0, part=slice(3, None)))
        calls += [partial(signal, step=step), lambda client: prediction_contents(client.predict_difficulty())]
    return calls


def test_a_restart_between_any_two_calls_changes_nothing(own_service: InProcessService) -> None:
    calls = _calls(3)
    begin(own_service.client("through"), {})
    begin(own_service.client("restarted"), {})
    through = [call(own_service.client("through")) for call in calls]
    restarted = []
    for call in _calls(3):
        own_service.restart()
        restarted.append(call(own_service.client("restarted")))
    assert restarted == through
    # Asked again, the first of them is still answered as it was.
    assert contents(own_service.client("restarted").select_batch(0, BATCH)) == through[0]


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_kill_between_calls_changes_nothing(own_service: InProcessService, tmp_path: Path, kills: int) -> None:
    """kill -9 gives no chance to save anything: what was acknowledged must be durable by itself."""
    client = begin(own_service.client("run"), {})
    expected = [call(client) for call in _calls(3)]
    calls = _calls(3)
    moments = {len(calls) * (i + 1) // (kills + 1) for i in range(kills)}
    process = ServiceProcess(tmp_path / "killed")
    try:
        begin(process.client("run"), {})
        answers = []
        for i, call in enumerate(calls):
            if i in moments:
                process.kill()
                process = ServiceProcess(tmp_path / "killed")
            with process.client("run") as client:
                answers.append(call(client))
        assert answers == expected
        with process.client("run") as client:
            assert ending(client) == ending(own_service.client("run"))
    finally:
        process.kill()


def test_a_rewind_to_before_anything_starts_the_run_over(own_service: InProcessService) -> None:
    """Rewinding to step 0 leaves the pool and nothing else; the run then repeats itself."""
    trainer = Trainer(begin(own_service.client("over"), {}), BATCH, replays=True)
    first = trainer.steps(0, 4)
    trainer.client.rewind(0)
    run = trainer.client.get_run()
    assert (run.last_step, run.selections, run.outcome_groups, run.replay_groups) == (-1, 0, 0, 0)
    assert (run.pool.registered, run.pool.selected, run.pool.leased) == (POOL, 0, 0)
    assert trainer.steps(0, 4) == first
    # Going back to where the run already is changes nothing.
    nothing = trainer.client.rewind(4)
    assert (nothing.dropped_selections, nothing.dropped_reports, nothing.dropped_replay_groups) == (0, 0, 0)
    trainer.client.rewind(0)
    own_service.restart()
    assert Trainer(own_service.client("over"), BATCH, replays=True).steps(0, 4) == first


def test_what_belongs_to_no_step_survives_a_rewind(own_service: InProcessService) -> None:
    """Prompts registered, retired or replaced since are still so: the data set is not part of a checkpoint."""
    client = begin(own_service.client("pool"), {"cool_down_steps": 0, "lease_steps": 0})
    trainer = Trainer(client, BATCH)
    trainer.steps(0, 3)
    random = noise("later")
    client.register_prompts(prompts(3, "new"), embeddings=random.normal(size=(3, 6)))
    client.retire_prompts(["p000"])
    client.register_prompts(["p001"], embeddings=random.normal(size=(1, 6)), replace=True)
    trainer.steps(3, 5)
    client.rewind(2)
    pool = client.get_run().pool
    assert (pool.registered, pool.retired, pool.replaced) == (POOL + 3, 1, 1)
    predictions = client.predict_difficulty(["p001"])
    assert predictions.own_weights[0] == 0.0
    batch = client.select_batch(2, POOL + 3)
    assert set(batch.prompt_ids) == {*prompts(POOL)[1:], *prompts(3, "new")}


def test_request_ids_of_dropped_steps_can_be_used_again(own_service: InProcessService) -> None:
    """A trainer that derives request ids from its steps sends them anew after a rewind, with other content."""
    client = begin(own_service.client("ids"), {})
    for step in range(3):
        batch = client.select_batch(step, BATCH, request_id=f"select-{step}")
        client.report_outcomes(step, outcomes_of(batch.prompt_ids, step), request_id=f"report-{step}")
        client.push_rollouts(step, [group_of(p, step) for p in batch.prompt_ids], request_id=f"push-{step}")
    client.rewind(1)
    for step in range(1, 3):
        batch = client.select_batch(step, BATCH, fresh_only=True, request_id=f"select-{step}")
        answer = client.report_outcomes(step, outcomes_of(batch.prompt_ids, step, "b"), request_id=f"report-{step}")
        assert not answer.already_applied and answer.applied_groups == len(batch)
        groups = [group_of(p, step, salt="b") for p in batch.prompt_ids]
        pushed = client.push_rollouts(step, groups, request_id=f"push-{step}")
        assert not pushed.already_applied and pushed.stored == len(batch)
    repeated = client.report_outcomes(0, outcomes_of(_selected(client, 0), 0), request_id="report-0")
    assert repeated.already_applied


def _selected(client: SelectorClient, step: int) -> tuple[str, ...]:
    return client.select_batch(step, BATCH).prompt_ids
