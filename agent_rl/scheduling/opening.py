"""Which group may be opened next, by recipe and staleness budget, and what its rollouts are asked for with.

The staleness budget bounds the number of open groups: ``opened - uncounted < (S + served - stage_version + 1) *
groups_per_step``, where ``served`` is the oldest version that an engine serves; staleness.py proves that this keeps the
budget. The groups of evaluations within an rl stage are outside this budget. They have their own numbers, are opened
once every engine serves their step's policy, take turns with the groups to train, and are never trained.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeAlias

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.selection import SelectStage, Solved
from agent_rl.config.topology import EvaluateStage, RlStage, Stage
from agent_rl.messages import (
    Evaluation,
    GroupOpened,
    GroupOutcome,
    GroupsUnfinished,
    PolicyPublished,
    PolicyVersion,
    Problem,
    Purpose,
    Retry,
    RolloutRequest,
    Sampling,
)
from agent_rl.scheduling.curriculum import Curricula, Curriculum, curriculum_of
from agent_rl.scheduling.ids import group_id, rollout_id, rollout_seed

Problems: TypeAlias = Callable[[int, int, Purpose], Problem]
"""(stage, number, purpose) to the problem. A pure function: a restarted scheduler gets the same problem."""
SampledStage: TypeAlias = EvaluateStage | RlStage | SelectStage
"""A stage in which rollouts are sampled."""


class Opening:
    """The groups of the stage that the run is in. Everything is a function of the run's seed and of counters.

    Only a curriculum's choice of a problem depends on outcomes too. The journal keeps each choice, in the group's
    GroupOpened.
    """

    def __init__(
        self,
        *,
        seed: int,
        stages: Sequence[Stage],
        algorithm_of: Callable[[Stage], Algorithm],
        problems: Problems,
        problem_count: Callable[[int], int],
        curricula: Curricula = curriculum_of,
    ) -> None:
        """``problem_count`` says how many problems a select stage samples: it opens a group of each."""
        self._seed = seed
        self._stages = stages
        self._algorithms = [algorithm_of(stage) for stage in stages]
        self._problems = problems
        self._problem_count = problem_count
        self._curricula = curricula
        self._curriculum: Curriculum | None = None
        self._fresh = 0
        self._observed: set[int] = set()
        self._published: PolicyPublished | None = None
        self.oldest = PolicyVersion(0, 0)
        """The newest policy under which a group of the stage was opened; at first that of the stage's start."""
        self.opened = 0
        self.uncounted = 0
        self._interim_opened: Counter[int] = Counter()
        self._interim_next = False
        self._interim: dict[int, EvaluateStage] = {}
        self._samplings: dict[tuple[int, int | None, Purpose], Sampling] = {}

    # Events

    def published(self, published: PolicyPublished) -> bool:
        """The learner published a policy. Returns whether the run is in another stage, or epoch, from now on."""
        before, self._published = self._published, published
        if before is not None and (before.stage, before.policy.epoch) == (published.stage, published.policy.epoch):
            return False
        self.oldest = PolicyVersion(published.policy.epoch, published.stage_version)
        self._interim.clear()
        self._curriculum = self._curricula(self.algorithm) if isinstance(self.stage, RlStage) else None
        self._fresh = 0
        self._observed.clear()
        return True

    def observe(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Groups were decided, some of them perhaps known."""
        if self._curriculum is None:
            return
        for outcome in outcomes:
            if outcome.number not in self._observed:
                self._observed.add(outcome.number)
                self._fresh = max(self._fresh, outcome.drawn + 1)
                self._curriculum.observe(outcome.drawn, Solved(outcome.right, outcome.samples))

    def restore(self, answer: GroupsUnfinished) -> None:
        """The filter says what was opened in this stage."""
        self.opened = answer.opened
        self._interim_opened = Counter({each.at_step: each.groups for each in answer.interim_opened})
        self.uncounted = answer.uncounted
        self.observe(answer.outcomes)
        for group in answer.groups:
            self._fresh = max(self._fresh, (group.opened.drawn or 0) + 1)
            if group.opened.policy.epoch == self.oldest.epoch:
                self.oldest = max(self.oldest, group.opened.policy)

    def open(self, served: int | None) -> GroupOpened | None:
        """Open the next group if one may be opened; ``served`` is the oldest version that an engine serves."""
        following = self._next(served)
        if following is None:
            return None
        number, at_step = following
        opened = self.group(number, at_step, served, self._drawn(number) if at_step is None else None)
        if at_step is None:
            self.opened += 1
        else:
            self._interim_opened[at_step] += 1
        self._interim_next = at_step is None
        self.oldest = max(self.oldest, opened.policy)
        return opened

    # Questions

    @property
    def stage(self) -> SampledStage | None:
        """The stage, if rollouts are sampled in it."""
        if self._published is None or self._published.stage >= len(self._stages):
            return None
        stage = self._stages[self._published.stage]
        return None if stage.kind == "sft" else stage

    @property
    def algorithm(self) -> Algorithm:
        """The stage's algorithm."""
        assert self._published is not None
        return self._algorithms[self._published.stage]

    def may_open(self, served: int | None) -> bool:
        """Whether recipe and staleness budget permit another group."""
        return self._next(served) is not None

    def _drawn(self, number: int) -> int | None:
        """The number of the problem that the curriculum chooses for a group."""
        if self._curriculum is None or self._published is None:
            return None
        rng = random.Random(f"{self._seed}/{self._published.stage}/{number}/curriculum")
        drawn = self._curriculum.choose(self._fresh, rng)
        self._fresh = max(self._fresh, drawn + 1)
        return drawn

    def group(self, number: int, at_step: int | None, served: int | None, drawn: int | None = None) -> GroupOpened:
        """The stage's group of this number, or that of the evaluation after ``at_step`` steps."""
        assert self._published is not None
        index, spec = self._published.stage, self._spec(at_step)
        purpose: Purpose = "train"
        samples = self._algorithms[index].samples
        if spec.kind == "evaluate":
            sampled = number < spec.problems
            purpose, samples = ("evaluate_sampled", spec.samples) if sampled else ("evaluate_greedy", 1)
        elif spec.kind == "select":
            purpose, samples = "select", spec.samples
        return GroupOpened(
            group=group_id(index, number, at_step),
            stage=index,
            number=number,
            purpose=purpose,
            problem=self._problems(index, number if drawn is None else drawn, purpose),
            samples=samples,
            policy=PolicyVersion(self.oldest.epoch, self.oldest.version if served is None else served),
            evaluation=Evaluation(index, at_step) if spec.kind == "evaluate" else None,
            stage_groups=self._problem_count(index) if spec.kind == "select" else None,
            drawn=drawn,
        )

    def request(self, opened: GroupOpened, sample: int, attempt: int) -> RolloutRequest:
        """The request for one attempt at a sample of a group of this stage."""
        return RolloutRequest(
            rollout=rollout_id(opened.group, sample, attempt),
            group=opened.group,
            stage=opened.stage,
            sample=sample,
            attempt=attempt,
            purpose=opened.purpose,
            problem=opened.problem,
            sampling=self._sampling(opened),
            seed=rollout_seed(self._seed, opened.group, sample, attempt),
        )

    def retry(self, retry: Retry, served: int | None) -> RolloutRequest:
        """The request for what the filter wants to have sampled again."""
        at_step = None if retry.evaluation is None else retry.evaluation.at_step
        return self.request(self.group(retry.number, at_step, served, retry.drawn), retry.sample, retry.attempt)

    def _next(self, served: int | None) -> tuple[int, int | None] | None:
        """The next group's number and evaluation. Groups to train and groups of a due evaluation take turns."""
        if self.stage is None or served is None:
            return None
        at_step, trains = self._evaluation_due(served), self._in_budget(served)
        if at_step is not None and (self._interim_next or not trains):
            return self._interim_opened[at_step], at_step
        return (self.opened, None) if trains else None

    def _evaluation_due(self, served: int) -> int | None:
        """The first evaluation within the stage that every engine serves the policy of, and that lacks groups."""
        stage = self.stage
        if not isinstance(stage, RlStage) or stage.evaluate is None or self._published is None:
            return None
        problems, steps = stage.evaluate.problems, served - self._published.stage_version
        served_steps = takewhile(lambda at_step: at_step <= steps, stage.evaluation_steps)
        return next((at_step for at_step in served_steps if self._interim_opened[at_step] < problems), None)

    def _in_budget(self, served: int) -> bool:
        stage = self.stage
        assert stage is not None
        assert self._published is not None
        if stage.kind == "evaluate":
            return self.opened < stage.groups
        if stage.kind == "select":
            return self.opened < self._problem_count(self._published.stage)
        algorithm = self.algorithm
        steps = min(algorithm.max_staleness + served - self._published.stage_version + 1, stage.steps)
        return self.opened - self.uncounted < steps * algorithm.groups_per_step

    def _spec(self, at_step: int | None) -> SampledStage:
        """The stage, or the evaluation within it after ``at_step`` steps: it says how rollouts are sampled."""
        stage = self.stage
        assert stage is not None
        if at_step is None or not isinstance(stage, RlStage):
            return stage
        if at_step not in self._interim:
            self._interim[at_step] = stage.interim(at_step)
        return self._interim[at_step]

    def _sampling(self, opened: GroupOpened) -> Sampling:
        key = (opened.stage, opened.at_step, opened.purpose)
        if key not in self._samplings:
            stage, algorithm = self._spec(opened.at_step), self._algorithms[opened.stage]
            temperature = algorithm.temperature if stage.kind == "rl" else stage.temperature
            if opened.purpose == "evaluate_greedy":
                temperature = 0.0
            filters = algorithm if stage.kind == "rl" else stage
            self._samplings[key] = Sampling(
                temperature, stage.max_response_tokens, stage.max_turns, filters.top_p, filters.top_k or 0
            )
        return self._samplings[key]
