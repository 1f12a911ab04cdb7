"""Prompts between the protocol and the domain."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np

from selector.errors import invalid
from selector.ranges import MOST_PRIOR_TRIALS
from selector.requests import ImportRequest, PromptSpec
from selector.run import Run
from selector.service import checks
from selector.v1 import selector_service_pb2 as pb

_LONGEST_TEXT = 4 * 2**20
_LONGEST_DOMAIN = 256
_WIDEST_EMBEDDING = 65_536
_MOST_TOKENS = 2**31 - 1
# A message of the export: about 1 MiB, as streamed messages are fastest, and at least one prompt.
_FRAME_BYTES = 2**20


class PromptStream:
    """The prompts of a stream, message by message.

    Attributes:
        specs: all prompts so far, checked for form.
    """

    def __init__(self) -> None:
        self.specs: list[PromptSpec] = []
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, message: pb.RegisterPromptsRequest) -> None:
        """Check the prompts of one message and take them in."""
        for prompt in message.prompts:
            self.specs.append(prompt_spec(prompt, len(self.specs)))
            # The same prompts in other frames are the same request, so the framing is left out.
            content = prompt.SerializeToString(deterministic=True)
            self._digest.update(len(content).to_bytes(8, "little"))
            self._digest.update(content)

    def digest(self) -> bytes:
        """(16 bytes) of all prompts so far."""
        return self._digest.digest()


def prompt_spec(prompt: pb.Prompt, position: int) -> PromptSpec:
    """A prompt to register, checked for form; ``position`` is its place in the request, for the field path."""
    path = f"prompts[{position}]"
    checks.identifier(prompt.prompt_id, f"{path}.prompt_id")
    checks.at_most_bytes(prompt.text, _LONGEST_TEXT, f"{path}.text")
    checks.at_most_bytes(prompt.domain, _LONGEST_DOMAIN, f"{path}.domain")
    checks.between(prompt.token_count, 0, _MOST_TOKENS, f"{path}.token_count")
    rate, trials = math.nan, 0
    if prompt.HasField("prior"):
        rate = checks.real_between(prompt.prior.pass_rate, 0.0, 1.0, f"{path}.prior.pass_rate")
        trials = checks.between(prompt.prior.trials, 1, MOST_PRIOR_TRIALS, f"{path}.prior.trials")
    return PromptSpec(
        prompt_id=prompt.prompt_id,
        text=prompt.text,
        embedding=_embedding(prompt.embedding, f"{path}.embedding"),
        domain=prompt.domain,
        token_count=prompt.token_count,
        prior_rate=rate,
        prior_trials=trials,
    )


def import_request(request: pb.ImportPriorsRequest) -> ImportRequest:
    """Priors to import, checked for form."""
    if not request.priors:
        raise invalid("priors", "expected at least one prior; got none")
    ids = [prior.prompt_id for prior in request.priors]
    for i, prior in enumerate(request.priors):
        checks.identifier(prior.prompt_id, f"priors[{i}].prompt_id")
        checks.real_between(prior.pass_rate, 0.0, 1.0, f"priors[{i}].pass_rate")
        checks.between(prior.trials, 0, MOST_PRIOR_TRIALS, f"priors[{i}].trials")
    checks.distinct_prompts(ids, "priors", ".prompt_id")
    return ImportRequest(
        prompt_ids=ids,
        rates=np.array([prior.pass_rate for prior in request.priors]),
        trials=np.array([prior.trials for prior in request.priors], dtype=np.int32),
        step=checks.step(request.step) if request.HasField("step") else None,
        key=checks.request_key(request, "ImportPriors"),
    )


def prompt_frames(run: Run) -> Iterator[pb.ExportRunResponse]:
    """The pool as it is now, some prompts to a message; what is read later changes nothing any more."""
    pool, features = run.pool, run.features()
    prompts = list(zip(pool.prompt_ids, pool.texts, pool.domain_names, strict=True))
    token_count, status = pool.token_count.copy(), pool.status.copy()
    known = pool.embedding_row >= 0

    def frames() -> Iterator[pb.ExportRunResponse]:
        frame, size = pb.ExportRunResponse(), 0
        for at, (prompt_id, text, domain) in enumerate(prompts):
            prompt = pb.Prompt(prompt_id=prompt_id, text=text, domain=domain, token_count=int(token_count[at]))
            if features.embeddings is not None and known[at]:
                prompt.embedding = features.embeddings[at].astype("<f4").tobytes()
            if features.prior_trials[at] > 0:
                prompt.prior.pass_rate = float(features.prior_rate[at])
                prompt.prior.trials = int(features.prior_trials[at])
            row = pb.PromptRow(prompt=prompt, status=int(status[at]))  # type: ignore[arg-type]
            size += row.ByteSize()
            if frame.prompts and size > _FRAME_BYTES:
                yield frame
                frame, size = pb.ExportRunResponse(), row.ByteSize()
            frame.prompts.append(row)
        if frame.prompts:
            yield frame

    return frames()


def _embedding(data: bytes, path: str) -> np.ndarray | None:
    if not data:
        return None
    if len(data) % 4:
        raise invalid(path, f"expected little-endian float32, a multiple of 4 bytes; got {len(data)} bytes")
    if len(data) > 4 * _WIDEST_EMBEDDING:
        raise invalid(path, f"expected a width of at most {_WIDEST_EMBEDDING}; got {len(data) // 4}")
    return np.frombuffer(data, dtype="<f4")
