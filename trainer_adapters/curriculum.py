"""The service as a trainer's loop uses it: the calls of a step, and what happens when the service cannot be used.

======================  ============================================================================================
situation               what ``Curriculum`` does
======================  ============================================================================================
start of a training     creates the run, registers the prompts, rewinds to the step; every error is raised
service away            ``on_failure="open"``: prompts drawn uniformly, nothing replayed, reports and rollouts kept,
                        one line logged as an error and every instance counted in ``figures()``; ``"closed"``: raised
still away              asked for once per step, for ``probe_s``; nothing else waits
back                    what was kept is sent first, in order, each under its first request id: applied once
call that is wrong      raised, whatever ``on_failure`` says: trying again cannot help
quota reached           what does not fit is dropped, logged and counted; selection goes on
======================  ============================================================================================

One process of a training holds it; the others get what it chose from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from clients import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    RolloutGroup,
    RunInfo,
    SelectorClient,
    SelectorError,
)
from trainer_adapters.backlog import Backlog, Write
from trainer_adapters.checks import AdapterError
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.prompt_pool import PromptPool

LOGGER = logging.getLogger("selector.adapter")
T = TypeVar("T")

# What the caller sent is wrong; the service is well.
_CALLER = (InvalidArgument, FailedPrecondition, AlreadyExists)


_UNSCORED = {"ABORTED", "UNSCORABLE"}


@dataclass(frozen=True)
class Chosen:
    """What to train on in a step.

    Attributes:
        prompt_ids: prompts to roll out.
        replay_groups: how many groups to take with ``Curriculum.replay``.
        uniform: how many of the prompts, the last ones, were drawn uniformly here, because the service could not be
            used or had no more eligible ones.
        reference_due: a dedicated reference pass is due before the next selection.
    """

    prompt_ids: tuple[str, ...]
    replay_groups: int = 0
    uniform: int = 0
    reference_due: bool = False


@dataclass(frozen=True)
class Plan:
    """A whole batch.

    Attributes:
        prompt_ids: to roll out.
        replayed: stored groups.
        reference_due: as in ``Chosen``.
    """

    prompt_ids: tuple[str, ...]
    replayed: tuple[RolloutGroup, ...]
    reference_due: bool = False


class Curriculum:
    """One training's selections, reports and replay. A loop needs ``plan``, ``deliver`` and ``report_training`` of it.

    Args:
        config: which service and run.
        pool: the training's prompts.
        run: the run's config, the trainer's own settings filled in.
        client: None = one made from ``config``.
    """

    def __init__(
        self,
        config: CurriculumConfig,
        pool: PromptPool,
        run: Mapping[str, Any],
        client: SelectorClient | None = None,
    ) -> None:
        self.config = config
        self.pool = pool
        self._run = dict(run)
        self._known = frozenset(pool.prompt_ids)
        self._seed = int(self._run.get("seed") or 0)
        self._client = client or config.client()
        self._backlog = Backlog(config.backlog_bytes)
        self._away = False
        self._counts = dict.fromkeys(
            ("failed_calls", "uniform_selections", "filled_prompts", "skipped_replay_groups", "refused_groups"), 0
        )

    # A training's start and end

    def start(self, step: int) -> RunInfo:
        """Makes the run what a training that begins at ``step`` needs.

        Raises:
            SelectorError: the service cannot be reached, or refuses the config or a prompt.
            AdapterError: the run has prompts that this training has not.
        """
        patience = self.config.start_timeout_s
        self._client.wait_ready()
        self._client.create_run(self._run)
        domains = None if self.pool.domains is None else list(self.pool.domains)
        self._client.register_prompts(
            list(self.pool.prompt_ids), list(self.pool.texts), domains=domains, timeout_s=patience
        )
        # Also at 0: what an earlier training under this run id reported would be added to.
        self._client.rewind(step, timeout_s=patience)
        run = self._client.get_run()
        if run.pool.active > len(self.pool):
            raise AdapterError(
                f"curriculum.run_id: {self.config.run_id!r} has {run.pool.active} prompts and this training "
                f"{len(self.pool)}: it is another training's; use another run_id, or delete the run"
            )
        return run

    def close(self) -> None:
        """Sends what is kept, if the service answers, and ends the connection."""
        if len(self._backlog) and self._reach():
            self._attempt("what was kept for the service", lambda: None)
        if len(self._backlog):
            LOGGER.error("run %s: %d reports or pushes could not be delivered", self.config.run_id, len(self._backlog))
        self._client.close()

    # A step

    def plan(self, step: int, groups: int, parts: int = 1) -> Plan:
        """``groups`` groups to train on in a step, fresh or replayed, at least one of them fresh in each part.

        Args:
            parts: both numbers can be divided by it, as several processes need; so must ``groups``.

        Returns:
            As many groups as asked for, unless the pool has fewer prompts.
        """
        chosen = self.select(step, groups)
        wanted = min(chosen.replay_groups, groups - parts) // parts * parts
        replayed = self.replay(step, wanted)
        replayed = replayed[: len(replayed) // parts * parts]
        missing = groups - len(replayed) - len(chosen.prompt_ids)
        more = self.top_up(step, missing, 1, chosen.prompt_ids)
        return Plan((*chosen.prompt_ids, *more), tuple(replayed), chosen.reference_due)

    def deliver(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Reports the outcomes of fresh groups, one per prompt, and stores them for replay. A group with a rollout that
        could not be scored is not stored: the others' rewards would have another mean.
        """
        statuses = {group.prompt_id: group.statuses for group in groups if group.statuses}
        self.report(step, {group.prompt_id: group.outcomes for group in groups}, statuses)
        self.push(step, [group for group in groups if not _UNSCORED & set(group.statuses)])

    def select(self, step: int, batch_size: int) -> Chosen:
        """``batch_size`` groups for a step: prompts to roll out and groups to replay.

        The answer is short of it only where the pool has too few prompts.
        """
        selection = None
        if self._reach():
            selection = self._attempt("select_batch", lambda: self._client.select_batch(step, batch_size))
        if selection is None:
            self._counts["uniform_selections"] += 1
            chosen = self.pool.uniform(batch_size, self._seed, step)
            return Chosen(chosen, uniform=len(chosen))
        strangers = [prompt_id for prompt_id in selection.prompt_ids if prompt_id not in self._known]
        if strangers:
            raise AdapterError(
                f"curriculum.run_id: {self.config.run_id!r} chose {strangers[0]!r}, which is no prompt of this training"
            )
        filled = self.pool.uniform(selection.shortfall, self._seed, step, selection.prompt_ids)
        self._counts["filled_prompts"] += len(filled)
        return Chosen(
            (*selection.prompt_ids, *filled), selection.replay_groups, len(filled), bool(selection.reference_due)
        )

    def top_up(self, step: int, count: int, round: int, exclude: Sequence[str]) -> tuple[str, ...]:
        """``count`` further prompts for a step, none of them in ``exclude``; fewer only where the pool has no more."""
        if count <= 0:
            return ()
        more: tuple[str, ...] = ()
        if not self._away:
            selection = self._attempt(
                "select_batch",
                lambda: self._client.select_batch(
                    step, count, round=round, fresh_only=True, exclude_prompt_ids=list(exclude)
                ),
            )
            more = () if selection is None else selection.prompt_ids
        filled = self.pool.uniform(count - len(more), self._seed, step, {*exclude, *more})
        self._counts["filled_prompts"] += len(filled)
        return (*more, *filled)

    def references(self, step: int) -> tuple[str, ...]:
        """Prompts of a dedicated reference pass, to be rolled out and reported with ``purpose="reference"`` before the
        step's selection; none while the service is away.
        """
        selection = None
        if self._reach():
            selection = self._attempt("select_batch", lambda: self._client.select_batch(step, purpose="reference"))
        return () if selection is None else selection.prompt_ids

    def replay(self, step: int, count: int) -> list[RolloutGroup]:
        """Up to ``count`` stored groups; none while the service is away."""
        if count <= 0 or not self.config.replay:
            return []
        if not self._away:
            sample = self._attempt("sample_rollouts", lambda: self._client.sample_rollouts(step, count))
            if sample is not None:
                return list(sample)
        self._counts["skipped_replay_groups"] += count
        return []

    def report(
        self,
        step: int,
        outcomes: Mapping[str, Any],
        statuses: Mapping[str, Any] | None = None,
        purpose: str = "train",
    ) -> None:
        """Raw task scores of fresh rollouts, by prompt. Never of replayed ones."""
        self._write(
            "report_outcomes",
            lambda request_id: self._client.report_outcomes(step, outcomes, purpose, statuses, request_id=request_id),
        )

    def push(self, step: int, groups: Iterable[RolloutGroup]) -> None:
        """Stores fresh groups. One that the service refuses, for NaN in its log-probs say, is logged and counted."""
        listed = list(groups)
        if not listed or not self.config.replay:
            return

        def call(request_id: str) -> None:
            pushed = self._client.push_rollouts(step, listed, skip_refused=True, request_id=request_id)
            if pushed.refused:
                self._counts["refused_groups"] += len(pushed.refused)
                LOGGER.warning(
                    "run %s: %d groups refused: %s", self.config.run_id, len(pushed.refused), pushed.refused[0]
                )

        self._write("push_rollouts", call, sum(group.nbytes for group in listed))

    def report_training(self, step: int, **figures: float | int | None) -> None:
        """As ``SelectorClient.report_training``; figures that are not known are None."""
        known = {name: value for name, value in figures.items() if value is not None}
        if known:
            self._write(
                "report_training",
                lambda request_id: self._client.report_training(step, request_id=request_id, **known),  # type: ignore[arg-type]
            )

    def figures(self) -> dict[str, float]:
        """Counts since the start, for the trainer's own log; all but ``available`` are 0 while all is well.

        Returns:
            ``available`` (1 or 0), ``failed_calls``, ``uniform_selections`` (steps that the service did not choose),
            ``filled_prompts`` (drawn uniformly because too few were eligible), ``skipped_replay_groups``,
            ``refused_groups``, ``unsent_writes`` (now) and ``dropped_writes``.
        """
        return {
            "available": float(not self._away),
            **{name: float(count) for name, count in self._counts.items()},
            "unsent_writes": float(len(self._backlog)),
            "dropped_writes": float(self._backlog.dropped),
        }

    # What happens when the service cannot be used

    def _reach(self) -> bool:
        """Whether the service can be used, asking one that was away."""
        if self._away:
            try:
                self._client.wait_ready(timeout_s=self.config.probe_s)
            except SelectorError as error:
                LOGGER.error("run %s: the service is still away: %s", self.config.run_id, error)
                return False
            self._away = False
            LOGGER.warning("run %s: the service answers again", self.config.run_id)
        return True

    def _write(self, name: str, call: Callable[[str], object], nbytes: int = 0) -> None:
        self._backlog.add(Write(call, nbytes))
        if not self._away:
            self._attempt(name, lambda: None)

    def _attempt(self, name: str, call: Callable[[], T]) -> T | None:
        """The call's answer, after everything that is kept; None when the service cannot be used.

        Raises:
            SelectorError: the call is wrong, or the service is away and that ends the training.
        """
        try:
            self._send_kept()
            return call()
        except _CALLER:
            raise
        except SelectorError as error:
            self._counts["failed_calls"] += 1
            if self.config.on_failure == "closed":
                raise
            self._away = True
            LOGGER.error(
                "run %s: %s failed: training goes on with prompts drawn uniformly and without replay: %s",
                self.config.run_id,
                name,
                error,
            )
            return None

    def _send_kept(self) -> None:
        while True:
            try:
                return self._backlog.send()
            except ResourceExhausted as error:
                # Quotas and message sizes do not pass by waiting, and must not hold up what comes after.
                self._backlog.drop_first()
                LOGGER.error("run %s: dropped what the service has no room for: %s", self.config.run_id, error)
