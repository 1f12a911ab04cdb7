"""FUSED: one Beta posterior per prompt from the population model and the prompt's own discounted outcomes.

``Beta(kappa m + a, kappa (1 - m) + b)`` with m the population model's success rate (``population``), (a, b) the
prompt's own evidence (``own_evidence``), less for every step since the last visit, and kappa the number of trials that
m is worth (``grid``).

* Ageing. Single prompts wander by more than the population's drift: of n trials ``n / (1 + s k n)`` count after k steps
  of absence, with s, the wandering per step, chosen like kappa.
* Drift. The population moves: the slope per step, in logit space, is measured on revisited prompts, outcomes against
  prediction, weighted by steps of absence and by the share of own evidence. The posterior mean of a prompt absent for
  k steps is shifted by ``drift * k * own share``, at most 1.5; the population model's rows are shifted likewise.
* Rows of the population model. Each visited prompt counts with its evidence n under the fastest forgetting rate,
  worth ``n (1 + kappa) / (kappa + n)`` trials (at most 1 + kappa, the cold kappa, because more trials of one prompt
  tell no more about the others), halved for every half-life since the visit: 8 steps, or the age of the 256th newest
  row (of the oldest, if there are fewer) where that is more.
* Adapter. With a trained adapter, its attention to the prompts visited last is one more column (``attention_column``).
* Twins. One question under several ids has one posterior: from what all of its prompts were tried for
  (``twin_evidence``), and once it was tried, from the population model's rate of the first of them, which is fitted
  without any of them. Losses, drift and lines are learned from each prompt's own evidence.
* Recalibration. The posterior mean's logit goes through a line close to the identity, fitted by prequential
  predictions, separately for prompts with and without own evidence.

Losses, drift and lines discount what is older by 2 % per step. Reports of the newest step are put together before they
are folded, so that they add up however the step was reported; late reports of earlier steps are folded as they come.
All of a step's outcomes are predicted before any of them is folded, from ``OutcomeBatch.population`` and, where that is
NaN, from the running success rate.

The standard error is the posterior Beta's deviation. ``own_weight`` is ``n / (kappa + n)`` with the n that is left. The
basis is OWN for prompts with own evidence, PRIOR for others with a prior rate, POPULATION for the rest, NONE for those
while there is no outcome at all. ``Estimate.population`` is m before recalibration, from the other prompts' outcomes
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit, logit

from selector.difficulty.estimate import Basis, Estimate, OutcomeBatch, PoolFeatures
from selector.difficulty.fused.attention_column import ATTENTION_SLOPE, AttentionColumn
from selector.difficulty.fused.components import principal_components
from selector.difficulty.fused.design import PopulationDesign, build_design
from selector.difficulty.fused.forecast import Forecast, effective_share, posterior
from selector.difficulty.fused.grid import PrequentialGrid
from selector.difficulty.fused.newton import DiscountedNewton
from selector.difficulty.fused.own_evidence import FORGETTING, OwnEvidence, left_after
from selector.difficulty.fused.pending import merged
from selector.difficulty.fused.population import PopulationRows, fit_population, newest_rows
from selector.difficulty.tiles import LatestValue, Same

_KEPT_PER_STEP = 0.98
_LARGEST_ABSENCE = 64
_LARGEST_SHIFT = 1.5
_LARGEST_DRIFT = 0.25
# Drifts of around 0.03 per step are what one expects: a precision of 1000 is a deviation of that size.
_DRIFT_PRECISION = 1000.0
_LARGEST_DRIFT_STEP = 0.05
_WARM_LINE_PRECISION = 100.0
# The population model is recalibrated by its own fit; what is left to do is little.
_COLD_LINE_PRECISION = 400.0
_LARGEST_LINE_STEP = 0.2
_SMALLEST_HALF_LIFE = 8.0
_ROWS_FOR_HALF_LIFE = 256
_MARGIN = 1e-3
_SMALLEST_MEAN = 1e-6
_FASTEST = len(FORGETTING) - 1


class FusedEstimator:
    """Population model, own evidence and drift in one posterior."""

    def __init__(self, components: int, attention: AttentionColumn | None = None) -> None:
        """
        Args:
            components: how many principal components of the embeddings are used.
            attention: the trained adapter's column of the population model, None = no such column.
        """
        if components < 0:
            raise ValueError(f"embedding components must not be negative, got {components}")
        self._components = components
        self._attention = attention
        self._step = -1
        self._evidence = OwnEvidence()
        self._grid = PrequentialGrid()
        self._drift = DiscountedNewton(np.zeros(1), np.array([_DRIFT_PRECISION]), np.array([_LARGEST_DRIFT_STEP]))
        self._warm_line = _identity_line(_WARM_LINE_PRECISION)
        self._cold_line = _identity_line(_COLD_LINE_PRECISION)
        self._successes = 1.0
        self._trials = 2.0
        # Reports of the newest step, not folded yet: more of the same step may come.
        self._pending: tuple[OutcomeBatch, ...] = ()
        self._designs: LatestValue[PopulationDesign] = LatestValue()
        self._component_scores: LatestValue[np.ndarray] = LatestValue()

    def observe(self, batch: OutcomeBatch) -> None:
        """Take in a report; it is folded once a report of a later step shows that its own step is over."""
        if not len(batch.prompt):
            return
        newest = self._pending[0].step if self._pending else -1
        if batch.step < newest:
            self._fold(batch)
            return
        if batch.step > newest:
            self._fold_pending()
        self._pending = (*self._pending, batch)

    def _fold_pending(self) -> None:
        if self._pending:
            self._fold(merged(self._pending))
            self._pending = ()

    def _fold(self, batch: OutcomeBatch) -> None:
        """Predict the report under every setting, learn from the losses, then add it to the evidence."""
        kept = _KEPT_PER_STEP ** max(batch.step - self._step, 0) if self._step >= 0 else 1.0
        self._evidence.reserve(int(batch.prompt.max()) + 1)
        forecast = self._forecast(batch)
        self._learn_lines(kept, forecast)
        self._learn_drift(kept, forecast)
        self._grid.learn(kept, forecast)
        ageing = self._grid.warm.ageing
        self._evidence.fold(batch.step, batch.prompt, batch.successes, batch.trials, forecast.shift, ageing)
        self._successes = kept * self._successes + float(batch.successes.sum())
        self._trials = kept * self._trials + float(batch.trials.sum())
        self._step = max(self._step, batch.step)

    def forget(self, prompts: np.ndarray) -> None:
        """Drop these prompts' own evidence; what was learned from them about the population stays."""
        self._fold_pending()
        self._evidence.forget(prompts)

    def estimate(self, features: PoolFeatures, step: int) -> Estimate:
        """Posterior of every prompt as of ``step``, which counts as absence for all not visited at it."""
        if self._pending:
            folded = self.copy()
            folded._fold_pending()
            return folded.estimate(features, step)
        size = features.size
        design = self._design(features)
        warm = self._grid.warm
        evidence = self._evidence.shared(warm.rate, warm.ageing, features.first_twin, size, self._shift)
        last_step = evidence.last_step
        seen = last_step >= 0
        population = np.clip(expit(self._population_logit(design, features, step)), _MARGIN, 1.0 - _MARGIN)

        kappa = np.where(seen, warm.kappa, self._grid.cold)
        absence = np.where(seen, np.maximum(step - last_step, 0), 0)
        left = left_after(evidence.trials, absence, warm.ageing)
        before = posterior(population, left * evidence.successes, left * evidence.trials, kappa)
        line = np.where(seen[:, None], self._warm_line.value, self._cold_line.value)
        mean = expit(line[:, 0] + line[:, 1] * before.moved(self._shift(absence)))
        mean = np.clip(mean, _SMALLEST_MEAN, 1.0 - _SMALLEST_MEAN)
        without = Basis.NONE if self._step < 0 else Basis.POPULATION
        basis = np.where(seen, Basis.OWN, np.where(design.known, Basis.PRIOR, without))
        return Estimate(
            step=self._step,
            difficulty=1.0 - mean,
            standard_error=np.sqrt(mean * (1.0 - mean) / (before.concentration + 1.0)),
            own_weight=before.own_share,
            basis=basis.astype(np.uint8),
            population=population,
        )

    def references(self, features: PoolFeatures, step: int, prompt: int, limit: int) -> list[tuple[int, float, float]]:
        """Always empty: the population model has no single references."""
        return []

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "successes": self._successes,
            "trials": self._trials,
            "pending": [batch.state_dict() for batch in self._pending],
            **{name: part.state_dict() for name, part in self._parts().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step, self._successes, self._trials = state["step"], state["successes"], state["trials"]
        self._pending = tuple(OutcomeBatch(**batch) for batch in state["pending"])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, OwnEvidence | PrequentialGrid | DiscountedNewton]:
        return {
            "evidence": self._evidence,
            "grid": self._grid,
            "drift": self._drift,
            "warm_line": self._warm_line,
            "cold_line": self._cold_line,
        }

    def copy(self) -> FusedEstimator:
        """Independent state; the caches, which are functions of their keys, stay shared."""
        other = FusedEstimator.__new__(FusedEstimator)
        other.__dict__.update(self.__dict__)
        other._evidence = self._evidence.copy()
        other._grid = self._grid.copy()
        other._drift = self._drift.copy()
        other._warm_line = self._warm_line.copy()
        other._cold_line = self._cold_line.copy()
        return other

    def _shift(self, absence: np.ndarray) -> np.ndarray:
        """Logit shift of own evidence after that many steps."""
        drift = float(np.clip(self._drift.value[0], -_LARGEST_DRIFT, _LARGEST_DRIFT))
        return np.clip(drift * np.minimum(absence, _LARGEST_ABSENCE), -_LARGEST_SHIFT, _LARGEST_SHIFT)

    def _design(self, features: PoolFeatures) -> PopulationDesign:
        def components() -> np.ndarray:
            embeddings = features.embeddings
            if embeddings is None or self._components == 0:
                return np.zeros((features.size, 0), dtype=np.float32)
            # Signals and priors come anew with the same array; to find equal content in another would cost as much.
            return self._component_scores.get(
                Same(embeddings), lambda: principal_components(embeddings, self._components)
            )

        key = (features.version, features.size)
        return self._designs.get(key, lambda: build_design(features, components()))

    def _population_logit(self, design: PopulationDesign, features: PoolFeatures, step: int) -> np.ndarray:
        first = features.first_twin
        evidence = self._evidence.shared(_FASTEST, self._grid.warm.ageing, first, features.size, self._shift)
        last_step = evidence.last_step
        leading = last_step if first is None else np.where(first == np.arange(features.size), last_step, -1)
        prompt = newest_rows(leading)
        if not len(prompt):
            return design.prior_logit
        successes, trials = evidence.successes[prompt], evidence.trials[prompt]
        absence = np.maximum(step - last_step[prompt], 0)
        row_age = np.sort(absence)[min(len(absence), _ROWS_FOR_HALF_LIFE) - 1]
        half_life = max(_SMALLEST_HALF_LIFE, float(row_age))
        kappa = self._grid.cold
        rows = PopulationRows(
            prompt=prompt,
            rate=successes / trials,
            weight=trials * (1.0 + kappa) / (kappa + trials) * 0.5 ** (absence / half_life),
            offset=-self._shift(absence),
        )
        if self._attention is not None:
            attended = self._attention(features, prompt, last_step[prompt], rows.rate, trials)
            if attended is not None:
                # A prior tells much of what the adapter does; together they must not count twice.
                slope = ATTENTION_SLOPE * float(1.0 - design.known.mean())
                design = design.with_column(attended, slope)
        fitted = fit_population(design, rows)
        return fitted if first is None else np.where(last_step >= 0, fitted[first], fitted)

    def _forecast(self, batch: OutcomeBatch) -> Forecast:
        successes, trials, last_step = self._evidence.of(batch.prompt)
        warm = last_step >= 0
        absence = np.where(warm, np.maximum(batch.step - last_step, 0), 0)
        population = np.where(np.isnan(batch.population), self._successes / self._trials, batch.population)
        population = np.clip(population, _MARGIN, 1.0 - _MARGIN)
        return Forecast(batch, population, successes, trials, warm, absence, self._shift(absence))

    def _learn_drift(self, kept: float, forecast: Forecast) -> None:
        revisited = forecast.take(forecast.absence > 0)
        before = revisited.posterior(*self._grid.warm)
        share = effective_share(before.concentration, revisited.batch.trials)
        absence = np.minimum(revisited.absence, _LARGEST_ABSENCE)
        self._drift.update(
            kept,
            columns=(absence * before.own_share)[:, None],
            offset=logit(before.mean),
            successes=revisited.batch.successes * share,
            trials=revisited.batch.trials * share,
        )

    def _learn_lines(self, kept: float, forecast: Forecast) -> None:
        warm, cold = forecast.take(forecast.warm), forecast.take(~forecast.warm)
        before = warm.posterior(*self._grid.warm)
        _learn_line(self._warm_line, kept, warm, before.moved(warm.shift), before.concentration)
        concentration = np.full(len(cold.population), self._grid.cold)
        _learn_line(self._cold_line, kept, cold, logit(cold.population), concentration)


def _learn_line(
    line: DiscountedNewton, kept: float, forecast: Forecast, logits: np.ndarray, concentration: np.ndarray
) -> None:
    share = effective_share(concentration, forecast.batch.trials)
    line.update(
        kept,
        columns=np.stack([np.ones_like(logits), logits], axis=1),
        offset=np.zeros_like(logits),
        successes=forecast.batch.successes * share,
        trials=forecast.batch.trials * share,
    )


def _identity_line(precision: float) -> DiscountedNewton:
    return DiscountedNewton(np.array([0.0, 1.0]), np.full(2, precision), np.full(2, _LARGEST_LINE_STEP))
