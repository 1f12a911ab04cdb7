"""Training an adapter with the paper's objective, stopped by models it has not seen.

The loss is the binary cross-entropy between the calibrated prediction and the measured difficulty of the queries; the
optimiser is Adam with a warm-up and a linear decay of the learning rate (arXiv 2506.05316, appendix). After each epoch
held-out models are judged, on held-out questions where there are some: the weights of the best epoch are kept, and
training ends once ``patience`` epochs brought nothing better.

The same data, options and seed give the same weights on the same machine with the same number of threads.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from selector.adapter_training.errors import TrainingDataError
from selector.adapter_training.judging import Judge, Judgement
from selector.adapter_training.minibatches import FEWEST_MEASURED, BatchSizes, Minibatch
from selector.adapter_training.network import AdapterNetwork, untrained
from selector.adapter_training.split import Split

_WARM_UP_STEPS = 100
_LONGEST_WARM_UP = 0.1


@dataclass(frozen=True)
class TrainingOptions:
    """How an adapter is trained.

    The paper has a width of 896 and 256 triples a step, each with references of its own. A width of 128 predicts about
    as well and costs a fraction (docs/prediction.md); a step of 64 queries by 8 models has 512 triples and one
    reference set.

    Attributes:
        references: K; see ``minibatches`` for small data sets.
        width: h of the projected embeddings.
        epochs: at most.
        patience: epochs without a better judgement after which training ends.
        queries_per_step: at most.
        models_per_step: at most; see ``minibatches``.
        learning_rate: the largest.
        seed: of everything that is drawn.
        device: torch device.
    """

    references: int = 256
    width: int = 128
    epochs: int = 20
    patience: int = 5
    queries_per_step: int = 64
    models_per_step: int = 8
    learning_rate: float = 1e-3
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to; ``new`` holds NaN when no questions are held out."""

    number: int
    training_loss: float
    seen: Judgement
    new: Judgement

    @property
    def deciding(self) -> float:
        """The loss that early stopping looks at."""
        return self.seen.loss if self.new.empty else self.new.loss


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        network: of the best epoch.
        epochs: all of them; number 0 is the network before training.
        best: the epoch with the smallest deciding loss.
        untrained: attention without adapter on the same reference sets; its losses are those of no calibration.
    """

    network: AdapterNetwork
    epochs: tuple[Epoch, ...]
    best: Epoch
    untrained: Epoch


def train(data: Split, options: TrainingOptions, progress: Callable[[Epoch, int, int], None]) -> Trained:
    """Train a network.

    Args:
        data: with at least one part to train on and one to judge on.
        progress: called after every step with the newest epoch and (steps done, steps at most).

    Raises:
        TrainingDataError: nothing to train or to judge on, or the loss stopped being finite.
    """
    if not data.training or not data.seen:
        raise TrainingDataError("expected at least one model to train on and one held out")
    device = torch.device(options.device)
    sizes = BatchSizes(options.references, options.queries_per_step, options.models_per_step)
    random = np.random.default_rng([options.seed, 3])
    seen = Judge(data.seen, options.references, options.seed, device)
    new = Judge(data.new, options.references, options.seed, device)
    total = options.epochs * sizes.steps(data.training)
    # Initial weights and dropout come from torch's own generator, which is left as it was found.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(options.seed)
        network = AdapterNetwork(data.training[0].embeddings.shape[1], options.width).to(device)
        steps = _Steps(network, data, options, total, device)
        network.eval()
        best = Epoch(0, math.nan, seen(network), new(network))
        if math.isnan(best.deciding):
            raise TrainingDataError("held-out models were measured on too few questions in common to judge with")
        epochs, kept, done = [best], copy.deepcopy(network.state_dict()), 0
        for number in range(1, options.epochs + 1):
            network.train()
            losses: list[float] = []
            for minibatch in sizes.epoch(data.training, random):
                losses += steps(minibatch)
                done += 1
                progress(epochs[-1], done, total)
            network.eval()
            latest = Epoch(number, float(np.mean(losses)) if losses else math.nan, seen(network), new(network))
            if not math.isfinite(latest.training_loss + latest.deciding):
                raise TrainingDataError(f"the loss is not finite after epoch {number}: try a smaller learning rate")
            epochs.append(latest)
            if latest.deciding < best.deciding:
                best, kept = latest, copy.deepcopy(network.state_dict())
            elif number - best.number >= options.patience:
                break
        progress(epochs[-1], done, done)
    network.load_state_dict(kept)
    network.eval()
    return Trained(network, tuple(epochs), best, Epoch(0, math.nan, seen(untrained), new(untrained)))


class _Steps:
    """One optimiser step per minibatch."""

    def __init__(
        self, network: AdapterNetwork, data: Split, options: TrainingOptions, total: int, device: torch.device
    ) -> None:
        self._network = network
        self._embeddings = [torch.from_numpy(part.embeddings).to(device) for part in data.training]
        self._difficulty = [torch.from_numpy(part.difficulty).to(device) for part in data.training]
        self._optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
        warm_up = max(1, min(_WARM_UP_STEPS, round(_LONGEST_WARM_UP * total)))

        def factor(step: int) -> float:
            return (step + 1) / warm_up if step < warm_up else max(total - step, 1) / max(total - warm_up, 1)

        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, factor)

    def __call__(self, minibatch: Minibatch) -> list[float]:
        """The loss before the step; [] when too little of the minibatch was measured."""
        embeddings, difficulty = self._embeddings[minibatch.data], self._difficulty[minibatch.data]
        references, queries, models = (
            torch.from_numpy(indices).to(embeddings.device)
            for indices in (minibatch.references, minibatch.queries, minibatch.models)
        )
        measured, truth = (difficulty[rows][:, models] for rows in (references, queries))
        enough = (~measured.isnan()).sum(dim=0) >= FEWEST_MEASURED
        measured, truth = measured[:, enough], truth[:, enough]
        present = ~truth.isnan()
        if not present.any():
            return []
        logits = self._network(embeddings[queries], embeddings[references], measured)
        loss = functional.binary_cross_entropy_with_logits(logits[present], truth[present])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._schedule.step()
        return [float(loss.detach())]
