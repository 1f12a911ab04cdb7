"""Run inside a light install: works through the clients against a service, and exits non-zero when anything is off.

    python light_client_probe.py                   against a scripted service in this process
    python light_client_probe.py HOST:PORT PREFIX  against a real one, in runs of that prefix

Needs nothing but the package and its three dependencies, at whatever releases are installed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np

import clients
from selector.v1 import error_details_pb2, run_pb2
from selector.v1 import replay_service_pb2 as replay
from selector.v1 import replay_service_pb2_grpc as replay_grpc
from selector.v1 import selector_service_pb2 as service
from selector.v1 import selector_service_pb2_grpc as service_grpc
from selector.v1.reasons import ERROR_DOMAIN, Reason

PROMPTS = tuple(f"prompt-{number}" for number in range(8))
CONFIG = {"group_size": 2, "seed": 7, "estimator": {"name": "TRACKER"}}
BATCH_SIZE = 4


class ScriptedSelector(service_grpc.SelectorServiceServicer):
    """Answers each call with the simplest answer that the schema allows."""

    def CreateRun(self, request: Any, context: Any) -> Any:
        return service.CreateRunResponse(run=run_pb2.Run(run_id=request.run_id, config=request.config), created=True)

    def GetRun(self, request: Any, context: Any) -> Any:
        reason = error_details_pb2.ErrorInfoDetail(reason=Reason.RUN_NOT_FOUND.name, domain=ERROR_DOMAIN)
        details = error_details_pb2.StatusDetails(code=grpc.StatusCode.NOT_FOUND.value[0], message="no such run")
        details.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=reason.SerializeToString())
        context.set_trailing_metadata((("grpc-status-details-bin", details.SerializeToString()),))
        context.abort(grpc.StatusCode.NOT_FOUND, "no such run")

    def RegisterPrompts(self, request_iterator: Iterator[Any], context: Any) -> Any:
        return service.RegisterPromptsResponse(added=sum(len(request.prompts) for request in request_iterator))

    def SelectBatch(self, request: Any, context: Any) -> Any:
        count = request.batch_size
        return service.SelectBatchResponse(
            prompt_ids=PROMPTS[:count],
            predicted_difficulties=[0.5] * count,
            standard_errors=[0.25] * count,
            probabilities=[0.5] * count,
            arms=[service.ARM_TARGETED] * count,
            rollouts=[2] * count,
            estimate_step=-1,
        )

    def ReportOutcomes(self, request: Any, context: Any) -> Any:
        informative = sum(len(set(group.outcomes)) > 1 for group in request.outcomes)
        return service.ReportOutcomesResponse(applied_groups=len(request.outcomes), informative_groups=informative)


class ScriptedReplay(replay_grpc.ReplayServiceServicer):
    """Keeps pushed groups in memory and gives them back in order."""

    def __init__(self) -> None:
        self.groups: list[Any] = []

    def PushRollouts(self, request_iterator: Iterator[Any], context: Any) -> Any:
        before = len(self.groups)
        for request in request_iterator:
            self.groups.extend(request.groups)
        return replay.PushRolloutsResponse(stored=len(self.groups) - before)

    def SampleRollouts(self, request: Any, context: Any) -> Iterator[Any]:
        for group in self.groups[: request.count]:
            age = request.step - group.policy_version
            sampled = replay.SampledGroup(group=group, age_steps=age, times_sampled=1, probability=1.0)
            yield replay.SampleRolloutsResponse(groups=[sampled])
        yield replay.SampleRolloutsResponse(eligible_groups=len(self.groups), last=True)


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"unexpected: {what}")


def group(prompt_id: str) -> clients.RolloutGroup:
    return clients.RolloutGroup.from_arrays(
        prompt_id=prompt_id,
        policy_version=0,
        prompt_token_ids=[1, 2, 3],
        response_token_ids=[[4, 5], [6]],
        behavior_log_probs=[[-0.5, -0.25], [-1.5]],
        rewards=[1.0, 0.0],
        outcomes=[1.0, 0.0],
    )


def blocking(target: str, prefix: str) -> None:
    """One step of a trainer, every kind of call, with the blocking client."""
    with clients.SelectorClient(target, f"{prefix}-blocking", timeout_s=30) as client:
        client.create_run(CONFIG)
        registered = client.register_prompts(PROMPTS, embeddings=np.eye(len(PROMPTS), dtype=np.float32))
        expect(registered.added == len(PROMPTS), f"{registered}")
        selection = client.select_batch(step=0, batch_size=BATCH_SIZE)
        expect(len(set(selection.prompt_ids)) == BATCH_SIZE, f"{selection}")
        expect(set(selection.prompt_ids) <= set(PROMPTS), f"{selection}")
        reported = client.report_outcomes(0, {prompt: [1.0, 0.0] for prompt in selection.prompt_ids})
        expect(reported.informative_groups == BATCH_SIZE, f"{reported}")
        pushed = client.push_rollouts(0, [group(selection.prompt_ids[0])])
        expect(pushed.stored == 1, f"{pushed}")
        (sampled,) = client.sample_rollouts(step=1, count=1)
        expect(sampled.prompt_id == selection.prompt_ids[0] and sampled.age_steps == 1, f"{sampled}")
        expect([list(sampled.response(0)), list(sampled.response(1))] == [[4, 5], [6]], f"{sampled}")
        expect(list(sampled.behavior_log_probs) == [-0.5, -0.25, -1.5], f"{sampled}")
    with clients.SelectorClient(target, f"{prefix}-absent", timeout_s=30) as client:
        try:
            client.get_run()
        except clients.NotFound as error:
            expect(error.reason == Reason.RUN_NOT_FOUND.name, f"{error!r}, {error.reason}")
        else:
            raise SystemExit("a run that does not exist was found")


async def asynchronous(target: str, prefix: str) -> None:
    """The same calls through asyncio: unary, client stream and server stream."""
    async with clients.AsyncSelectorClient(target, f"{prefix}-asynchronous", timeout_s=30) as client:
        await client.create_run(CONFIG)
        await client.register_prompts(PROMPTS, embeddings=np.eye(len(PROMPTS), dtype=np.float32))
        selection = await client.select_batch(step=0, batch_size=BATCH_SIZE)
        expect(len(selection) == BATCH_SIZE, f"{selection}")
        await client.push_rollouts(0, [group(selection.prompt_ids[0])])
        expect(len(await client.sample_rollouts(step=1, count=1)) == 1, "no group came back")


def work_through(target: str, prefix: str) -> None:
    blocking(target, prefix)
    asyncio.run(asynchronous(target, prefix))
    heavy = {"torch", "sqlalchemy", "faiss", "selector.cli", "selector.service", "selector.run"} & set(sys.modules)
    expect(not heavy, f"the clients loaded {sorted(heavy)}")


def main() -> None:
    if len(sys.argv) > 1:
        work_through(*sys.argv[1:])
        return
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    service_grpc.add_SelectorServiceServicer_to_server(ScriptedSelector(), server)
    replay_grpc.add_ReplayServiceServicer_to_server(ScriptedReplay(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        work_through(f"127.0.0.1:{port}", "scripted")
    finally:
        server.stop(None)


if __name__ == "__main__":
    main()
