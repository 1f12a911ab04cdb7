"""Minibatches of (models, reference set, queries): the paper's triples, with one reference set shared by all of them.

The attention of a query to a reference does not depend on the model, so one projection of references and queries
serves several models: a step costs the projections of K + Q questions and yields Q * M triples. References and queries
of a step are of one data set, with no text in common. In an epoch every training question is a query once for every
training model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from selector.adapter_training.data import RatedQuestions

FEWEST_MEASURED = 3
"""References a model must have been measured on to be predicted from."""


@dataclass(frozen=True)
class Minibatch:
    """Indices into one data set: ``data`` (which), ``references`` (K,), ``queries`` (Q,), ``models`` (M,)."""

    data: int
    references: np.ndarray
    queries: np.ndarray
    models: np.ndarray


@dataclass(frozen=True)
class BatchSizes:
    """K references, at most Q queries and at most M models of a step; K shrinks to half of a small data set."""

    references: int
    queries: int
    models: int

    def references_of(self, questions: RatedQuestions) -> int:
        """K for this data set."""
        return min(self.references, questions.size // 2)

    def steps(self, data: Sequence[RatedQuestions]) -> int:
        """Number of minibatches in an epoch."""
        return sum(
            len(_parts(np.arange(d.size), self._queries_of(d))) * len(_parts(np.arange(len(d.models)), self.models))
            for d in data
        )

    def epoch(self, data: Sequence[RatedQuestions], random: np.random.Generator) -> Iterator[Minibatch]:
        """All minibatches of an epoch, the data sets mixed."""
        planned: list[tuple[int, np.ndarray, np.ndarray]] = []
        for index, questions in enumerate(data):
            for queries in _parts(random.permutation(questions.size), self._queries_of(questions)):
                models = random.permutation(len(questions.models))
                planned += [(index, queries, part) for part in _parts(models, self.models)]
        for at in random.permutation(len(planned)):
            index, queries, models = planned[at]
            yield Minibatch(index, draw_references(data[index], queries, self.references, random), queries, models)

    def _queries_of(self, questions: RatedQuestions) -> int:
        return min(self.queries, questions.size - self.references_of(questions))


def draw_references(
    questions: RatedQuestions, queries: np.ndarray, count: int, random: np.random.Generator
) -> np.ndarray:
    """At most ``count`` questions, uniformly, none with the text of a query."""
    others = np.flatnonzero(~np.isin(questions.group, questions.group[queries]))
    return random.permutation(others)[:count]


def _parts(items: np.ndarray, size: int) -> list[np.ndarray]:
    """Parts of nearly equal size, at most ``size`` each."""
    return np.array_split(items, -(-len(items) // size))
