"""Request streams that can be sent again: prompts and rollout groups, packed into frames of about 1 MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message

from clients.rollout_group import RolloutGroup
from selector.v1 import replay_service_pb2, selector_service_pb2

# Streamed messages of this size are fastest; a larger prompt or group has a frame of its own.
FRAME_BYTES = 2**20

M = TypeVar("M", bound=Message)
Prior = tuple[float, int] | float | None
# Size of an item in bytes, and what adds it to a frame.
Writer = tuple[int, Callable[[Any], None]]
# What a prompt takes besides its text and embedding, roughly.
_PROMPT_BYTES = 64


class RequestStream:
    """Every ``iter()`` is the whole stream from the start, for one attempt.

    gRPC reads requests in a thread of its own and turns an exception there into a call without a cause; ``failure``
    keeps that exception, so that the caller can raise it instead.
    """

    def __init__(self, frames: Callable[[], Iterator[Any]]) -> None:
        self._frames = frames
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._frames()
        except Exception as error:
            self.failure = error
            raise


def prompt_stream(
    header: selector_service_pb2.RegisterPromptsRequest,
    prompt_ids: Sequence[str],
    texts: Sequence[str | None] | None,
    embeddings: Any,
    domains: Sequence[str | None] | None,
    priors: Sequence[Prior] | None,
    token_counts: Any,
) -> RequestStream:
    """RegisterPrompts of parallel columns; ``header`` holds the fields of the first message.

    Raises:
        ValueError: columns of different lengths, embeddings that are not (N, w) numbers, a malformed prior.
    """
    ids = list(prompt_ids)
    vectors = None if embeddings is None else _embeddings(embeddings, len(ids))
    columns = {"texts": texts, "domains": domains, "priors": priors, "token_counts": token_counts}
    for name, column in columns.items():
        if column is not None and len(column) != len(ids):
            raise ValueError(f"{name}: expected one per prompt ({len(ids)}), got {len(column)}")
    evidence = None if priors is None else [_prior(prior, f"priors[{index}]") for index, prior in enumerate(priors)]

    def writers() -> Iterator[Writer]:
        for index, prompt_id in enumerate(ids):
            text = texts[index] if texts is not None else None
            embedding = vectors[index].tobytes() if vectors is not None else b""
            prompt = {
                "prompt_id": prompt_id,
                "text": text,
                "embedding": embedding,
                "domain": domains[index] if domains is not None else None,
                "token_count": int(token_counts[index]) if token_counts is not None else None,
                "prior": evidence[index] if evidence is not None else None,
            }
            size = _PROMPT_BYTES + len(text or "") + len(embedding)
            yield size, partial(_add_prompt, fields=prompt)

    return RequestStream(lambda: _frames(header, writers()))


def rollout_stream(header: replay_service_pb2.PushRolloutsRequest, groups: Sequence[RolloutGroup]) -> RequestStream:
    """PushRollouts of groups; ``header`` holds the fields of the first message."""

    def writers() -> Iterator[Writer]:
        for group in groups:
            yield group.nbytes, partial(_add_group, group=group)

    return RequestStream(lambda: _frames(header, writers()))


def _add_prompt(frame: selector_service_pb2.RegisterPromptsRequest, fields: dict[str, Any]) -> None:
    frame.prompts.add(**fields)


def _add_group(frame: replay_service_pb2.PushRolloutsRequest, group: RolloutGroup) -> None:
    group.write_to(frame.groups.add())


def _frames(header: M, writers: Iterable[Writer]) -> Iterator[M]:
    """The header with the first items, then frames of the following items; at least the header."""
    frame, size = type(header)(), 0
    frame.CopyFrom(header)
    for item_size, write in writers:
        if size and size + item_size > FRAME_BYTES:
            yield frame
            frame, size = type(header)(), 0
        # In place: appending a finished message would copy its payload twice more.
        write(frame)
        size += item_size
    yield frame


def _embeddings(embeddings: Any, count: int) -> np.ndarray:
    array = np.asarray(embeddings)
    if array.ndim != 2 or len(array) != count or array.dtype.kind not in "iuf":
        raise ValueError(f"embeddings: expected numbers of shape ({count}, width), got {array.dtype} {array.shape}")
    return array.astype("<f4", copy=False)


def _prior(prior: Prior, path: str) -> selector_service_pb2.Prior | None:
    if prior is None:
        return None
    rate, trials = rate_and_trials(prior, path)
    return selector_service_pb2.Prior(pass_rate=rate, trials=trials)


def rate_and_trials(prior: Any, path: str) -> tuple[float, int]:
    """A prior's pass rate and trials; a bare pass rate counts as one trial.

    Raises:
        ValueError: it is neither; ``path`` names it.
    """
    try:
        rate, trials = prior if isinstance(prior, (tuple, list, np.ndarray)) else (prior, 1)
        return float(rate), int(trials)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected (pass_rate, trials), a pass rate or None, got {prior!r}") from error
