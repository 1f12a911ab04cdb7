"""The named reasons of every error, shared by server and client.

Each reason fixes the gRPC status code it is sent with. On the wire a reason is ``google.rpc.ErrorInfo.reason`` in the
domain ``ERROR_DOMAIN``; it never changes once released, while messages may.
"""

from __future__ import annotations

from enum import Enum

ERROR_DOMAIN = "selector.v1"


class Reason(Enum):
    """A named reason: value = (gRPC status code name, what it means)."""

    code: str
    meaning: str

    def __init__(self, code: str, meaning: str) -> None:
        self.code = code
        self.meaning = meaning

    INVALID_FIELD = ("INVALID_ARGUMENT", "a field is missing, malformed or out of range")
    CONTRADICTORY_FIELDS = ("INVALID_ARGUMENT", "fields that cannot be set together")
    UNKNOWN_PROMPT = ("INVALID_ARGUMENT", "a prompt id is not registered in the run")
    DUPLICATE_PROMPT = ("INVALID_ARGUMENT", "a prompt id occurs twice in one request")
    PROMPT_CONTENT_DIFFERS = ("INVALID_ARGUMENT", "a registered prompt has other content and replace is off")
    EMBEDDING_MISMATCH = ("INVALID_ARGUMENT", "an embedding has another width or space than the run's")
    INVALID_OUTCOME = ("INVALID_ARGUMENT", "an outcome is NaN, infinite or outside outcome_range")
    REQUEST_ID_REUSED = ("INVALID_ARGUMENT", "the request_id was used before with other content")
    SELECTION_DIFFERS = ("INVALID_ARGUMENT", "this (step, purpose, round), or sample, was answered for other arguments")
    INVALID_GROUP = (
        "INVALID_ARGUMENT",
        "a rollout group is not sound: columns that do not fit, negative token ids, or its id is another's",
    )
    INVALID_LOG_PROB = ("INVALID_ARGUMENT", "a behaviour log-prob is NaN, infinite or positive where the mask is 1")
    INVALID_PAGE_TOKEN = ("INVALID_ARGUMENT", "a page token is not one that was handed out")
    RUN_NOT_FOUND = ("NOT_FOUND", "there is no such run")
    PROMPT_NOT_FOUND = ("NOT_FOUND", "there is no such prompt in the run")
    RUN_EXISTS = ("ALREADY_EXISTS", "the run exists with another config, or was not made by this ForkRun request")
    SAMPLING_DIFFERS = ("FAILED_PRECONDITION", "log-probs were made under other sampling settings than the run's")
    NO_ENCODER = ("FAILED_PRECONDITION", "texts cannot be embedded: the service runs without an encoder")
    UNKNOWN_ADAPTER = ("FAILED_PRECONDITION", "the server was not started with this adapter")
    ADAPTER_MISMATCH = ("FAILED_PRECONDITION", "the run's adapter takes embeddings of another encoder or width")
    REWIND_BEYOND_HISTORY = ("FAILED_PRECONDITION", "replay groups needed to go back that far are gone")
    EMBEDDINGS_DAMAGED = (
        "FAILED_PRECONDITION",
        "embeddings were damaged on disk; register their prompts again as they were",
    )
    HISTORY_CHANGED = ("FAILED_PRECONDITION", "the run was rewound or deleted while its history was being read")
    QUOTA_EXCEEDED = ("RESOURCE_EXHAUSTED", "a limit of the run or of the server is reached")
    OVERLOADED = ("RESOURCE_EXHAUSTED", "too much is under way at once; nothing was applied, try again")
    STARTING = ("UNAVAILABLE", "the server is still loading; try again")
    DRAINING = ("UNAVAILABLE", "the server is shutting down; try again")
    STORAGE_FAILED = ("UNAVAILABLE", "the state directory could not be written; nothing was applied")
    UNAUTHENTICATED = ("UNAUTHENTICATED", "the bearer token is missing or wrong")
    PERMISSION_DENIED = ("PERMISSION_DENIED", "the token may not do this")
    DEADLINE_EXCEEDED = ("DEADLINE_EXCEEDED", "the deadline passed; nothing was applied")
    STREAM_IDLE = ("DEADLINE_EXCEEDED", "a caller neither sent nor took a message for too long; nothing was applied")
    INTERNAL = ("INTERNAL", "a defect of the service; nothing was applied")
