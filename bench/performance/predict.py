"""What predicting a pool's difficulty by attention costs: ``python -m bench.performance.predict [--json OUT]``.

A pool of random embeddings, K references, one thread, float32, as ``selector.difficulty.attending`` computes it.
Against two baselines, in turns:

* ``GEMM alone``: the product of the projected pool with the references, tile by tile, and nothing else: what no way of
  computing all scores can beat on the same BLAS;
* ``expanding loop``: the forward pass of the adapter as the published method is written for training, re-stated here
  from the paper with the same layers: the references are expanded to every prompt of a batch and projected for each
  anew. Measured on ``--loop-prompts`` prompts.

The same with torch on ``--device``, against numpy: attention, and the projection of the pool by the adapter, which new
prompts need once. On the CPU figures are CPU time, of one thread each; on a GPU, time of the clock for both, copies of
the result to the host included.

The last figures say what a prompt costs as the pool and the reference set grow: 1 = nothing is lost.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from bench.performance.figures import Figure, at_least, options, parsed, show
from bench.performance.turns import compared, in_turns
from selector.adapter_training.network import AdapterNetwork
from selector.difficulty.adapter import Adapter
from selector.difficulty.attending import Attention
from selector.difficulty.kernel import CPU, NUMPY, TORCH_CPU, DeviceUnavailable, Kernel, make_kernel
from selector.difficulty.reference_set import References
from selector.difficulty.tiles import TILE_ROWS, tiles

# Width of the embeddings at each width of the adapter: MiniLM's, and the published adapter's for Qwen2.5-Math-1.5B.
_EMBEDDING = {128: 384, 384: 384, 896: 1536}
_BATCH = 8
# Embeddings beside the references'.
_MORE = 64
_LOOP = "expanding loop"


@dataclass(frozen=True)
class Pool:
    """A pool ready to be attended over."""

    network: AdapterNetwork
    embeddings: np.ndarray
    reference_rows: np.ndarray
    attention: Attention

    @staticmethod
    def random(prompts: int, references: int, width: int) -> Pool:
        """Of normal embeddings; the projected pool is drawn too, at a scale that leaves scores small."""
        random = np.random.default_rng(0)
        torch.manual_seed(0)
        network = AdapterNetwork(_EMBEDDING[width], width).eval()
        adapter = network.adapter("", "")
        embeddings = random.normal(size=(references + _MORE, _EMBEDDING[width])).astype(np.float32)
        rows = np.arange(references)
        projected = random.normal(size=(prompts, width)).astype(np.float32)
        attention = Attention(
            adapter=adapter,
            references=References(rows, random.random(references), np.full(references, 8.0)),
            tiles=list(tiles(projected)),
            covered=np.ones(prompts, dtype=bool),
            as_query=adapter.query(embeddings[rows]),
            as_reference=adapter.reference(embeddings[rows]),
        )
        return Pool(network, embeddings, rows, attention)

    def held_by(self, kernel: Kernel) -> Attention:
        """The same attention, computed by another kernel."""
        # A layer norm of normal rows: as good as any projected pool.
        sent = kernel.projection(Adapter.untrained(self.attention.as_reference.shape[1]).query)
        return replace(self.attention, tiles=[sent(tile) for tile in self.attention.tiles], kernel=kernel)

    def product(self) -> None:
        """The scores of all prompts, tile by tile."""
        keys = np.ascontiguousarray(self.attention.as_reference.T)
        scores = np.empty((TILE_ROWS, keys.shape[1]), dtype=np.float32)
        for tile in self.attention.tiles:
            np.matmul(tile, keys, out=scores)

    def expanding_loop(self, prompts: int) -> None:
        """Difficulties of the last ``prompts`` embeddings."""
        network, measured = self.network, torch.from_numpy(self.attention.references.difficulty).float()
        references = torch.from_numpy(self.embeddings[self.reference_rows])
        queries = torch.from_numpy(self.embeddings[-prompts:])
        with torch.no_grad():
            for start in range(0, prompts, _BATCH):
                batch = queries[start : start + _BATCH]
                expanded = references[None].expand(len(batch), -1, -1)
                query, key = network.query(batch)[:, None], network.reference(expanded)
                weights = torch.softmax((query * key).sum(dim=2) / key.shape[2] ** 0.5, dim=1)
                weights @ measured


def figures(prompts: int, references: int, width: int, rounds: int, loop_prompts: int) -> list[Figure]:
    """Both comparisons at one width."""
    pool = Pool.random(prompts, references, width)
    ways: dict[str, Callable[[int], object]] = {
        "GEMM alone": lambda _: pool.product(),
        _LOOP: lambda _: pool.expanding_loop(loop_prompts),
        "ours": lambda _: pool.attention.difficulty(),
    }
    found = in_turns(ways, rounds)
    rows = len(pool.attention.tiles) * TILE_ROWS
    flops = 2.0 * rows * references * width / statistics.median(found["GEMM alone"].cpu)
    per_prompt = [seconds / loop_prompts for seconds in found[_LOOP].cpu]
    ours = [seconds / rows for seconds in found["ours"].cpu]
    return [
        compared(
            f"predict, h = {width}",
            found["GEMM alone"].cpu,
            found["ours"].cpu,
            "GEMM alone",
            work=rows / 1e6,
            unit="CPU µs / prompt",
            must=0.75 if width >= 384 else None,
            gflops=flops / 1e9,
            prompts=prompts,
            K=references,
            h=width,
        ),
        compared(
            f"predict, h = {width}",
            per_prompt,
            ours,
            _LOOP,
            work=1e-6,
            unit="CPU µs / prompt",
            must=4000.0 if width == 896 else None,
            prompts=prompts,
            K=references,
            h=width,
        ),
    ]


def with_torch(prompts: int, references: int, width: int, rounds: int, device: str) -> list[Figure]:
    """Attention and projection with torch, against numpy."""
    pool, torch_kernel = Pool.random(prompts, references, width), make_kernel(device)
    attention = pool.held_by(torch_kernel)
    tile = np.random.default_rng(1).normal(size=(TILE_ROWS, _EMBEDDING[width])).astype(np.float32)
    sides = {kernel: kernel.projection(pool.attention.adapter.query) for kernel in (NUMPY, torch_kernel)}
    found = in_turns(
        {
            "attend": lambda _: pool.attention.difficulty(),
            "attend with torch": lambda _: attention.difficulty(),
            "project": lambda _: sides[NUMPY](tile),
            "project with torch": lambda _: torch_kernel.host(sides[torch_kernel](tile)),
        },
        rounds,
    )
    seconds = {name: each.cpu if device == TORCH_CPU else each.wall for name, each in found.items()}
    rows = {"attend": len(pool.attention.tiles) * TILE_ROWS, "project": TILE_ROWS}
    return [
        compared(
            f"{name}, h = {width}, {device}",
            seconds[name],
            seconds[f"{name} with torch"],
            "numpy",
            work=rows[name] / 1e6,
            unit=f"{'CPU ' if device == TORCH_CPU else ''}µs / prompt",
            prompts=prompts,
            K=references,
            h=width,
        )
        for name in rows
    ]


def growth(sizes: list[tuple[int, int]], width: int, rounds: int) -> list[Figure]:
    """CPU time of a prompt and reference at each (N, K), against the first."""
    pools = {size: Pool.random(*size, width) for size in sizes}
    ways = {str(size): partial(_predict, pool) for size, pool in pools.items()}
    found = in_turns(ways, rounds)

    def each(size: tuple[int, int]) -> list[float]:
        work = len(pools[size].attention.tiles) * TILE_ROWS * size[1]
        return [seconds / work for seconds in found[str(size)].cpu]

    return [
        compared(
            f"predict, N = {size[0]:,}, K = {size[1]:,}",
            each(sizes[0]),
            each(size),
            f"N = {sizes[0][0]:,}, K = {sizes[0][1]:,}",
            work=1e-9,
            unit="CPU ns / prompt and reference",
            h=width,
        )
        for size in sizes[1:]
    ]


def _predict(pool: Pool, _: int) -> None:
    pool.attention.difficulty()


def _device(given: str) -> str:
    """One of torch's that is there."""
    if given == CPU:
        raise argparse.ArgumentTypeError(f"expected torch-cpu, cuda or cuda:N; got {given}, which is numpy's")
    try:
        make_kernel(given)
    except DeviceUnavailable as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return given


def main() -> None:
    """Measure, print and write."""
    parser = options("predict", __doc__)
    parser.add_argument("--prompts", type=at_least(1), default=40_960)
    parser.add_argument("--references", type=at_least(1), default=256)
    parser.add_argument("--rounds", type=at_least(1), default=9)
    parser.add_argument("--loop-prompts", type=at_least(1), default=16, help=f"at most --references + {_MORE}")
    parser.add_argument("--device", type=_device, default=TORCH_CPU, help="torch-cpu, cuda or cuda:N")
    arguments = parsed(parser, prompts=TILE_ROWS, rounds=1)
    prompts, rounds = arguments.prompts, arguments.rounds
    if arguments.loop_prompts > arguments.references + _MORE:
        parser.error(f"--loop-prompts: expected at most --references + {_MORE}; got {arguments.loop_prompts}")
    widths = (128,) if arguments.quick else (128, 384, 896)
    sizes = [(4096, 64), (8192, 64)] if arguments.quick else [(10_240, 256), (102_400, 256), (1_024_000, 256)]
    sizes += [] if arguments.quick else [(102_400, 64), (20_480, 4096), (2048, 100_000)]
    torch.set_num_threads(1)
    with threadpool_limits(1):
        references = arguments.references
        found = [each for h in widths for each in figures(prompts, references, h, rounds, arguments.loop_prompts)]
        found += [each for h in widths for each in with_torch(prompts, references, h, rounds, arguments.device)]
        found += growth(sizes, 128, max(rounds // 3, 1))
    show(found, arguments.json)


if __name__ == "__main__":
    main()
