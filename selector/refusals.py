"""What a run refuses because of what it holds, each naming the field and the prompts, up to ten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selector.errors import FieldViolation, ServiceError
from selector.events import SelectionEvent
from selector.requests import SelectRequest
from selector.v1.reasons import Reason

_LISTED = 10


def unknown_prompts(
    run_id: str, prompt_ids: Sequence[str], unknown: Sequence[int], path: str, suffix: str
) -> ServiceError:
    """Of the prompts of field ``path``, those at the positions ``unknown`` are not registered."""
    listed = [(i, prompt_ids[i]) for i in unknown[:_LISTED]]
    return ServiceError(
        Reason.UNKNOWN_PROMPT,
        f"{path}: {len(unknown)} unknown prompt(s) in run {run_id!r}: {_joined([each for _, each in listed])}",
        violations=[FieldViolation(f"{path}[{i}]{suffix}", f"unknown prompt {each!r}") for i, each in listed],
        metadata={"unknown": str(len(unknown))},
    )


def content_differs(prompt_ids: Sequence[str]) -> ServiceError:
    """These prompts are registered with other content."""
    return ServiceError(
        Reason.PROMPT_CONTENT_DIFFERS,
        f"prompts: {len(prompt_ids)} registered prompt(s) have other content: {_joined(prompt_ids)}; "
        "set replace to change them",
        violations=[FieldViolation("prompts", f"other content for {each!r}") for each in prompt_ids[:_LISTED]],
        metadata={"differing": str(len(prompt_ids))},
    )


def selection_differs(request: SelectRequest, event: SelectionEvent) -> ServiceError:
    """What is asked for was selected before, with other arguments."""
    return ServiceError(
        Reason.SELECTION_DIFFERS,
        f"step {request.step} round {request.round} was selected before with other arguments: batch_size "
        f"{event.facts.batch_size}, now {request.batch_size}, or another fresh_only or exclude_prompt_ids; "
        "rewind first when training starts over, use the next round for a further selection within the step",
        violations=[FieldViolation("round", "already answered for other arguments")],
    )


def embedding_mismatch(space: str, width: int, asked_space: str, asked_width: int) -> ServiceError:
    """The run's embeddings are of another space, or width, than those that come."""
    return ServiceError(
        Reason.EMBEDDING_MISMATCH,
        f"prompts[].embedding: the run's embeddings are {width} wide in space {space!r}; "
        f"got {asked_width} in {asked_space!r}",
        violations=[FieldViolation("prompts[].embedding", f"expected width {width}; got {asked_width}")],
    )


def embeddings_damaged(run_id: str, prompt_ids: Sequence[str], directory: Path) -> ServiceError:
    """The embeddings of these prompts cannot be used."""
    return ServiceError(
        Reason.EMBEDDINGS_DAMAGED,
        f"run {run_id!r} cannot be predicted: the embeddings of {len(prompt_ids)} prompt(s) in {directory} "
        f"were damaged on disk: {_joined(prompt_ids)}; register them again as they were",
        metadata={"damaged": str(len(prompt_ids))},
    )


def predictor_lost() -> ServiceError:
    """What computes estimates ended, again and again."""
    return ServiceError(
        Reason.STARTING,
        "the process that computes estimates has ended and is started again; try again",
        retry_after_s=1.0,
    )


def _joined(prompt_ids: Sequence[str]) -> str:
    return ", ".join(repr(prompt_id) for prompt_id in prompt_ids[:_LISTED])
