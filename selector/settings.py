"""Settings of the server, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from selector.grants import Grant


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
        neighbours_device: where nearest neighbours are searched for, ``cpu`` or ``cuda``.
        adapters: name -> file of trained adapters.
        tokens: valid bearer tokens besides those of the file; without either, everybody may do everything.
        token_file: see ``selector.service.token_file``.
        tls_cert, tls_key: PEM files of the server's certificate, with its chain, and of its key; None = plaintext.
        tls_client_ca: PEM file of the authorities that clients' certificates must come from; None = clients need none.
        insecure: other machines may reach the port although it is plaintext or asks for no token.
        grace_s: seconds that calls in flight get when the server stops.
        workers: threads for blocking work.
        predictor_threads: threads of the process that computes estimates; 0 = the server computes them itself.
        predictor_device: what that process computes attention on, see ``selector.difficulty.kernel``.
        rewind_window_steps: steps for which replay groups that left the buffer are kept for RewindRun.
        replay_map_bytes: largest size of the replay store.
        reserve_bytes: disk space kept back for deleting and rewinding runs when the disk is full, 0 = none.
        snapshot_groups: groups reported between two snapshots of a run's state, at least.
        max_...: limits of what is kept and of what is under way; ``docs/limits.md`` tells them all.
        stream_idle_s: seconds that a caller may take to send or to take one message.
        keepalive_s: seconds between two pings that ask whether a connection's other end is still there.
        metrics_max_runs: runs that are shown one by one on the metrics endpoint.
    """

    state_dir: Path
    listen: str = "127.0.0.1:50051"
    metrics_listen: str = "127.0.0.1:9090"
    encoder: str = "default"
    device: str = "cpu"
    encoder_threads: int = 0
    neighbours_device: str = "cpu"
    adapters: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    tokens: tuple[Grant, ...] = field(default=(), repr=False)
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    insecure: bool = False
    grace_s: float = 30.0
    workers: int = 8
    predictor_threads: int = 1
    predictor_device: str = "cpu"
    rewind_window_steps: int = 100
    replay_map_bytes: int = 64 * 2**30
    reserve_bytes: int = 8 * 2**20
    snapshot_groups: int = 32_768
    max_runs: int = 1000
    max_prompts: int = 10_000_000
    max_total_prompts: int = 40_000_000
    max_prompt_bytes: int = 16 * 2**30
    max_total_prompt_bytes: int = 32 * 2**30
    max_total_embedding_bytes: int = 256 * 2**30
    max_replay_groups: int = 200_000
    max_total_replay_groups: int = 2_000_000
    max_replay_bytes: int = 32 * 2**30
    max_total_replay_bytes: int = 48 * 2**30
    max_message_bytes: int = 64 * 2**20
    max_stream_bytes: int = 4 * 2**30
    max_inflight_bytes: int = 4 * 2**30
    max_total_inflight_bytes: int = 8 * 2**30
    max_calls: int = 1024
    max_total_calls: int = 4096
    max_streams: int = 512
    max_total_streams: int = 2048
    max_connection_streams: int = 512
    stream_idle_s: float = 300.0
    keepalive_s: float = 60.0
    metrics_max_runs: int = 100
