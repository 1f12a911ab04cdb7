"""How much a trained adapter predicts about models it has not seen, on files of pass rates of many models.

    python -m bench.adapter FILE… [--json OUT]

For each file, models are split into those to train on, those that stop the training early, and test models, which
training never sees. Two cases:

| case | adapter trained on | judged on, for each test model and draw |
|---|---|---|
| seen | all questions | K random questions as references, all others predicted |
| new | half of the questions | the other half, likewise |

Rows besides the untrained and the trained attention: the best simple controls, what the other models' rates give
without any attention, and FUSED with and without the adapter. ``item mean`` is a question's mean rate under all models
but the test models, known where the questions are; ``transfer ridge`` predicts it from text and embedding. Both go
through a recalibration on the references, or into FUSED as the prompts' priors. With ``--rotations`` other models
take the roles, and another adapter is trained, each time.

A row that predicts the same for all questions counts with a correlation of 0.

``ceiling`` is the correlation that the true pass rates would have with the measured ones, from the trials' binomial
noise; with one trial it cannot be told.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bench.adapter_rows import Pool, predictions
from selector.adapter_training.data import rated_questions
from selector.adapter_training.split import split
from selector.adapter_training.training import Trained, TrainingOptions, train
from selector.cli.output_file import output_file
from selector.cli.table import table, write_json
from selector.difficulty.adapter import Adapter
from selector.evaluation.draws import counts, draw_references
from selector.evaluation.embeddings import Embedded, EncoderChoice, default_cache, embed
from selector.evaluation.figures import Measured, accuracy
from selector.evaluation.rates import ColumnNames, RateTable, read_rates

_FIGURES = ("pearson", "mean_absolute_error", "log_loss")


@dataclass(frozen=True)
class Roles:
    """Names of the models, each with one role."""

    training: list[str]
    stopping: list[str]
    test: list[str]


def roles(models: list[str], most_tests: int, seed: int, rotation: int) -> Roles:
    """A quarter of the models, at most ``most_tests``, to test; a fifth of the others to stop by."""
    test = max(1, min(most_tests, len(models) // 4))
    order = np.roll(np.random.default_rng([seed, 10]).permutation(len(models)), rotation * test)
    drawn = [models[i] for i in order]
    stopping = max(1, (len(models) - test) // 5)
    return Roles(sorted(drawn[test + stopping :]), sorted(drawn[test : test + stopping]), sorted(drawn[:test]))


def fitted(
    data: RateTable, embedded: Embedded, part: np.ndarray, chosen: Roles, share: float, options: TrainingOptions
) -> Trained:
    """An adapter trained on some questions under the training models, stopped by the stopping models."""
    names = [*chosen.training, *chosen.stopping]
    rates = np.stack([data.models[name].rate for name in names], axis=1)
    texts = data.texts or data.ids
    questions = rated_questions(data.path.name, [texts[i] for i in part], embedded.vectors[part], names, rates[part])
    return train(split([questions], chosen.stopping, share, options.seed), options, lambda *_: None)


def judged(
    data: RateTable,
    embedded: Embedded,
    part: np.ndarray,
    learned_from: np.ndarray,
    chosen: Roles,
    adapter: Adapter,
    arguments: argparse.Namespace,
    case: str,
    advance: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Records of every row, test model and draw on the questions of ``part``."""
    known = np.stack([data.models[name].rate for name in [*chosen.training, *chosen.stopping]], axis=1)
    records = []
    for name in chosen.test:
        model = data.models[name]
        rated = part[model.known[part]]
        pool = Pool.of(data, embedded, rated, learned_from, np.nanmean(known, axis=1), seen=case == "seen")
        rate, trials = model.rate[rated], model.trials[rated]
        measured = Measured(counts(rate, trials), trials)
        references = min(arguments.references, len(rated) // 2)
        rows = predictions(pool, adapter, references)
        for number in range(arguments.draws):
            draw = draw_references(rate, trials, references, arguments.group_size, arguments.seed, number)
            for row, predict in rows.items():
                advance(f"{case}: {row}")
                began = time.perf_counter()
                predicted = predict(draw)[draw.unseen]
                found = accuracy(predicted, measured.take(draw.unseen), None)
                figures = {figure: getattr(found, figure) for figure in _FIGURES}
                if figures["pearson"] is None and row != "constant":
                    figures["pearson"] = 0.0
                seconds = time.perf_counter() - began
                records.append({"case": case, "model": name, "draw": number, "row": row, **figures, "seconds": seconds})
        records.append({"case": case, "model": name, "draw": 0, "row": "ceiling", "pearson": ceiling(rate, trials)})
    return records


def ceiling(rate: np.ndarray, trials: np.ndarray) -> float | None:
    """Correlation of true with measured rates."""
    if trials.min() < 2:
        return None
    noise = float((rate * (1.0 - rate) / (trials - 1.0)).mean())
    return float(np.sqrt(max(1.0 - noise / rate.var(), 0.0)))


def summary(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over test models and draws, and the deviation over draws of the mean over models, by case and row."""
    rows = []
    for case, row in dict.fromkeys((r["case"], r["row"]) for r in records):
        own = [r for r in records if (r["case"], r["row"]) == (case, row)]
        line: dict[str, Any] = {"case": case, "row": row}
        for figure in _FIGURES:
            values = [(r["draw"], r[figure]) for r in own if r.get(figure) is not None]
            line[figure] = float(np.mean([v for _, v in values])) if values else None
            by_draw = [np.mean([v for d, v in values if d == draw]) for draw in sorted({d for d, _ in values})]
            line[f"{figure}_spread"] = float(np.std(by_draw, ddof=1)) if len(by_draw) > 1 else None
        rows.append(line)
    return rows


def measure(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases of one file."""
    data = read_rates(path, ColumnNames())
    choice = EncoderChoice(arguments.encoder, "cpu", arguments.threads, arguments.cache)
    with tqdm(desc=f"{path.stem}: embedding", disable=None, leave=False) as bar:
        embedded = embed(data.texts, choice, lambda done, total: bar.update(done - bar.n), tqdm.write)
    if embedded is None:
        raise SystemExit(f"{path}: no texts")
    options = TrainingOptions(
        width=arguments.width,
        references=arguments.references,
        seed=arguments.seed,
    )
    whole = np.arange(len(data))
    half = np.random.default_rng([arguments.seed, 11]).random(len(data)) < 0.5
    texts = data.texts or data.ids
    # Equal texts stay on one side.
    first = {text: half[i] for i, text in reversed(list(enumerate(texts)))}
    half = np.array([first[text] for text in texts])
    content: dict[str, Any] = {"data": path.name, "questions": len(data), "trainings": []}
    records: list[dict[str, Any]] = []
    cases = {"seen": (whole, whole, 0.0), "new": (np.flatnonzero(half), np.flatnonzero(~half), 0.2)}
    with tqdm(desc=path.stem, unit="row", disable=None, leave=False) as bar:

        def advance(what: str) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update()

        for rotation, case in itertools.product(range(arguments.rotations), arguments.cases):
            learned_from, part, share = cases[case]
            chosen = roles(list(data.models), arguments.test_models, arguments.seed, rotation)
            began = time.perf_counter()
            bar.set_postfix_str(f"{case}: training")
            trained = fitted(data, embedded, learned_from, chosen, share, options)
            training = {
                "case": case,
                "trained_on": len(learned_from),
                "judged_on": len(part),
                "best_epoch": trained.best.number,
                "epochs": len(trained.epochs) - 1,
                "training_seconds": time.perf_counter() - began,
            }
            content["trainings"].append({**training, "models": vars(chosen)})
            adapter = trained.network.adapter(embedded.encoder, embedded.encoder_key)
            records += judged(data, embedded, part, learned_from, chosen, adapter, arguments, case, advance)
    return {**content, "rows": summary(records), "records": records}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench.adapter", description="See the module's docstring.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cases", nargs="+", choices=("seen", "new"), default=["seen", "new"])
    parser.add_argument("--references", type=int, default=256)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--test-models", type=int, default=4, help="at most")
    parser.add_argument("--rotations", type=int, default=1, help="of the models through their roles")
    parser.add_argument("--width", type=int, default=TrainingOptions.width)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", default="default")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found = []
    for path in arguments.files:
        found.append(measure(path, arguments))
        rows = [
            (line["case"], line["row"], line["pearson"], line["pearson_spread"], *(line[f] for f in _FIGURES[1:]))
            for line in found[-1]["rows"]
        ]
        header = ("case", "row", "Pearson", "±", "mean abs. error", "log loss")
        trainings = [(t["case"], t["trained_on"], t["judged_on"], t["best_epoch"]) for t in found[-1]["trainings"]]
        sizes = table(("case", "questions to train on", "to judge on", "best epoch"), trainings)
        sys.stdout.write(f"\n{path.name}\n{sizes}\n\n{table(header, rows)}\n")
        sys.stdout.flush()
        command = shlex.join(["python", "-m", "bench.adapter", *sys.argv[1:]])
        write_json(arguments.json, {"command": command, "files": found})


if __name__ == "__main__":
    main()
