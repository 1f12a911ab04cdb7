"""Request streams that can be sent again: prompts and rollout groups, packed into frames of about 1 MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message

from clients.messages import add, array_of, build, listed, shown
from clients.rollout_group import RolloutGroup
from clients.same_host import Memory
from selector.v1 import replay_service_pb2, selector_service_pb2
from selector.v1.wire import Part, delimited

# Streamed messages of this size are fastest; a larger prompt or group has a frame of its own.
FRAME_BYTES = 2**20
# In memory, between two messages that are sent: each costs more than copying a frame.
_FRAMES_TOLD = 4

M = TypeVar("M", bound=Message)
Prior = tuple[float, int] | float | None
# Size of an item in bytes, and what adds it to a frame.
Writer = tuple[int, Callable[[Any], None]]
_GROUPS = replay_service_pb2.PushRolloutsRequest.DESCRIPTOR.fields_by_name["groups"].number
# Arguments by the field of a prompt that their entries are.
_ARGUMENTS = {
    "prompt_id": "prompt_ids",
    "text": "texts",
    "embedding": "embeddings",
    "domain": "domains",
    "token_count": "token_counts",
    "prior": "priors",
}
# What a prompt takes besides its text and embedding, roughly.
_PROMPT_BYTES = 64


class RequestStream:
    """Every ``iter()`` is the whole stream from the start, for one attempt.

    gRPC reads requests in a thread of its own and turns an exception there into a call without a cause; ``failure``
    keeps that exception, so that the caller can raise it instead. ``begun`` tells whether there was any attempt.
    """

    def __init__(self, frames: Callable[[], Iterator[Any]]) -> None:
        self._frames = frames
        self.failure: Exception | None = None
        self.begun = False

    def __iter__(self) -> Iterator[Any]:
        self.begun = True
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
    ids = listed(prompt_ids, "prompt_ids", "ids")
    vectors = None if embeddings is None else _embeddings(embeddings, len(ids))
    columns = {
        "prompt_id": ids,
        "text": _per_prompt("texts", texts, len(ids), ""),
        "domain": _per_prompt("domains", domains, len(ids), ""),
        "token_count": _per_prompt("token_counts", token_counts, len(ids)),
        "prior": _per_prompt("priors", priors, len(ids)),
    }
    given = {name: column for name, column in columns.items() if column is not None}
    if "prior" in given:
        given["prior"] = [_prior(prior, f"priors[{index}]") for index, prior in enumerate(given["prior"])]

    def writers() -> Iterator[Writer]:
        for index, values in enumerate(zip(*given.values(), strict=True)):
            prompt = dict(zip(given, values, strict=True))
            text = prompt.get("text")
            size = _PROMPT_BYTES + (len(text) if isinstance(text, str) else 0)
            if vectors is not None:
                prompt["embedding"] = vectors[index].tobytes()
                size += len(prompt["embedding"])
            yield size, partial(_add_prompt, fields=prompt, index=index)

    return RequestStream(lambda: _frames(header, writers()))


def rollout_stream(header: replay_service_pb2.PushRolloutsRequest, groups: Sequence[RolloutGroup]) -> RequestStream:
    """PushRollouts of groups, encoded; ``header`` holds the fields of the first message."""

    def frames() -> Iterator[bytes]:
        first = header.SerializeToString()
        for frame in rollout_frames(groups):
            yield b"".join([first, *frame])
            first = b""

    return RequestStream(frames)


def rollout_stream_in(
    memory: Memory, header: replay_service_pb2.PushRolloutsRequest, groups: Sequence[RolloutGroup]
) -> RequestStream:
    """The same through memory: what is sent says how far it is filled, while the service reads what is there."""

    def frames() -> Iterator[bytes]:
        message = replay_service_pb2.PushRolloutsRequest(memory=memory.named())
        message.MergeFrom(header)
        for frame in rollout_frames(groups):
            message.memory_messages.append(memory.write(frame))
            if len(message.memory_messages) == _FRAMES_TOLD:
                yield message.SerializeToString()
                message.Clear()
        yield message.SerializeToString()

    return RequestStream(frames)


def rollout_frames(groups: Sequence[RolloutGroup]) -> Iterator[list[Part]]:
    """Messages of PushRollouts that hold the groups and nothing else, encoded, in parts.

    Raises:
        ValueError: one of them is no group, or cannot be sent; names it.
    """
    frame: list[Part] = []
    size = 0
    for index, group in enumerate(groups):
        if isinstance(group, type) or not hasattr(group, "write_to"):
            raise ValueError(f"groups[{index}]: expected a RolloutGroup, got {shown(group)}")
        if size and size + group.nbytes > FRAME_BYTES:
            yield frame
            frame, size = [], 0
        frame += delimited(_GROUPS, _encoded(group, index))
        size += group.nbytes
    yield frame


def _add_prompt(frame: selector_service_pb2.RegisterPromptsRequest, fields: dict[str, Any], index: int) -> None:
    add(frame.prompts, selector_service_pb2.Prompt, lambda name: f"{_ARGUMENTS[name]}[{index}]", **fields)


def _encoded(group: Any, index: int) -> list[Part]:
    try:
        if isinstance(group, RolloutGroup):
            return group.encoded()
        message = replay_service_pb2.RolloutGroup()
        group.write_to(message)
        return [message.SerializeToString()]
    except ValueError as error:
        raise ValueError(f"groups[{index}].{error}") from error


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


def _per_prompt(name: str, column: Any, count: int, absent: Any = None) -> list[Any] | None:
    """One entry per prompt, ``absent`` in place of None."""
    if column is None:
        return None
    entries = listed(column, name, name)
    if len(entries) != count:
        raise ValueError(f"{name}: expected one per prompt ({count}), got {len(entries)}")
    return entries if absent is None else [absent if entry is None else entry for entry in entries]


def _embeddings(embeddings: Any, count: int) -> np.ndarray:
    array = array_of(embeddings, "embeddings", f"numbers of shape ({count}, width)")
    if array.ndim != 2 or len(array) != count or array.dtype.kind not in "iuf":
        raise ValueError(f"embeddings: expected numbers of shape ({count}, width), got {array.dtype} {array.shape}")
    return array.astype("<f4", copy=False)


def _prior(prior: Prior, path: str) -> selector_service_pb2.Prior | None:
    if prior is None:
        return None
    rate, trials = rate_and_trials(prior, path)
    return build(selector_service_pb2.Prior, path, pass_rate=rate, trials=trials)


def rate_and_trials(prior: Any, path: str) -> tuple[Any, Any]:
    """A prior's pass rate and trials, which the message they go into checks; a bare pass rate counts as one trial.

    Raises:
        ValueError: it is neither; ``path`` names it.
    """
    pair = prior.tolist() if isinstance(prior, np.ndarray) else prior
    if isinstance(pair, (tuple, list)):
        if len(pair) == 2:
            return pair[0], pair[1]
    elif hasattr(pair, "__float__"):
        return pair, 1
    raise ValueError(f"{path}: expected (pass_rate, trials), a pass rate or None, got {shown(prior)}")
