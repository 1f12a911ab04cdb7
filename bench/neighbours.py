"""Twins in real question sets, what looking for them costs, and the error of attending to a shortlist.

    python -m bench.neighbours FILE… [--json OUT]

Files are those of ``selector evaluate``. Three tables:

* ``twins``: questions whose text occurs before (``equal``), and those that are another's twin otherwise (``reworded``);
  the mean difference of twins' pass rates (averaged over the file's models) beside that of random pairs, both with the
  noise of their trials in it. ``--show N`` prints N reworded pairs of each file to read. Only texts whose wording is
  another's as well are embedded: others are not compared.
* ``registration``: CPU-seconds, one thread, of looking for twins among so many prompts registered at once, and in calls
  of 1,000; and after a restart, for all of them unchanged and for one more. ``texts``: ``file``, as they are in the
  file with a number in front, a hundredth of them twice; or ``one``, the same for all. Embeddings are unlike, 384 wide.
* ``shortlist``: ATTENTION without adapter over half of at most ``--most`` questions, K of them as references, each
  attending to the k nearest, against attending to all: predicted pass rates' largest and mean difference and Pearson
  correlation over all questions, CPU-seconds of both for the same questions with one thread, and the correlation of
  each with the measured rates of the questions that are no references. ``exact`` is what the service does; ``inverted``
  is faiss ``IndexIVFFlat`` with 2 sqrt(K) clusters, 8 of them searched, which it does not do.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from selector.cli.output_file import output_file
from selector.cli.table import table, write_json
from selector.config import RunConfig
from selector.difficulty.attending import Attending, Attention
from selector.difficulty.estimate import PoolFeatures
from selector.difficulty.reference_set import References
from selector.evaluation.embeddings import EncoderChoice, default_cache, embed
from selector.evaluation.rates import ColumnNames, RateTable, read_rates
from selector.neighbours.twins import TwinIndex
from selector.neighbours.wording import signature
from selector.pool import ACTIVE, Pool, PromptRecord

_SHORTLISTS = (64, 256, 1024)
_REFERENCES = (256, 1024, 2048, 4096)
_PROBED = 8
_Result = TypeVar("_Result")


def mean_rates(rates: RateTable) -> np.ndarray:
    """(N,) pass rate of each question, averaged over the models that it was run on; NaN where there is none."""
    columns = np.stack([model.rate for model in rates.models.values()])
    known = np.isfinite(columns)
    return np.where(
        known.any(axis=0), np.where(known, columns, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1), np.nan
    )


def record(at: int, text: str, row: int) -> PromptRecord:
    """A prompt with nothing but a text and an embedding."""
    return PromptRecord(str(at), at.to_bytes(32, "little"), text, row, "", 0, float("nan"), 0, ACTIVE)


def twin_pairs(texts: Sequence[str], vectors: np.ndarray, rows: np.ndarray, similarity: float) -> list[tuple[int, int]]:
    """(earlier, later) for each question that is a twin of one before it.

    Args:
        vectors: (n, w) embeddings of some of the texts.
        rows: (N,) row of each text among them, -1 = none.
    """
    placed = [(i, record(i, text, int(row))) for i, (text, row) in enumerate(zip(texts, rows, strict=True))]
    first: dict[int, int] = {}
    groups = TwinIndex(similarity).groups(Pool(), placed, lambda wanted: vectors[wanted])
    return [(first[group], i) for i, group in enumerate(groups) if first.setdefault(group, i) != i]


def twins(path: Path, rates: RateTable, choice: EncoderChoice, similarity: float, show: int) -> dict[str, Any]:
    """One row of the first table."""
    texts = list(rates.texts or ())
    wording = [signature(text) for text in texts]
    shared = Counter(wording)
    compared = [i for i, key in enumerate(wording) if shared[key] > 1]
    rows = np.full(len(texts), -1)
    vectors = np.zeros((0, 1), dtype=np.float32)
    if compared:
        embedded = embed([texts[i] for i in compared], choice, _progress(path, "twins"), _say)
        if embedded is not None:
            vectors = embedded.vectors
            rows[compared] = np.arange(len(compared))
    pairs = twin_pairs(texts, vectors, rows, similarity)
    plain = [" ".join(text.split()) for text in texts]
    reworded = [(i, j) for i, j in pairs if plain[i] != plain[j]]
    random = np.random.default_rng(0)
    for at in random.permutation(len(reworded))[:show].tolist():
        _show(*(plain[i] for i in reworded[at]))
    rate = mean_rates(rates)
    others = random.integers(0, len(texts), (2, 10_000))
    return {
        "file": path.stem,
        "questions": len(texts),
        "equal": len(pairs) - len(reworded),
        "reworded": len(reworded),
        "twins differ": _difference(rate, np.array(pairs, dtype=np.int64).reshape(-1, 2).T),
        "random pairs differ": _difference(rate, others),
    }


def registration(texts: Sequence[str], prompts: int, similarity: float) -> list[dict[str, Any]]:
    """Rows of the second table for one number of prompts."""
    random = np.random.default_rng(0)
    written = [f"{i}. Find {texts[i % len(texts)]}" for i in range(prompts)]
    for i in random.choice(np.arange(1, prompts), prompts // 100, replace=False).tolist():
        written[i] = written[i - 1].replace("Find", "Determine", 1)
    vectors = random.normal(size=(prompts + 1, 384)).astype(np.float32)
    found = []
    for name, own in (("file", written), ("one", [written[0]] * prompts)):
        records = [(i, record(i, text, i)) for i, text in enumerate([*own, own[0]])]
        for size in (prompts, 1000):
            pool, index = Pool(), TwinIndex(similarity)
            seconds = 0.0
            for start in range(0, prompts, size):
                placed = records[start : min(start + size, prompts)]
                groups, taken = _timed(partial(index.groups, pool, placed, vectors.__getitem__))
                seconds += taken
                pool.put([r._replace(twin_group=group) for (_, r), group in zip(placed, groups, strict=True)])
            restarted = TwinIndex(similarity)
            again, more = (
                _timed(partial(restarted.groups, pool, placed, vectors.__getitem__))[1]
                for placed in (records[:-1], records[-1:])
            )
            found.append(
                {"texts": name, "prompts": prompts, "per call": size, "CPU s": seconds, "again": again, "more": more}
            )
    return found


def shortlist(path: Path, rates: RateTable, choice: EncoderChoice, most: int) -> list[dict[str, Any]]:
    """Rows of the third table for one file."""
    random = np.random.default_rng(0)
    rate = mean_rates(rates)
    texts = list(rates.texts or ())
    usable = np.array([i for i in range(len(texts)) if texts[i] and np.isfinite(rate[i])])
    picked = np.sort(random.permutation(usable)[:most])
    embedded = embed([texts[i] for i in picked], choice, _progress(path, "attention"), _say)
    if embedded is None:
        return []
    vectors, measured = embedded.vectors, rate[picked]
    size = len(picked)
    features = PoolFeatures(
        version=1,
        embeddings=vectors,
        surface=np.full((size, 9), np.nan, dtype=np.float32),
        prior_rate=np.full(size, np.nan),
        prior_trials=np.zeros(size),
        domain=np.full(size, -1, dtype=np.int32),
        signals={},
    )
    found = []
    for count in _REFERENCES:
        if count > size // 2:
            continue
        prompt = np.sort(random.choice(size, count, replace=False))
        references = References(prompt, 1.0 - measured[prompt], np.full(count, 8.0))
        full_attention = Attending(None).to(features, references)
        assert full_attention is not None
        full, full_seconds = _timed(full_attention.difficulty)
        rest = np.setdiff1d(np.arange(size), prompt)
        for k in _SHORTLISTS:
            if k >= count:
                continue
            attention = Attending(None, k).to(features, references)
            assert attention is not None
            for name, predict in (("exact", Attention.difficulty), ("inverted", _inverted)):
                near, seconds = _timed(partial(predict, attention))
                found.append(
                    {
                        "file": path.stem,
                        "questions": size,
                        "references": count,
                        "shortlist": k,
                        "search": name,
                        "largest": float(np.abs(near - full).max()),
                        "mean": float(np.abs(near - full).mean()),
                        "Pearson": float(np.corrcoef(near, full)[0, 1]),
                        "CPU s": seconds,
                        "CPU s, all": full_seconds,
                        "to measured": -float(np.corrcoef(near[rest], measured[rest])[0, 1]),
                        "all to measured": -float(np.corrcoef(full[rest], measured[rest])[0, 1]),
                    }
                )
    return found


def _inverted(attention: Attention) -> np.ndarray:
    """``Attention.difficulty`` with an approximate shortlist."""
    keys, measured = attention.as_reference, attention.references.difficulty
    width = keys.shape[1]
    clusters = int(2 * np.sqrt(len(keys)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, clusters, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1
    index.train(keys)
    index.add(keys)
    index.nprobe = _PROBED
    parts = []
    for tile in attention.tiles:
        scores, rows = index.search(attention.kernel.host(tile), attention.shortlist)
        scores[rows < 0] = -np.inf
        weights = np.exp((scores - scores[:, :1]).astype(np.float64) / np.sqrt(width))
        parts.append((weights * measured[rows]).sum(axis=1) / weights.sum(axis=1))
    return np.concatenate(parts)[: len(attention.covered)]


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def _difference(rate: np.ndarray, pairs: np.ndarray) -> float | None:
    differences = np.abs(rate[pairs[0]] - rate[pairs[1]])
    differences = differences[np.isfinite(differences)]
    return float(differences.mean()) if len(differences) else None


def _show(left: str, right: str) -> None:
    a, b = left.split(), right.split()
    changes = [
        f"[{' '.join(a[i:j])} | {' '.join(b[k:m])}]"
        for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        if kind != "equal"
    ]
    sys.stdout.write(f"  {left[:100]}\n      {' '.join(changes)[:400]}\n")


def _progress(path: Path, what: str) -> Callable[[int, int], None]:
    bar = tqdm(desc=f"{path.stem}, {what}", unit=" texts", delay=2, file=sys.stderr)

    def advance(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return advance


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _write(title: str, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        sys.stdout.write(f"\n{title}\n{table(tuple(rows[0]), [tuple(row.values()) for row in rows])}\n")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench.neighbours", description="See the module's docstring.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--similarity", type=float, default=RunConfig().twin_similarity)
    parser.add_argument("--show", type=int, default=0, metavar="N")
    parser.add_argument("--prompts", type=int, nargs="*", default=[40_000, 100_000])
    parser.add_argument("--most", type=int, default=10_000, help="0 = no shortlists.")
    parser.add_argument("--encoder", default="default")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--json", type=output_file)
    arguments = parser.parse_args()
    choice = EncoderChoice(arguments.encoder, "cpu", 1, arguments.cache)
    found: dict[str, list[dict[str, Any]]] = {"twins": [], "registration": [], "shortlist": []}
    faiss.omp_set_num_threads(1)
    with threadpool_limits(1):
        for path in arguments.files:
            rates = read_rates(path, ColumnNames())
            if rates.texts is None:
                parser.error(f"{path}: has no texts")
            found["twins"].append(twins(path, rates, choice, arguments.similarity, arguments.show))
            if arguments.most:
                found["shortlist"] += shortlist(path, rates, choice, arguments.most)
        for prompts in arguments.prompts:
            texts = [text for text in rates.texts or () if text]
            found["registration"] += registration(texts, prompts, arguments.similarity)
    for title, rows in found.items():
        _write(title, rows)
    write_json(arguments.json, {"command": shlex.join(["python", "-m", "bench.neighbours", *sys.argv[1:]]), **found})


if __name__ == "__main__":
    main()
