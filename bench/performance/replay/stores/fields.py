"""gRPC as it is usually written: a message with packed repeated fields per group, kept as the server got it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench.performance.replay.content import Arrays
from bench.performance.replay.serving import Settings, server, slots

_PACKAGE = "bench.replay"
_FIELDS = (
    ("lengths", "TYPE_INT32", np.int32),
    ("rewards", "TYPE_DOUBLE", np.float64),
    ("prompt", "TYPE_INT32", np.int32),
    ("tokens", "TYPE_INT32", np.int32),
    ("log_probs", "TYPE_FLOAT", np.float32),
    ("mask", "TYPE_UINT32", np.uint8),
)


def _message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="bench_replay.proto", package=_PACKAGE, syntax="proto3")
    group = file.message_type.add(name="Group")
    names = ("slot", *(name for name, _, _ in _FIELDS))
    kinds = ("TYPE_INT64", *(kind for _, kind, _ in _FIELDS))
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True), 1):
        label = "LABEL_OPTIONAL" if name == "slot" else "LABEL_REPEATED"
        field: Any = group.field.add(name=name, number=number)
        field.type = getattr(descriptor_pb2.FieldDescriptorProto, kind)
        field.label = getattr(descriptor_pb2.FieldDescriptorProto, label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Group"))


_Group = _message()


class Fields:
    """The client."""

    name = f"gRPC {grpc.__version__}, packed repeated fields"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process, port = server("fields")
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._push = self._channel.stream_unary("/bench/Push", _Group.SerializeToString, bytes)
        self._sample = self._channel.unary_stream("/bench/Sample", bytes, _Group.FromString)

    def prepare(self, step: int, groups: Sequence[Arrays]) -> tuple[range, Sequence[Arrays]]:
        return slots(step, self._settings), groups

    def push(self, prepared: tuple[range, Sequence[Arrays]]) -> None:
        def messages() -> Iterator[Any]:
            for slot, group in zip(*prepared, strict=True):
                columns = zip(_FIELDS, group.columns, strict=True)
                yield _Group(slot=slot, **{name: array.tolist() for (name, _, _), array in columns})

        self._push(messages())

    def sample(self, step: int, count: int) -> list[Arrays]:
        messages = self._sample(b"%d %d" % (step, count))
        return [
            Arrays(*(np.array(getattr(message, name), dtype=kind) for name, _, kind in _FIELDS)) for message in messages
        ]

    def arrays(self, sampled: list[Arrays]) -> list[Arrays]:
        return sampled

    def close(self) -> None:
        self._channel.close()
        self._process.terminate()
        self._process.wait(60)


def open_store(settings: Settings) -> Fields:
    """The server and its client."""
    return Fields(settings)


def serve() -> None:
    """Serve until the process is ended."""
    kept: dict[int, Any] = {}

    def push(requests: Iterator[Any], _context: grpc.ServicerContext) -> bytes:
        kept.update((group.slot, group) for group in requests)
        return b"done"

    def sample(request: bytes, _context: grpc.ServicerContext) -> Iterator[Any]:
        seed, count = map(int, request.split())
        for slot in random.Random(seed).sample(list(kept), count):
            yield kept[slot]

    handlers = {
        "Push": grpc.stream_unary_rpc_method_handler(push, _Group.FromString, None),
        "Sample": grpc.unary_stream_rpc_method_handler(sample, None, _Group.SerializeToString),
    }
    serving = grpc.server(ThreadPoolExecutor(4))
    serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    serving.wait_for_termination()


if __name__ == "__main__":
    serve()
