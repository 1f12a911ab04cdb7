"""The service as a trainer's loop uses it: the calls of a step.

While the service is away, prompts are drawn uniformly and nothing is replayed (see ``trainer_adapters.connection``);
at the start of a training every error is raised: it creates the run, registers the prompts and rewinds to the step.

One process of a training holds a ``Curriculum``; the others get what it chose from there
(``trainer_adapters.processes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clients import (
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    RolloutGroup,
    RunInfo,
    Selection,
    SelectorClient,
    SelectorError,
)
from trainer_adapters.checks import AdapterError
from trainer_adapters.config import CurriculumConfig
from trainer_adapters.connection import LOGGER, Connection
from trainer_adapters.prompt_pool import PromptPool

# Statuses of rollouts whose reward says nothing.
_UNSCORED = {"ABORTED", "UNSCORABLE"}
# Longer than a buffer takes to fill.
_LONG_WITHOUT_REPLAY = 20
_COUNTED = (
    "uniform_selections",
    "filled_prompts",
    "skipped_replay_groups",
    "uneven_replay_groups",
    "refused_groups",
    "unscored_groups",
)


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
        self._connection = Connection(config, client)
        self._counts = dict.fromkeys(_COUNTED, 0)
        # Whether ``create`` made the run; None = it was not called yet.
        self._created: bool | None = None
        self._replays = False
        self._fresh_steps = 0

    @property
    def _client(self) -> SelectorClient:
        return self._connection.client

    # A training's start and end

    def start(self, step: int, check: Callable[[RunInfo], object] = lambda run: None) -> RunInfo:
        """Makes the run what a training that begins at ``step`` needs.

        Args:
            check: raises when the trainer's settings do not go with the run's; a run that was made for this training
                is deleted then, so that its id can be used again.

        Raises:
            SelectorError: the service cannot be reached, or refuses the config or a prompt.
            AdapterError: the run has prompts that this training has not.
        """
        patience = self.config.start_timeout_s
        created = self.create(check)
        # Also of a run that is new: another training may have come to it since.
        before = self._check_strangers()
        domains = None if self.pool.domains is None else list(self.pool.domains)
        try:
            registered = self._client.register_prompts(
                list(self.pool.prompt_ids), list(self.pool.texts), domains=domains, timeout_s=patience
            )
        except (InvalidArgument, FailedPrecondition, ResourceExhausted):
            if created and not before:
                self._abandon()
            raise
        if before and registered.added:
            LOGGER.warning("run %s: added %d prompts that it did not have", self.config.run_id, registered.added)
        # Also at 0: what an earlier training under this run id reported would be added to.
        dropped = self._client.rewind(step, timeout_s=patience)
        if created and step > 0:
            LOGGER.warning("run %s is new, although the training goes on at step %d", self.config.run_id, step)
        if dropped.dropped_reports:
            LOGGER.warning(
                "run %s: dropped %d reports and %d replay groups that a former training made from step %d on",
                self.config.run_id,
                dropped.dropped_reports,
                dropped.dropped_replay_groups,
                step,
            )
        return self._client.get_run()

    def create(self, check: Callable[[RunInfo], object]) -> bool:
        """The first part of ``start``, for trainers that should hear early of settings that do not go together.

        Returns:
            Whether the run is new.
        """
        if self._created is None:
            self._client.wait_ready()
            made = self._client.create_run(self._run)
            try:
                check(made.run)
            except AdapterError:
                if made.created:
                    self._abandon()
                raise
            self._created = made.created
            self._replays = self.config.replay and made.run.config.replay.fresh_fraction < 1
        return self._created

    def _abandon(self) -> None:
        """Deletes a run that was made for nothing; what went wrong before is what the caller is to hear of."""
        try:
            self._client.delete_run()
        except SelectorError as error:
            LOGGER.warning("run %s was made and could not be deleted: %s", self.config.run_id, error)

    def _check_strangers(self) -> int:
        """Before anything is added to a run that turns out to be another training's; how many prompts it has."""
        rows = list(self._client.export("prompts", timeout_s=self.config.start_timeout_s))
        strangers = [row.prompt_id for row in rows if row.status == "ACTIVE" and row.prompt_id not in self._known]
        if strangers:
            raise AdapterError(
                f"curriculum.run_id: {self.config.run_id!r} has {len(strangers)} prompts that this training has not, "
                f"{strangers[0]!r} among them: use another run_id, or retire those that are no longer trained on"
            )
        return len(rows)

    def close(self) -> None:
        """Sends what is kept, if the service answers, and ends the connection."""
        self._connection.close()

    # A step

    def plan(self, step: int, groups: int, parts: int = 1) -> Plan:
        """``groups`` groups to train on in a step, fresh or replayed, at least one of them fresh in each part.

        Args:
            parts: both numbers can be divided by it, as several processes need; so must ``groups``.

        Returns:
            As many groups as asked for, unless the pool has fewer prompts.

        Raises:
            ValueError: ``groups`` cannot be divided.
        """
        if groups % parts:
            raise ValueError(f"groups: expected a multiple of {parts} processes, got {groups}")
        chosen = self.select(step, groups)
        wanted = min(chosen.replay_groups, groups - parts) // parts * parts
        replayed = self.replay(step, wanted)
        replayed = replayed[: len(replayed) // parts * parts]
        if not self._connection.away:
            self._counts["uneven_replay_groups"] += chosen.replay_groups - len(replayed)
        missing = groups - len(replayed) - len(chosen.prompt_ids)
        more = self.top_up(step, missing, 1, chosen.prompt_ids)
        return Plan((*chosen.prompt_ids, *more), tuple(replayed), chosen.reference_due)

    def deliver(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Reports the outcomes of fresh groups, one per prompt, and stores them for replay."""
        statuses = {group.prompt_id: group.statuses for group in groups if group.statuses}
        self.report(step, {group.prompt_id: group.outcomes for group in groups}, statuses)
        self.push(step, groups)

    def select(self, step: int, batch_size: int) -> Chosen:
        """``batch_size`` groups for a step: prompts to roll out and groups to replay.

        The answer is short of it only where the pool has too few prompts.
        """
        selection = None
        if self._connection.reach():
            selection = self._selection(lambda: self._client.select_batch(step, batch_size))
        if selection is None:
            self._counts["uniform_selections"] += 1
            chosen = self.pool.uniform(batch_size, self._seed, step)
            return Chosen(chosen, uniform=len(chosen))
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
        if not self._connection.away:
            selection = self._selection(
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
        if self._connection.reach():
            selection = self._selection(lambda: self._client.select_batch(step, purpose="reference"))
        return () if selection is None else selection.prompt_ids

    def replay(self, step: int, count: int) -> list[RolloutGroup]:
        """Up to ``count`` stored groups; none while the service is away."""
        if not self.config.replay:
            return []
        if count <= 0:
            self._fresh_steps += self._replays
            if self._fresh_steps == _LONG_WITHOUT_REPLAY:
                LOGGER.warning(
                    "run %s: nothing has been replayed for %d steps: the buffer holds too few groups for a batch's "
                    "share; only informative groups are kept, the newest of each prompt",
                    self.config.run_id,
                    _LONG_WITHOUT_REPLAY,
                )
            return []
        self._fresh_steps = 0
        if not self._connection.away:
            sample = self._connection.attempt("sample_rollouts", lambda: self._client.sample_rollouts(step, count))
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

        def call(request_id: str) -> None:
            self._client.report_outcomes(step, outcomes, purpose, statuses, request_id=request_id)

        self._connection.write("report_outcomes", call)

    def push(self, step: int, groups: Iterable[RolloutGroup]) -> None:
        """Stores fresh groups. One that the service refuses, for NaN in its log-probs say, is logged and counted; one
        with a rollout that could not be scored is only counted: without it the others' rewards have another mean.
        """
        if not self.config.replay:
            return
        given = list(groups)
        listed = [group for group in given if not _UNSCORED & set(group.statuses)]
        self._counts["unscored_groups"] += len(given) - len(listed)
        if not listed:
            return

        def call(request_id: str) -> None:
            pushed = self._client.push_rollouts(step, listed, skip_refused=True, request_id=request_id)
            if pushed.refused:
                self._counts["refused_groups"] += len(pushed.refused)
                LOGGER.warning(
                    "run %s: %d groups refused: %s", self.config.run_id, len(pushed.refused), pushed.refused[0]
                )

        self._connection.write("push_rollouts", call, sum(group.nbytes for group in listed))

    def report_training(self, step: int, **figures: float | int | None) -> None:
        """As ``SelectorClient.report_training``; figures that are not known are None."""
        self._connection.report_training(step, **figures)

    def figures(self) -> dict[str, float]:
        """Counts since the start, for the trainer's own log; all but ``available`` are 0 while all is well.

        Returns:
            ``available`` (1 or 0); ``failed_calls``; ``uniform_selections``: steps that the service did not choose;
            ``filled_prompts``: drawn uniformly because too few were eligible; ``skipped_replay_groups``: asked for
            while it was away; ``uneven_replay_groups``: offered, but not to be had or shared out evenly;
            ``refused_groups``; ``unscored_groups``; ``unsent_writes``: now; ``dropped_writes``.
        """
        return {
            "available": float(not self._connection.away),
            "failed_calls": float(self._connection.failed_calls),
            **{name: float(count) for name, count in self._counts.items()},
            "unsent_writes": float(self._connection.unsent),
            "dropped_writes": float(self._connection.dropped_writes),
        }

    def _selection(self, call: Callable[[], Selection]) -> Selection | None:
        """Of prompts that this training has.

        Raises:
            AdapterError: another one is among them.
        """
        selection = self._connection.attempt("select_batch", call)
        for prompt_id in () if selection is None else selection.prompt_ids:
            if prompt_id not in self._known:
                raise AdapterError(
                    f"curriculum.run_id: {self.config.run_id!r} chose {prompt_id!r}, which this training does not have"
                )
        return selection


def replay_share(fresh_fraction: float, groups: int) -> int:
    """How many of a batch's groups are replayed once the buffer holds as many, as the service counts them."""
    # 1e-9: (1 - 0.9) * 10 is a hair below 1.
    return int((1 - fresh_fraction) * groups + 1e-9)


def check_replay_capacity(run: RunInfo, groups: int) -> None:
    """A batch is replayed in part or not at all, so the buffer must be able to hold the part.

    Args:
        groups: in a batch.

    Raises:
        AdapterError: it cannot; the training would generate everything for ever.
    """
    replay = run.config.replay
    share = replay_share(replay.fresh_fraction, groups)
    if share == 0 and replay.fresh_fraction < 1:
        raise AdapterError(
            f"curriculum.replay: of the {groups} groups of a batch none would be replayed with fresh_fraction "
            f"{replay.fresh_fraction:g}: take a larger batch, or replay=False"
        )
    if share > replay.capacity_groups:
        raise AdapterError(
            f"curriculum.run.replay.capacity_groups: expected at least the {share} groups that a batch replays, got "
            f"{replay.capacity_groups}"
        )
