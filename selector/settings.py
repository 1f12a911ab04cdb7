"""Settings of the server, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True)
class ServerSettings:
    """How the server runs; the command line documents each field.

    Attributes:
        listen: HOST:PORT of the gRPC service, port 0 = any.
        metrics_listen: HOST:PORT of the metrics endpoint, empty = none.
        state_dir: everything durable is in here.
        encoder: ``default``, ``none``, or a sentence-transformers model name or path.
        device: torch device of the encoder.
        encoder_threads: threads of the encoder, 0 = torch's choice.
        adapters: name -> file of trained adapters.
        tokens: valid bearer tokens, empty = no authentication.
        grace_s: seconds that calls in flight get when the server stops.
        workers: threads for blocking work.
        rewind_window_steps: steps for which replay groups that left the buffer are kept for RewindRun.
        replay_map_bytes: largest size of the replay store.
        max_runs, max_prompts, max_stream_bytes, max_message_bytes: limits, see ``selector.service.limits``.
        metrics_max_runs: runs that are shown one by one on the metrics endpoint.
    """

    state_dir: Path
    listen: str = "127.0.0.1:50051"
    metrics_listen: str = "127.0.0.1:9090"
    encoder: str = "default"
    device: str = "cpu"
    encoder_threads: int = 0
    adapters: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    tokens: tuple[str, ...] = field(default=(), repr=False)
    grace_s: float = 30.0
    workers: int = 8
    rewind_window_steps: int = 100
    replay_map_bytes: int = 64 * 2**30
    max_runs: int = 1000
    max_prompts: int = 10_000_000
    max_stream_bytes: int = 4 * 2**30
    max_message_bytes: int = 64 * 2**20
    metrics_max_runs: int = 100
