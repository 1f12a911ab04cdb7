"""The experiment on learning: pairs, intervals, bounds, mixtures, and a command that goes on where it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.learning import seeds
from bench.learning.arms import ARMS
from bench.learning.jobs import Job
from bench.learning.mixtures import SETTINGS
from bench.learning.pictures import AXES, curves_picture, ratios_picture
from bench.learning.ratios import cost, interval
from bench.learning.records import Record, load, save
from bench.learning.report import report
from bench.learning.summary import foretelling, overall, summaries
from bench.learning.tuning import GRID, best, grid_jobs, load_tuned, save_tuned
from selector.config import resolve
from selector.picture_style import LIGHT
from selector.testbed.experiment import ExperimentConfig
from selector.testbed.grpo import GRPOConfig
from tests.testbed.runs import run_of

_ROOT = Path(__file__).parents[2]
SLOW = [0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5]
FAST = [0.2, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6]
NEVER = [0.2, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3]


def records(live: dict[str, float]) -> list[Record]:
    """Two seeds of arms, each with one live metric as given."""
    courses = {"uniform": SLOW, "default": FAST, "dots": NEVER, "beta": [0.2, *SLOW[:-1]], "refill": SLOW}
    return [
        Record("hard", "a", run_of(arm, course, seed), {"in_band_share": live.get(arm)})
        for arm, course in courses.items()
        for seed in (0, 1)
    ]


def test_seeds_for_tuning_are_never_reported() -> None:
    assert not set(seeds.tuning(100)) & set(seeds.reporting(100))
    with pytest.raises(ValueError, match="seeds: expected 1 to 100, got 101"):
        seeds.reporting(101)


def test_an_arm_is_held_against_uniform_with_the_same_seed() -> None:
    control = run_of("uniform", SLOW)
    found = cost(run_of("default", FAST), control)
    assert (found.reached, found.rollouts, found.steps) == (True, 3 / 5, 3 / 5)
    assert cost(control, control).rollouts == 1.0


def test_what_never_got_there_counts_with_all_that_it_rolled_out() -> None:
    found = cost(run_of("dots", NEVER), run_of("uniform", SLOW))
    assert (found.reached, found.rollouts) == (False, 6 / 5)


def test_the_cost_model_weighs_generating_and_training_alike() -> None:
    twice = run_of("uniform-twice", FAST)
    twice = replace(
        twice, evaluations=tuple(replace(e, trained_rollouts=2 * e.trained_rollouts) for e in twice.evaluations)
    )
    assert cost(twice, run_of("uniform", SLOW)).half_generation == pytest.approx((0.6 + 1.2) / 2)


def test_intervals_are_those_of_the_mean() -> None:
    values = list(np.random.default_rng(5).normal(0.7, 0.2, 400))
    found = interval(values)
    assert found.low is not None and found.high is not None
    # 1.96 standard errors of a mean of 400.
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 0.2 / 20, rel=0.15)
    assert found.low < found.mean < found.high
    assert interval(values) == found
    assert interval([0.5]).low is None


def test_the_report_says_where_a_mean_is_only_a_bound() -> None:
    found = summaries(records({}))
    dots = next(each for each in found if each.arm == "dots")
    assert (dots.seeds, dots.reached) == (2, 0)
    text = report(overall(records({})), found, [])
    assert "| dots | ≥ 1.20 [1.20, 1.20] | 0 of 2 |" in text
    assert "| default | 0.60 [0.60, 0.60] | 2 of 2 |" in text
    for picture in (ratios_picture(found, LIGHT), *(curves_picture(records({}), axis, LIGHT) for axis in AXES)):
        assert picture.startswith(b"\x89PNG")


def test_over_all_mixtures_every_seed_is_a_pair_of_its_own() -> None:
    hard = records({})
    easy = [replace(record, setting="easy", run=replace(record.run, seed=record.run.seed + 5)) for record in hard[:2]]
    # Faster than uniform on the one, and just as fast on the other.
    easy += [replace(each, run=replace(each.run, arm="default")) for each in easy]
    found = {each.arm: each for each in overall([*hard, *easy])}
    default = found["default"]
    assert (default.setting, default.seeds, default.reached) == ("all", 4, 4)
    assert default.rollouts.mean == pytest.approx((0.6 + 0.6 + 1.0 + 1.0) / 4)
    assert found["dots"].seeds == 2


def test_live_metrics_are_ranked_by_how_well_they_foretell() -> None:
    telling = {"uniform": 0.4, "default": 0.9, "dots": 0.1, "beta": 0.3, "refill": 0.45}
    found = {each.metric: each for each in foretelling(summaries(records(telling)))}
    assert list(found) == ["in_band_share"]
    assert found["in_band_share"].mean == pytest.approx(-0.975, abs=0.03)
    assert foretelling(summaries(records({"default": 0.9}))) == []


def test_the_mixtures_are_what_they_are_called() -> None:
    for setting in SETTINGS.values():
        sets = setting.prompts()
        assert (len(set(sets.training)), len(sets.held_out)) == (1024, 480)
        assert not set(sets.training) & set(sets.held_out)
        counted = Counter((prompt.task, prompt.level) for prompt in (*sets.training, *sets.held_out))
        assert sum(setting.mixture.values()) == pytest.approx(1.0)
        for cell, share in setting.mixture.items():
            assert abs(counted[cell] - share * 1504) < 1
    levels = {name: np.mean([p.level for p in setting.prompts().training]) for name, setting in SETTINGS.items()}
    assert levels["easy"] < levels["domains"] < levels["hard"]


def test_every_arm_has_a_configuration_of_its_own() -> None:
    names = [arm.name for arm in ARMS]
    assert len(set(names)) == len(names)
    jobs = {Job(arm, "hard", "a", 0, ExperimentConfig()).name.rsplit("-", 1)[1] for arm in ARMS}
    assert len(jobs) == len(ARMS)
    beta = resolve(next(arm for arm in ARMS if arm.name == "beta").config)
    assert (beta.estimator.name, beta.score_evaluation, beta.reference.uniform_share) == ("TRACKER", "THOMPSON", 0.0)


def test_a_job_changes_its_name_with_what_it_depends_on() -> None:
    job = Job(ARMS[0], "hard", "a", 0, ExperimentConfig())
    others = [
        replace(job, setting="easy"),
        replace(job, base="b"),
        replace(job, seed=1),
        replace(job, experiment=ExperimentConfig(steps=61)),
        replace(job, experiment=ExperimentConfig(grpo=GRPOConfig(learning_rate=1e-3))),
        replace(job, arm=replace(ARMS[0], config={"preset": "UNIFORM", "lease_steps": 9})),
    ]
    assert len({each.name for each in (job, *others)}) == 7
    assert replace(job, arm=replace(ARMS[0], description="Other words.")).name == job.name


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    record = records({"uniform": 0.25})[0]
    save(record, tmp_path / "x.json")
    found = load(tmp_path / "x.json")
    assert found.run.evaluations == record.run.evaluations
    assert (found.live, found.run.final_accuracy) == (record.live, record.run.final_accuracy)


def test_tuning_takes_what_uniform_ends_best_with(tmp_path: Path) -> None:
    jobs = grid_jobs(60, seeds.tuning(2))
    assert len(jobs) == 2 * 6 * len(GRID)
    fine = GRID[3]
    found = [
        Record(job.setting, job.base, run_of("uniform", FAST if job.experiment.grpo == fine else SLOW, job.seed), {})
        for job in jobs
    ]
    chosen = best(jobs, found)
    save_tuned(chosen, tmp_path / "tuned.json")
    tuned = load_tuned(tmp_path / "tuned.json")
    assert tuned == {(name, base): fine for name, setting in SETTINGS.items() for base in setting.bases}


def test_every_mixture_and_base_is_tuned() -> None:
    tuned = load_tuned()
    assert set(tuned) == {(name, base) for name, setting in SETTINGS.items() for base in setting.bases}
    assert set(tuned.values()) <= set(GRID)


@pytest.mark.slow
def test_the_command_reports_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    report_path = tmp_path / "figures.json"
    command = [
        *(sys.executable, "-m", "bench.learning", "run", "--on-tuning-seeds", "--seeds", "1", "--steps", "4"),
        *("--settings", "domains", "--bases", "a"),
        *("--workers", "2", "--output", str(tmp_path / "out"), "--json", str(report_path)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    results = tmp_path / "out" / "results"
    begun = subprocess.Popen(command, cwd=_ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    while begun.poll() is None and not list(results.glob("*.json")):
        time.sleep(0.2)
    begun.send_signal(signal.SIGTERM)
    _, errors = begun.communicate(timeout=300)
    assert begun.returncode == 1 and "the same command goes on" in errors
    kept = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    # Those in the workers' hands and queue were finished, no more.
    assert 1 <= len(kept) < len(ARMS)
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    figures = json.loads(report_path.read_text(encoding="utf-8"))
    run_of_arm = {run["arm"]: run for run in figures["runs"]}
    assert list(run_of_arm) == [arm.name for arm in ARMS]
    assert run_of_arm["default"]["rollouts"] == 4 * 512 < run_of_arm["refill"]["rollouts"]
    for name in ("report.md", "ratios.png", "accuracy-rollouts.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0
