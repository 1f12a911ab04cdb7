"""ReplayService: takes groups in, gives groups out; the payload is stored as it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import chain

import grpc
from google.protobuf.message import DecodeError

from selector.batches import shard_share
from selector.errors import FieldViolation, ServiceError, invalid
from selector.replay.checksum import crc32
from selector.replay.errors import GroupRefused
from selector.replay.group import CheckedGroup, validate_group
from selector.replay.plans import Refusal, SampleOrder, SampleRequest
from selector.replay.replay_run import PushResult, Sample
from selector.requests import RequestKey
from selector.run import Run
from selector.runs import Runs
from selector.service import checks, shared_memory
from selector.service.access import Access
from selector.service.calls import Calls
from selector.service.group_messages import group_columns
from selector.service.lanes import Lanes
from selector.service.limits import Limits
from selector.service.pushed_groups import PushedGroup, PushMessage, decode_group
from selector.service.rpc import RpcObserver, streaming, unary
from selector.service.shared_memory import SharedMemory
from selector.v1 import replay_service_pb2 as pb
from selector.v1 import replay_service_pb2_grpc as pb_grpc
from selector.v1 import selector_service_pb2
from selector.v1.reasons import Reason
from selector.v1.wire import Part, delimited

_FRAME_BYTES = 2**20
# Of what is not sent: fewer pieces are fewer turns in the run's lane.
_WRITTEN_BYTES = 4 * _FRAME_BYTES
# Between the largest group and the largest message: what is added to a group when it is sampled.
_ROOM_BYTES = 2**16
# Messages of about 1 MiB: to have a thread do something costs more than to check a small message.
_CHECKED_AT_ONCE = 4
_MOST_SAMPLED = 1_000_000
_LISTED = 10
# Each is held, and answered, with what is wrong with it; tiny ones could otherwise fill the memory.
_MOST_REFUSED = 10_000
# A sound id fits; of one that is refused for its length, so much is enough.
_LONGEST_ID = 300

_GROUPS = pb.SampleRolloutsResponse.DESCRIPTOR.fields_by_name["groups"].number
_GROUP = pb.SampledGroup.DESCRIPTOR.fields_by_name["group"].number
_GROUP_ID = pb.RolloutGroup.DESCRIPTOR.fields_by_name["group_id"].number

_ORDERS = {
    pb.SAMPLE_ORDER_UNSPECIFIED: SampleOrder.UNIFORM,
    pb.SAMPLE_ORDER_UNIFORM: SampleOrder.UNIFORM,
    pb.SAMPLE_ORDER_NEWEST: SampleOrder.NEWEST,
}


class ReplayServicer(pb_grpc.ReplayServiceServicer):
    """See ``proto/selector/v1/replay_service.proto``."""

    def __init__(
        self,
        runs: Runs,
        lanes: Lanes,
        limits: Limits,
        access: Access,
        calls: Calls,
        observer: RpcObserver,
        monotonic: Callable[[], float],
        carried: Callable[[str, bool, int], None],
    ) -> None:
        """``carried`` is told direction, whether by memory, and number of the groups of each message."""
        self._runs = runs
        self._lanes = lanes
        self._limits = limits
        self._largest_group = limits.max_message_bytes - min(_ROOM_BYTES, limits.max_message_bytes // 8)
        self.access = access
        self.calls = calls
        self.observer = observer
        self.monotonic = monotonic
        self._carried = carried

    @unary
    async def PushRollouts(
        self, request: AsyncIterator[PushMessage], context: grpc.aio.ServicerContext
    ) -> pb.PushRolloutsResponse:
        begin = await anext(request, None)
        if begin is None:
            raise invalid("run_id", "expected at least one message; got an empty stream")
        first = begin.head
        run = self._runs.find(checks.run_id(first.run_id))
        step = checks.step(first.step)
        run_id, skip_refused, request_id = first.run_id, first.skip_refused, first.request_id
        checks.request_id(first)
        memory = shared_memory.reached(first)
        if first.HasField("memory") and memory is None:
            return pb.PushRolloutsResponse()
        push = _Push(self._limits, self._largest_group)
        unchecked: list[PushMessage] = []
        async for message in self._messages(begin, memory, request, context):
            if message.run_id not in ("", run_id):
                raise invalid("run_id", f"expected {run_id!r} throughout the stream; got {message.run_id!r}")
            unchecked.append(message)
            if len(unchecked) == _CHECKED_AT_ONCE:
                await self._lanes.take_in(run_id, partial(push.check, run, step, unchecked), context)
                unchecked = []
        if unchecked:
            await self._lanes.take_in(run_id, partial(push.check, run, step, unchecked), context)

        def store() -> PushResult:
            current = self._runs.same(run)
            current.reconcile()
            current.answered.check_push(request_id)
            current.refused_groups.update(refusal.reason.name for _, refusal in push.refused)
            if push.refused and not skip_refused:
                raise push.refusal()
            return current.replay.push(
                push.groups, step, request_id, skip_refused=skip_refused, checksums=push.checksums
            )

        result = await self._lanes.run(run_id, store, context)
        self._lanes.announce(run_id)
        answer = _push_message(push, result)
        answer.from_memory = memory is not None
        return answer

    @streaming
    async def SampleRollouts(
        self, request: pb.SampleRolloutsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SampleRolloutsResponse | bytes]:
        run_id = checks.run_id(request.run_id)
        self._runs.find(run_id)
        asked, part, key = await self._lanes.take_in(run_id, lambda: _sample_request(request), context)
        memory = shared_memory.reached(request)
        if request.wait:
            await self._wait(run_id, asked, context)

        def draw() -> tuple[Run, Sample]:
            run = self._runs.get(run_id)
            return run, run.sample(asked, part, key)

        run, sample = await self._lanes.run(run_id, draw, context)
        end = pb.SampleRolloutsResponse(
            shortfall=shard_share(sample.shortfall, *part), eligible_groups=sample.eligible, last=True
        )
        if end.shortfall:
            end.shortfall_reason = selector_service_pb2.SHORTFALL_REASON_BUFFER_TOO_SMALL
        sent, count, parts = 0, 0, list[Part]()
        while sent < len(sample.positions):
            # What has no room is sent, and must not be too large for that.
            written = memory is not None and memory.room >= _WRITTEN_BYTES + _FRAME_BYTES
            piece = min(_WRITTEN_BYTES if written else _FRAME_BYTES, self._largest_group)
            parts, count = await self._lanes.run(run_id, partial(self._groups, run, sample, sent, piece), context)
            sent += count
            if sent < len(sample.positions):
                yield self._answer(parts, memory, count)
        yield self._answer([*parts, end.SerializeToString()], memory, count)

    def _answer(
        self, parts: Sequence[Part], memory: SharedMemory | None, groups: int
    ) -> pb.SampleRolloutsResponse | bytes:
        """A message of a sample as it is sent: itself, or where it stands in the memory."""
        written = 0 if memory is None else memory.write(parts)
        self._carried("sample", written > 0, groups)
        return pb.SampleRolloutsResponse(memory_bytes=written) if written else b"".join(parts)

    async def _messages(
        self,
        first: PushMessage,
        memory: SharedMemory | None,
        rest: AsyncIterator[PushMessage],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[PushMessage]:
        """The messages of a push: those sent, each followed by those in the caller's memory that it tells of."""
        place, read = self.calls.of_context[context], 0
        message: PushMessage | None = first
        while message is not None:
            self._carried("push", False, len(message.groups))
            yield message
            for index, size in enumerate(message.head.memory_messages):
                if memory is None:
                    raise invalid(
                        "memory_messages",
                        f"expected none without memory; got {len(message.head.memory_messages)}",
                        Reason.CONTRADICTORY_FIELDS,
                    )
                read += size
                self._limits.check_message(size)
                self._limits.check_stream(read)
                place.hold(size)
                told = memory.pushed(size, f"memory_messages[{index}]")
                self._carried("push", True, len(told.groups))
                yield told
            message = await anext(rest, None)

    def _groups(self, run: Run, sample: Sample, start: int, max_bytes: int) -> tuple[list[Part], int]:
        """The next groups of a sample, encoded as in its answer, and how many."""
        self._runs.same(run)
        parts: list[Part] = []
        groups = run.replay.read(sample, start, max_bytes)
        for sampled in groups:
            # Of a field that occurs twice the last counts: the group that was pushed may have had no id.
            group = delimited(_GROUP, [sampled.payload, *delimited(_GROUP_ID, [sampled.group_id.encode()])])
            about = pb.SampledGroup(
                age_steps=sampled.age_steps, times_sampled=sampled.times_sampled, probability=sampled.probability
            )
            parts += delimited(_GROUPS, [*group, about.SerializeToString()])
        return parts, len(groups)

    async def _wait(self, run_id: str, asked: SampleRequest, context: grpc.aio.ServicerContext) -> None:
        """Wait until enough groups are eligible; nothing is consumed by waiting."""

        def enough() -> bool:
            replay = self._runs.get(run_id).replay
            return replay.answered(asked.step) or replay.eligible_count(asked) >= asked.count

        while True:
            change = self._lanes.change(run_id)
            if await self._lanes.run(run_id, enough, context):
                return
            left = context.time_remaining()
            if left is None:
                raise invalid("wait", "needs a deadline", Reason.CONTRADICTORY_FIELDS)
            if self.calls.draining.is_set():
                raise ServiceError(
                    Reason.DRAINING, "the server is shutting down; nothing was consumed", retry_after_s=1.0
                )
            awaited = [asyncio.ensure_future(event.wait()) for event in (change, self.calls.draining)]
            try:
                await asyncio.wait(awaited, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Also when the caller has gone: nobody else would end them.
                for waiting in awaited:
                    waiting.cancel()
            left = context.time_remaining()
            if left is not None and left <= 0:
                raise ServiceError(
                    Reason.DEADLINE_EXCEEDED,
                    f"fewer than {asked.count} groups became eligible before the deadline; nothing was consumed",
                )


class _Push:
    """The groups of one stream: those that are sound, and those that are not."""

    def __init__(self, limits: Limits, largest_group: int) -> None:
        self._limits = limits
        self._largest_group = largest_group
        self.groups: list[tuple[CheckedGroup, memoryview]] = []
        self.checksums: list[int] = []
        # Position in the stream of each sound group.
        self.positions: list[int] = []
        self.refused: list[tuple[pb.RolloutGroup, GroupRefused]] = []
        self._seen = 0

    def check(self, run: Run, step: int, messages: Sequence[PushMessage]) -> None:
        """Check the groups of the next messages.

        Raises:
            ServiceError: too many of the stream's groups are not sound for going on with the rest, or one is none.
        """
        for encoded in chain.from_iterable(message.groups for message in messages):
            if len(self.refused) >= _MOST_REFUSED:
                raise self.refusal()
            position = self._seen
            self._seen += 1
            try:
                group = decode_group(encoded)
            except DecodeError:
                raise invalid(f"groups[{position}]", "expected a group; got bytes that cannot be decoded") from None
            try:
                checked = self._checked(run, step, group)
            except GroupRefused as refusal:
                self.refused.append(
                    (group.head, GroupRefused(refusal.reason, refusal.field, refusal.description, position))
                )
            except ServiceError as error:
                violation = error.violations[0]
                self.refused.append(
                    (group.head, GroupRefused(error.reason, violation.field, violation.description, position))
                )
            else:
                self.groups.append((checked, group.encoded))
                self.checksums.append(crc32(group.encoded))
                self.positions.append(position)

    def refusal(self) -> ServiceError:
        """The error that names every group that is not sound, up to ten."""
        first = self.refused[0][1]
        violations: list[FieldViolation] = []
        for _, refusal in self.refused[:_LISTED]:
            violations += refusal.violations
        more = f" (and {len(self.refused) - 1} more groups)" if len(self.refused) > 1 else ""
        prompt_id = self.refused[0][0].prompt_id
        return ServiceError(
            first.reason,
            f"{first.message} (prompt {prompt_id!r}){more}; nothing was stored",
            violations=violations,
            metadata={"refused": str(len(self.refused))},
        )

    def _checked(self, run: Run, step: int, group: PushedGroup) -> CheckedGroup:
        size = len(group.encoded)
        if size > self._largest_group:
            description = (
                f"expected at most {self._largest_group} bytes in one group, which leaves room for what a sample adds "
                f"to it within max_message_bytes={self._limits.max_message_bytes}; got {size}"
            )
            raise GroupRefused(Reason.QUOTA_EXCEEDED, "", description)
        checked = validate_group(group_columns(group.head, group.payload), run.group_rules, step)
        if checked.prompt_id not in run.pool.index:
            raise GroupRefused(Reason.UNKNOWN_PROMPT, "prompt_id", f"unknown prompt {checked.prompt_id!r}")
        return checked


def _push_message(push: _Push, result: PushResult) -> pb.PushRolloutsResponse:
    answer = pb.PushRolloutsResponse(
        stored=result.stored,
        uninformative=result.uninformative,
        unchanged=result.unchanged,
        outdated=result.outdated + result.too_old,
        evicted=result.evicted,
        already_applied=result.already_applied,
    )
    refused: list[tuple[int, GroupRefused | Refusal, str, str]] = [
        (refusal.index, refusal, group.prompt_id, group.group_id) for group, refusal in push.refused
    ]
    for late in result.refused:
        checked = push.groups[late.index][0]
        refused.append((push.positions[late.index], late, checked.prompt_id, checked.group_id))
    for position, refusal, prompt_id, group_id in sorted(refused, key=lambda entry: entry[0]):
        answer.refused.add(
            index=position,
            prompt_id=prompt_id[:_LONGEST_ID],
            group_id=group_id[:_LONGEST_ID],
            reason=refusal.reason.name,
            field=refusal.field,
            description=refusal.description,
        )
    return answer


def _sample_request(request: pb.SampleRolloutsRequest) -> tuple[SampleRequest, tuple[int, int], RequestKey]:
    """What is asked for, the caller's part of it, and how the request is known: neither by its part nor by waiting."""
    order = checks.choice(request, "order")
    part = checks.shard(request)
    request_id = checks.request_id(request)
    for i, prompt_id in enumerate(request.exclude_prompt_ids):
        checks.identifier(prompt_id, f"exclude_prompt_ids[{i}]")
    asked = SampleRequest(
        step=checks.step(request.step),
        count=checks.between(request.count, 1, _MOST_SAMPLED, "count"),
        order=_ORDERS[order],  # type: ignore[index]
        min_age_steps=checks.between(request.min_age_steps, 0, 2**31 - 1, "min_age_steps"),
        exclude=frozenset(request.exclude_prompt_ids),
        informative_only=request.informative_only,
    )
    return asked, part, RequestKey(request_id, "SampleRollouts", asked.step.to_bytes(8, "little") + asked.fingerprint)
