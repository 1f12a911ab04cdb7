"""How FUSED does beside the best simple row, for every model of files of pass rates.

    python -m bench.rates FILE… [--references 256] [--draws 5] [--output DIR] [--jobs 2] [--picture PNG] [--json OUT]

Each model of each file is evaluated as by ``selector evaluate --data FILE --model MODEL --prior-model others``: K
random references, the same draws for all rows. The best simple row is chosen for each model *after* its figures are
known, so that it is a little better than any row that one could have chosen beforehand. Figures that are in DIR from
the same data and code are taken from there.

| column | what |
|---|---|
| best simple, fused | mean over the models of the highest correlation of a simple row, and of FUSED's |
| worst | the model where FUSED's correlation is farthest below the best simple row's: difference and name |
| error | FUSED's mean absolute error divided by the smallest of a simple row: mean over the models, and largest |
| calibration, coverage | of FUSED: means over the models |

The first table is without, the second one with the mean rate under the file's other models as prior, where item mean
is that rate, recalibrated on the references.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import selector
from bench.cases import REFERENCES, case
from selector.cli.output_file import output_file
from selector.cli.table import table, write_json
from selector.code_digest import code_digest
from selector.evaluation.experiment import evaluate
from selector.evaluation.prepare import OTHERS
from selector.evaluation.rates import ColumnNames, read_rates
from selector.evaluation.rows import FUSED, FUSED_PRIOR, PRIOR

_PEARSON, _ERROR = "pearson", "mean_absolute_error"


@dataclass(frozen=True)
class Job:
    """One model of one file."""

    data: str
    model: str
    alone: bool
    references: int
    draws: int
    seed: int


Rows = dict[str, dict[str, Any]]
"""By row: its figures, and whether it is a control and knows the prior."""


def figures(job: Job) -> Rows:
    """All rows of one model: means over the draws."""
    prepared = case(
        Path(job.data),
        job.model,
        prior_model=None if job.alone else OTHERS,
        references=job.references,
        draws=job.draws,
        seed=job.seed,
    )
    found = evaluate(prepared.plan, prepared.questions, prepared.model, prepared.adapter, lambda _row: None)
    return {
        summary.row: {
            "control": summary.control,
            "prior": summary.prior,
            **summary.mean,
            "spread": summary.spread,
            "seconds": summary.seconds,
        }
        for summary in found.summaries
    }


def _jobs(arguments: argparse.Namespace) -> Iterator[Job]:
    for data in arguments.data:
        models = list(read_rates(data, ColumnNames()).models)
        for model in models:
            yield Job(str(data), model, len(models) == 1, arguments.references, arguments.draws, arguments.seed)


def collected(jobs: Sequence[Job], output: Path, processes: int) -> dict[Job, Rows]:
    """The figures of all jobs, those that are missing made in parallel and kept."""
    found: dict[Job, Rows] = {}
    missing = []
    for job in jobs:
        path = _kept(output, job)
        if path.exists():
            found[job] = json.loads(path.read_text(encoding="utf-8"))
        else:
            missing.append(job)
    with ProcessPoolExecutor(processes) as pool:
        working = {pool.submit(figures, job): job for job in missing}
        for done in tqdm(as_completed(working), total=len(working), unit="model", disable=None, leave=False):
            job = working[done]
            found[job] = done.result()
            _kept(output, job).write_text(json.dumps(found[job]) + "\n", encoding="utf-8")
    return {job: found[job] for job in jobs}


def _kept(output: Path, job: Job) -> Path:
    """Where the figures are kept: a name of their own for other data, and for other code."""
    key = json.dumps([asdict(job), _code(Path(job.data))])
    return output / f"{Path(job.data).stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


@cache
def _code(data: Path) -> str:
    sources = sorted(Path(selector.__file__).parent.rglob("*.py"))
    return code_digest([data, *sources], ("numpy", "scipy", "sentence-transformers"))


@dataclass(frozen=True)
class Comparison:
    """FUSED beside the best simple row, over the models of a file; differences and ratios by model."""

    models: tuple[str, ...]
    simple: np.ndarray
    fused: np.ndarray
    error_ratio: np.ndarray
    calibration: np.ndarray
    coverage: np.ndarray
    item_mean: np.ndarray


def compared(found: dict[str, Rows], prior: bool) -> Comparison:
    """Over models by name; ``prior``: with the other models' mean rate known."""
    columns: dict[str, list[float]] = {name: [] for name in ("simple", "fused", "ratio", "cal", "cover", "item")}
    for rows in found.values():
        own = rows[FUSED_PRIOR if prior else FUSED]
        simple = [row for row in rows.values() if row["control"] and (prior or not row["prior"])]
        columns["simple"].append(max(row[_PEARSON] or 0.0 for row in simple))
        columns["fused"].append(own[_PEARSON] or 0.0)
        columns["ratio"].append(own[_ERROR] / min(row[_ERROR] for row in simple))
        columns["cal"].append(own["calibration_error"])
        columns["cover"].append(own["coverage"])
        columns["item"].append((rows[PRIOR][_PEARSON] or 0.0) if prior else np.nan)
    return Comparison(tuple(found), *(np.array(values) for values in columns.values()))


def _row(name: str, c: Comparison, prior: bool) -> tuple[str, ...]:
    worst = int(np.argmin(c.fused - c.simple))
    return (
        name,
        f"{len(c.models)}",
        *([f"{c.item_mean.mean():.3f}"] if prior else []),
        f"{c.simple.mean():.3f}",
        f"{c.fused.mean():.3f}",
        f"{c.fused[worst] - c.simple[worst]:+.3f} ({c.models[worst]})",
        f"{c.error_ratio.mean():.3f}, {c.error_ratio.max():.3f}",
        f"{c.calibration.mean():.3f}",
        f"{c.coverage.mean():.3f}",
    )


def _picture(path: Path, comparisons: dict[str, Comparison]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 6.0), layout="constrained")
    for name, c in comparisons.items():
        axes.scatter(c.simple, c.fused, s=22, alpha=0.75, label=name, linewidths=0)
    low = min(min(c.simple.min(), c.fused.min()) for c in comparisons.values()) - 0.03
    high = max(max(c.simple.max(), c.fused.max()) for c in comparisons.values()) + 0.03
    axes.plot([low, high], [low, high], color="0.6", linewidth=1, zorder=0)
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="best simple row's correlation", ylabel="FUSED's correlation")
    axes.set_title("Each model's pass rates, predicted from 256 references", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rates", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--references", type=int, default=REFERENCES)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("bench-output/rates"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--picture", type=output_file)
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    jobs = list(_jobs(arguments))
    found = collected(jobs, arguments.output, arguments.jobs)
    files = list(dict.fromkeys(job.data for job in jobs))
    stems = [Path(data).stem for data in files]
    names = {data: stem if stems.count(stem) == 1 else data for data, stem in zip(files, stems, strict=True)}
    by_file = {names[data]: {job.model: rows for job, rows in found.items() if job.data == data} for data in files}
    without = {name: compared(rows, prior=False) for name, rows in by_file.items()}
    known = {name: compared(rows, prior=True) for name, rows in by_file.items() if len(rows) > 1}
    head = ("best simple", "fused", "worst", "error: mean, largest", "calibration", "coverage")
    print(table(("without a prior", "models", *head), [_row(name, c, False) for name, c in without.items()]))
    if known:
        titles = ("with the item mean", "models", "item mean", *head)
        print(f"\n{table(titles, [_row(name, c, True) for name, c in known.items()])}")
    if arguments.picture is not None:
        _picture(arguments.picture, without)
    records = [{"file": name, "model": model, "rows": r} for name, rows in by_file.items() for model, r in rows.items()]
    write_json(
        arguments.json, {"command": shlex.join(["python", "-m", "bench.rates", *sys.argv[1:]]), "records": records}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
