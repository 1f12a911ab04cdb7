"""ExportRun of the pool: every prompt as it was registered, in order, in messages of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from selector.v1 import selector_service_pb2 as pb
from selector.v1 import selector_service_pb2_grpc as pb_grpc
from tests.service.running import InProcessService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    running = InProcessService(tmp_path / "state")
    yield running
    running.close()


def test_prompts_come_back_as_they_were_registered(service: InProcessService) -> None:
    client = service.client("run")
    client.create_run({"max_prompt_tokens": 10})
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    client.register_prompts(
        ["a", "b", "c", "d"],
        texts=["", "text of b", "ü", "d"],
        embeddings=vectors,
        domains=["x", None, "y", "x"],
        priors=[None, (0.25, 4), (0.0, 1), None],
        token_counts=[0, 3, 11, 0],
    )
    client.retire_prompts(["d"])
    rows = list(client.export("prompts"))
    assert [row.prompt_id for row in rows] == ["a", "b", "c", "d"]
    assert [row.text for row in rows] == ["", "text of b", "ü", "d"]
    assert [row.domain for row in rows] == ["x", "", "y", "x"]
    assert [row.prior for row in rows] == [None, (0.25, 4), (0.0, 1), None]
    assert [row.token_count for row in rows] == [0, 3, 11, 0]
    assert [row.status for row in rows] == ["ACTIVE", "ACTIVE", "INELIGIBLE", "RETIRED"]
    for row, vector in zip(rows, vectors, strict=True):
        assert row.embedding is not None
        np.testing.assert_array_equal(row.embedding, vector)


def test_prompts_without_embedding_come_without(service: InProcessService) -> None:
    client = service.client("run")
    client.create_run({})
    assert list(client.export("prompts")) == []
    client.register_prompts(["a", "b"], texts=["x", "y"])
    assert [(row.prompt_id, row.embedding) for row in client.export("prompts")] == [("a", None), ("b", None)]


def test_a_run_can_be_built_anew_from_its_export(service: InProcessService) -> None:
    first, second = service.client("first"), service.client("second")
    for client in (first, second):
        client.create_run({"seed": 5})
    first.register_prompts(
        [f"p{i}" for i in range(30)],
        embeddings=np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32),
        domains=["x" if i % 3 else "y" for i in range(30)],
        priors=[(i / 30, 8) for i in range(30)],
    )
    rows = list(first.export("prompts"))
    second.register_prompts(
        [row.prompt_id for row in rows],
        embeddings=np.stack([row.embedding for row in rows if row.embedding is not None]),
        domains=[row.domain for row in rows],
        priors=[row.prior for row in rows],
    )
    assert second.select_batch(0, 8).prompt_ids == first.select_batch(0, 8).prompt_ids
    assert list(second.export("prompts")) != []


def test_messages_are_of_bounded_size(service: InProcessService) -> None:
    client = service.client("run")
    client.create_run({})
    client.register_prompts(
        [f"p{i}" for i in range(40)], texts=["x" * 100_000 if i else "y" * 2_000_000 for i in range(40)]
    )
    with grpc.insecure_channel(service.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        stub = pb_grpc.SelectorServiceStub(channel)
        request = pb.ExportRunRequest(run_id="run", kind=pb.EXPORT_KIND_PROMPTS)
        frames = list(stub.ExportRun(request, timeout=30))
    assert [len(frame.prompts) for frame in frames] == [1, *[10] * 3, 9]
    assert all(frame.ByteSize() <= 2**20 for frame in frames[1:])
