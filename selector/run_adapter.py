"""The trained adapter of a run, and whether it takes the embeddings that the run has.

An adapter means something only for embeddings of the encoder it was trained on. Embeddings that clients send say
nothing about their encoder, so there only the width can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.difficulty.adapter import Adapter
from selector.embedding.embedder import is_client_space
from selector.embedding.encoder import Encoder
from selector.errors import FieldViolation, ServiceError, invalid
from selector.v1.reasons import Reason

_SHOWN_KEY = 48


@dataclass(frozen=True)
class RunAdapter:
    """``name`` as in the run's configuration, empty = none; ``adapter`` None when the server does not have it."""

    name: str
    adapter: Adapter | None

    @property
    def missing(self) -> bool:
        """Whether the run needs an adapter that the server was started without."""
        return bool(self.name) and self.adapter is None

    def misfit(self, encoder: Encoder) -> str | None:
        """What is wrong with embedding texts by this encoder, None = nothing."""
        if self.adapter is None or (self.adapter.takes(encoder.key) and self.adapter.input_width == encoder.width):
            return None
        return f"{self._described(self.adapter)}; the service embeds with {encoder.name!r} ({_short(encoder.key)})"

    def check_encoder(self, encoder: Encoder) -> None:
        """Before texts are embedded.

        Raises:
            ServiceError: ADAPTER_MISMATCH.
        """
        problem = self.misfit(encoder)
        if problem is not None:
            raise ServiceError(
                Reason.ADAPTER_MISMATCH,
                f"prompts[].text: {problem}; serve with that encoder, send embeddings, or train an adapter for this",
                violations=[FieldViolation("prompts[].text", "expected an encoder that the run's adapter takes")],
                metadata={"adapter": self.name, "encoder": encoder.name},
            )

    def check_width(self, width: int) -> None:
        """Before embeddings are taken into a run.

        Raises:
            ServiceError: EMBEDDING_MISMATCH.
        """
        if self.adapter is not None and width != self.adapter.input_width:
            raise invalid(
                "prompts[].embedding",
                f"expected width {self.adapter.input_width}, which adapter {self.name!r} takes; got {width}",
                Reason.EMBEDDING_MISMATCH,
            )

    def check_usable(self, run_id: str, space: str, width: int) -> None:
        """Before an estimate, as the server may have been started with another adapter of the name.

        Args:
            space: of the run's embeddings, empty = none yet.

        Raises:
            ServiceError: UNKNOWN_ADAPTER or ADAPTER_MISMATCH.
        """
        if self.missing:
            raise ServiceError(
                Reason.UNKNOWN_ADAPTER,
                f"run {run_id!r} needs adapter {self.name!r}, which the server was started without",
                metadata={"adapter": self.name},
            )
        if self.adapter is None or not space:
            return
        if width != self.adapter.input_width or not (is_client_space(space) or self.adapter.takes(space)):
            raise ServiceError(
                Reason.ADAPTER_MISMATCH,
                f"{self._described(self.adapter)}; the embeddings of run {run_id!r} are {width} wide and of "
                f"{_short(space)}",
                metadata={"adapter": self.name, "space": space},
            )

    def _described(self, adapter: Adapter) -> str:
        trained = (
            f"encoder {adapter.encoder!r} ({_short(adapter.encoder_hash)})" if adapter.encoder_hash else "any encoder"
        )
        return f"adapter {self.name!r} takes embeddings of width {adapter.input_width} of {trained}"


NO_ADAPTER = RunAdapter("", None)


def _short(key: str) -> str:
    return key if len(key) <= _SHOWN_KEY else f"{key[: _SHOWN_KEY - 1]}…"
