"""The soak: 64 trainers and every kind of rogue against one service, and what has to hold meanwhile and afterwards.

- A well-behaved trainer sees no error at all; a rogue sees the documented ones.
- Every report that was acknowledged is in its run's history exactly once, with its outcomes, and nothing else is;
  replayed groups are as they were pushed; runs hold the prompts that were registered.
- Memory, descriptors and threads do not grow once everybody is at work.
- The service answers health checks and scrapes throughout, logs no error, and stops with exit code 0.

``python -m tests.load.soak --minutes 10 [--json FILE]``; exit code 0 if all of it held.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients import SelectorClient
from selector.cli.output_file import output_file
from tests.load.rogues import ALLOWED
from tests.load.start import Worker
from tests.load.tally import OK, Tally
from tests.load.trainers import PROMPTS, Place, sent_outcomes
from tests.load.watch import Watch
from tests.service.running import ServiceProcess

TRAINERS = 64
_PROCESSES = 2
_ROGUES = 2

# The longest that a caller of any kind waits for one answer, and some more.
_LAST_CALLS_S = 120.0

# Low enough that rogues meet them; the service's own defaults take machines to reach.
_SERVICE = (
    "--log-level=warning",
    "--max-message-bytes=4194304",
    "--max-streams=100",
    "--max-calls=200",
    "--stream-idle-s=5",
    "--keepalive-s=5",
    "--rewind-window-steps=10",
)

# What may be added from the first quarter after the warm-up to the last, in MiB and in numbers.
_MEMORY_GROWTH_MIB = 64.0
_DESCRIPTOR_GROWTH = 60
_THREAD_GROWTH = 8


@dataclass
class Outcome:
    """What the soak found; it held if nothing is ``wrong``.

    Attributes:
        memory: (minutes, MiB) each half minute.
    """

    tally: Tally = field(default_factory=Tally)
    rogues: Tally = field(default_factory=Tally)
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, tuple[float, str]] = field(default_factory=dict)
    memory: list[tuple[float, float]] = field(default_factory=list)


def soak(minutes: float, trainers: int = TRAINERS, rogues: int = _ROGUES) -> Outcome:
    """Run it; takes a little longer than ``minutes``."""
    outcome = Outcome()
    seconds = minutes * 60
    with tempfile.TemporaryDirectory(prefix="selector-soak-") as directory:
        service = ServiceProcess(Path(directory) / "state", *_SERVICE)
        try:
            journals, watch = _load(service, trainers, rogues, seconds, outcome)
            _check_endings(outcome)
            _check_data(service.address, journals, outcome)
            _check_idle(service.metrics_address, outcome)
            _check_watch(watch, warm_up_s=seconds * 0.25, outcome=outcome)
        finally:
            code = service.terminate()
    if code != 0:
        outcome.wrong.append(f"the service ended with exit code {code}")
    logged = [line for line in service.stderr if " ERROR " in line or "Traceback" in line]
    outcome.wrong += [f"the service logged: {line.strip()}" for line in logged[:5]]
    return outcome


def _load(
    service: ServiceProcess, trainers: int, rogues: int, seconds: float, outcome: Outcome
) -> tuple[list[dict[str, Any]], Watch]:
    """Everybody at work until the time is over, which counts from when all are prepared; the trainers' journals."""
    share, address = trainers // _PROCESSES, service.address
    victims = sorted({Place(index).run_id for index in range(trainers)})
    working = [
        Worker("trainers", f"--address={address}", f"--first={n * share}", f"--count={share}")
        for n in range(_PROCESSES)
    ]
    disturbing = Worker("rogues", f"--address={address}", f"--count={rogues}", f"--victims={','.join(victims)}")
    workers = [*working, disturbing]
    try:
        watch = Watch(service.process.pid, address, service.metrics_address, max(seconds / 600, 0.25))
        try:
            for worker in workers:
                worker.prepared()
            watch.begin()
            until = time.time() + seconds
            for worker in workers:
                worker.begin(until)
            *trained, disturbed = [worker.result(max(until - time.time(), 0.0) + _LAST_CALLS_S) for worker in workers]
        finally:
            watch.stop()
    finally:
        for worker in workers:
            worker.end()
    journals = []
    for found in trained:
        outcome.tally.add(found["tally"])
        journals += found["journals"]
    outcome.rogues.add(disturbed["tally"])
    outcome.wrong += [f"a rogue failed: {failure} ({n} times)" for failure, n in disturbed["failed"].items()]
    return journals, watch


def _check_endings(outcome: Outcome) -> None:
    for rpc, endings in outcome.tally.endings.items():
        outcome.wrong += [f"{rpc} of a trainer ended with {e} ({n} times)" for e, n in endings.items() if e != OK]
    for kind, endings in outcome.rogues.endings.items():
        for ending, count in endings.items():
            if ending not in ALLOWED[kind]:
                outcome.wrong.append(f"a rogue ({kind}) was answered {ending} ({count} times)")
    outcome.wrong += [f"no rogue did {kind}" for kind in ALLOWED if not outcome.rogues.endings[kind]]


def _check_data(address: str, journals: Iterable[dict[str, Any]], outcome: Outcome) -> None:
    """Everything acknowledged is there once, and nothing else."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for journal in journals:
        runs.setdefault(journal["run_id"], []).append(journal)
        outcome.wrong += [f"{journal['run_id']}: {what}" for what in journal["wrong"]]
        if journal["failed"]:
            outcome.wrong.append(f"a trainer of {journal['run_id']} failed: {journal['failed']}")
    reports = 0
    with SelectorClient(address, "any", timeout_s=120.0) as client:
        listed = {run.run_id for run in client.list_runs()}
    for run_id, found in runs.items():
        if run_id not in listed:
            # What kept its trainer from making it is said above.
            continue
        with SelectorClient(address, run_id, timeout_s=120.0) as client:
            sent = Counter(_sent(found))
            kept = Counter(
                (row.record.step, row.prompt_id, tuple(row.record.outcomes.tolist()))
                for row in client.export("outcomes")
            )
            reports += len(sent)
            if sent != kept:
                missing, strange = sent - kept, kept - sent
                outcome.wrong.append(
                    f"{run_id}: {missing.total()} reported groups are missing, {strange.total()} were never reported"
                )
            run = client.get_run()
            if (run.pool.registered, run.outcome_groups) != (PROMPTS, sent.total()):
                outcome.wrong.append(
                    f"{run_id}: expected {PROMPTS} prompts and {sent.total()} groups; "
                    f"got {run.pool.registered} and {run.outcome_groups}"
                )
            steps = {step for journal in found for step in journal["selected"]}
            if run.selections != len(steps):
                outcome.wrong.append(f"{run_id}: expected {len(steps)} selections; got {run.selections}")
    expected = {*runs, *(f"rogue-{number}" for number in range(len(listed - set(runs))))}
    if listed != expected:
        outcome.wrong.append(f"runs that should not be there, or are missing: {sorted(listed ^ expected)}")
    outcome.figures["runs"] = (float(len(runs)), "runs")
    outcome.figures["reported groups, all there"] = (float(reports), "groups")


def _sent(journals: Iterable[dict[str, Any]]) -> Iterable[tuple[int, str, tuple[float, ...]]]:
    for journal in journals:
        for step, (attempt, prompt_ids) in journal["reported"].items():
            for prompt_id, outcomes in sent_outcomes(journal["run_id"], int(step), attempt, prompt_ids).items():
                yield int(step), prompt_id, tuple(outcomes)


def _check_idle(metrics_address: str, outcome: Outcome) -> None:
    """Nobody is there any more, and the service knows."""
    end = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        left = [line for line in lines if line.startswith("selector_rpc_in_flight{") and not line.endswith(" 0.0")]
        if not left:
            return
        if time.monotonic() > end:
            outcome.wrong.append(f"calls are in flight with all callers gone: {left}")
            return
        time.sleep(0.5)


def _check_watch(watch: Watch, warm_up_s: float, outcome: Outcome) -> None:
    outcome.wrong += watch.unanswered[:5]
    for figure, unit, most in (
        ("memory_mib", "MiB", _MEMORY_GROWTH_MIB),
        ("descriptors", "descriptors", _DESCRIPTOR_GROWTH),
        ("threads", "threads", _THREAD_GROWTH),
    ):
        trend = watch.trend(figure, warm_up_s)
        name = figure.removesuffix("_mib")
        outcome.figures[f"{name}, after warm-up"] = (trend.first, unit)
        outcome.figures[f"{name}, largest"] = (trend.largest, unit)
        outcome.figures[f"{name}, growth"] = (trend.growth, unit)
        outcome.figures[f"{name}, slope"] = (trend.slope, f"{unit}/min")
        outcome.figures[f"{name}, slope of the first half"] = (trend.early_slope, f"{unit}/min")
        outcome.figures[f"{name}, slope of the last half"] = (trend.late_slope, f"{unit}/min")
        if trend.growth > most:
            outcome.wrong.append(f"{name} grew by {trend.growth:.0f} {unit} after the warm-up, at most {most} are fine")
    outcome.memory = watch.series("memory_mib")
    outcome.figures["resident, largest"] = (watch.trend("resident_mib", 0.0).largest, "MiB")
    for name, seconds in (("health check", watch.health_s), ("scrape", watch.scrape_s)):
        if seconds:
            ordered = sorted(seconds)
            outcome.figures[f"{name} p50"] = (ordered[len(ordered) // 2], "s")
            outcome.figures[f"{name} p99"] = (ordered[int(len(ordered) * 0.99)], "s")
            outcome.figures[f"{name} largest"] = (ordered[-1], "s")


def records(outcome: Outcome, command: str) -> list[dict[str, Any]]:
    """The figures as JSON records."""
    found = [(f"soak {name}", value, unit) for name, (value, unit) in outcome.figures.items()]
    for rpc in sorted(outcome.tally.seconds):
        found.append((f"soak {rpc} calls", float(len(outcome.tally.seconds[rpc])), "calls"))
        for q in (0.5, 0.99):
            found.append((f"soak {rpc} p{q * 100:.0f}", outcome.tally.quantile(rpc, q), "s"))
    for kind, endings in sorted(outcome.rogues.endings.items()):
        found += [(f"soak rogue {kind} {ending}", float(count), "calls") for ending, count in sorted(endings.items())]
    found += [(f"soak memory at {minutes:g} min", value, "MiB") for minutes, value in outcome.memory]
    found.append(("soak violations", float(len(outcome.wrong)), "violations"))
    return [{"name": name, "value": value, "unit": unit, "command": command} for name, value, unit in found]


def table(outcome: Outcome) -> str:
    """The figures for people."""
    lines = [f"{'RPC':<22}{'calls':>9}{'p50 ms':>10}{'p99 ms':>10}"]
    for rpc in sorted(outcome.tally.seconds):
        calls = len(outcome.tally.seconds[rpc])
        p50, p99 = (outcome.tally.quantile(rpc, q) * 1000 for q in (0.5, 0.99))
        lines.append(f"{rpc:<22}{calls:>9}{p50:>10.1f}{p99:>10.1f}")
    lines.append("")
    lines += [f"{name:<34}{value:>12.3f} {unit}" for name, (value, unit) in outcome.figures.items()]
    lines += ["", "memory in MiB, each half minute: " + " ".join(f"{value:.0f}" for _, value in outcome.memory), ""]
    for kind, endings in sorted(outcome.rogues.endings.items()):
        lines.append(f"{kind:<12}" + ", ".join(f"{ending} {count}" for ending, count in sorted(endings.items())))
    lines += ["", *(f"WRONG: {what}" for what in outcome.wrong), "FAILED" if outcome.wrong else "held"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=output_file)
    chosen = parser.parse_args(arguments)
    outcome = soak(chosen.minutes)
    sys.stdout.write(table(outcome) + "\n")
    if chosen.json:
        made = records(outcome, f"make soak MINUTES={chosen.minutes:g}")
        chosen.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
