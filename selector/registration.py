"""From prompts as sent to prompt records: content hashes, embeddings, eligibility.

Embedding may take minutes, so it happens before the run is touched and outside of its lock. It is kept by content hash:
a registration that is repeated, after a crash say, goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from selector.config import RunConfig
from selector.content import content_hash
from selector.embedding.embedder import Embedder
from selector.embedding.errors import (
    EmbeddingCancelled,
    EmbeddingQuotaExceeded,
    EmbeddingStorageError,
    InvalidEmbeddingError,
)
from selector.errors import FieldViolation, ServiceError, invalid
from selector.pool import ACTIVE, INELIGIBLE, Pool, PromptRecord
from selector.quotas import quota_exceeded
from selector.requests import PromptSpec
from selector.run_adapter import NO_ADAPTER, RunAdapter
from selector.v1.reasons import Reason

# Beyond it squares and their sums leave float32; no encoder comes near it.
_LARGEST_COMPONENT = 1e9


@dataclass(frozen=True)
class Registration:
    """Prompts of one request, ready to be put into a run.

    Attributes:
        records: distinct prompts, in order.
        space: embedding space of their rows, empty when none of them was embedded now.
        width: of that space.
        embeddings: of each record as it was sent, None = none was.
    """

    records: list[PromptRecord]
    space: str
    width: int
    embeddings: list[np.ndarray | None]


def prepare(
    config: RunConfig,
    run_space: str,
    pool: Pool,
    specs: Sequence[PromptSpec],
    embedder: Embedder,
    cancelled: Callable[[], bool],
    adapter: RunAdapter = NO_ADAPTER,
) -> Registration:
    """Embed what needs it and build the records.

    Prompts that are registered as the same question and have an embedding keep it, whatever encoder there is now.

    Args:
        run_space: embedding space the run is in already, empty = none yet.
        pool: of the run; only read.
        adapter: of the run.

    Raises:
        ServiceError: DUPLICATE_PROMPT, EMBEDDING_MISMATCH, ADAPTER_MISMATCH, NO_ENCODER, INVALID_FIELD, QUOTA_EXCEEDED,
            STORAGE_FAILED.
    """
    places, contents = _distinct(specs)
    specs = [specs[i] for i in places]
    known = [_registered_row(pool, spec, content) for spec, content in zip(specs, contents, strict=True)]
    rows = np.array([-1 if row is None else row for row in known], dtype=np.int64)
    # Sent again, a prompt whose embedding was damaged gets it back.
    rows[embedder.damaged(run_space, rows)] = -1
    ready = [i for i, spec in enumerate(specs) if spec.embedding is not None]
    bare = [i for i, spec in enumerate(specs) if spec.embedding is None]
    if ready and bare:
        raise invalid(
            f"prompts[{places[bare[0]]}].embedding",
            "expected an embedding, as other prompts of the request have one; got none",
            Reason.EMBEDDING_MISMATCH,
        )
    fresh = [i for i in ready if rows[i] < 0]
    # A registered prompt without embedding stays so where there is no encoder of the run's space.
    embeddable = embedder.space is not None and run_space in ("", embedder.space.key)
    texts = [i for i in bare if rows[i] < 0 and specs[i].text and (known[i] is None or embeddable)]
    empty = [i for i in bare if rows[i] < 0 and not specs[i].text]
    if empty and config.estimator.name == "ATTENTION":
        raise invalid(f"prompts[{places[empty[0]]}].text", "ATTENTION needs a text or an embedding; got neither")
    space, width = "", 0
    try:
        if fresh:
            vectors = _stacked([specs[i].embedding for i in fresh], [places[i] for i in fresh])
            client = embedder.client_space(vectors.shape[1])
            space, width = client.key, client.width
            _check_space(run_space, space)
            rows[fresh] = embedder.keep(vectors)
        elif texts and embedder.encoder is not None and embedder.space is not None:
            space, width = embedder.space.key, embedder.space.width
            _check_space(run_space, space)
            adapter.check_encoder(embedder.encoder)
            rows[texts] = embedder.embed([specs[i].text for i in texts], cancelled=cancelled)
        elif texts and (config.estimator.name == "ATTENTION" or run_space):
            raise ServiceError(
                Reason.NO_ENCODER,
                "prompts[].text: the service runs without an encoder and this run needs embeddings; "
                "send embeddings or start the service with one",
                violations=[FieldViolation("prompts[].embedding", "expected an embedding; got none")],
            )
    except EmbeddingStorageError as error:
        raise ServiceError(Reason.STORAGE_FAILED, f"{error}; nothing was registered", retry_after_s=1.0) from error
    except EmbeddingQuotaExceeded as error:
        hint = f"embeddings of deleted runs count as well; this would make {error.wanted}"
        raise quota_exceeded("max_total_embedding_bytes", error.max_bytes, hint) from error
    except InvalidEmbeddingError as error:
        raise invalid("prompts[].embedding", str(error)) from error
    except EmbeddingCancelled as error:
        raise ServiceError(
            Reason.DEADLINE_EXCEEDED, "the call ended while texts were embedded; repeat it to go on"
        ) from error
    records = [_record(config, *prompt) for prompt in zip(specs, contents, rows.tolist(), strict=True)]
    return Registration(records, space, width, [spec.embedding for spec in specs])


def _registered_row(pool: Pool, spec: PromptSpec, content: bytes) -> int | None:
    """Embedding row of the prompt, if it is registered as the same question and not being replaced meanwhile."""
    at = pool.index.get(spec.prompt_id)
    if at is None:
        return None
    before = pool.content_hashes[at]
    row = int(pool.embedding_row[at])
    same = before == content or pool.same_question(at, spec.text, spec.embedding)
    return row if same and pool.content_hashes[at] == before else None


def _content(spec: PromptSpec) -> bytes:
    return content_hash(spec.text, spec.embedding, spec.domain, spec.token_count, spec.prior_rate, spec.prior_trials)


def _distinct(specs: Sequence[PromptSpec]) -> tuple[list[int], list[bytes]]:
    """Position and content hash of one spec per id; the same id may be sent twice only with the same content."""
    seen: dict[str, tuple[int, bytes]] = {}
    for i, spec in enumerate(specs):
        content = _content(spec)
        earlier = seen.setdefault(spec.prompt_id, (i, content))
        if earlier[1] != content:
            raise invalid(
                f"prompts[{i}].prompt_id",
                f"{spec.prompt_id!r} is also at prompts[{earlier[0]}] with other content",
                Reason.DUPLICATE_PROMPT,
            )
    return [place for place, _ in seen.values()], [content for _, content in seen.values()]


def _stacked(vectors: Sequence[np.ndarray | None], places: Sequence[int]) -> np.ndarray:
    """(n, w) float32 of n embeddings; ``places`` are their positions in the request."""
    present = [vector for vector in vectors if vector is not None]
    width = len(present[0])
    if {len(vector) for vector in present} == {width}:
        stacked = np.stack(present)
        # NaN is neither.
        if stacked.min() >= -_LARGEST_COMPONENT and stacked.max() <= _LARGEST_COMPONENT:
            return stacked
    for place, vector in zip(places, present, strict=True):
        if len(vector) != width:
            description = f"expected width {width}; got {len(vector)}"
            raise invalid(f"prompts[{place}].embedding", description, Reason.EMBEDDING_MISMATCH)
        if not np.isfinite(vector).all():
            raise invalid(f"prompts[{place}].embedding", "expected finite numbers; got NaN or infinity")
        largest = float(np.abs(vector).max())
        if largest > _LARGEST_COMPONENT:
            description = f"expected components within ±{_LARGEST_COMPONENT:g}; got one of magnitude {largest:g}"
            raise invalid(f"prompts[{place}].embedding", description)
    raise AssertionError("all embeddings can be stacked")


def _check_space(run_space: str, space: str) -> None:
    if run_space and run_space != space:
        raise invalid(
            "prompts[].embedding",
            f"the run's embeddings are in space {run_space!r}; got {space!r}",
            Reason.EMBEDDING_MISMATCH,
        )


def _record(config: RunConfig, spec: PromptSpec, content: bytes, row: int) -> PromptRecord:
    limit = config.max_prompt_tokens
    too_long = limit > 0 and spec.token_count > limit
    return PromptRecord(
        prompt_id=spec.prompt_id,
        content_hash=content,
        text=spec.text,
        embedding_row=row,
        domain=spec.domain,
        token_count=spec.token_count,
        prior_rate=spec.prior_rate,
        prior_trials=spec.prior_trials,
        status=INELIGIBLE if too_long else ACTIVE,
        status_reason=f"token_count {spec.token_count} > max_prompt_tokens {limit}" if too_long else "",
    )
