"""Runs a policy on a trace in virtual time: events in a heap, O(log n) each.

Groups are opened within the staleness budget, and `StepAssembler` closes steps by the rule ``wait``, as in a real run.
The policy decides which engine runs which rollout, or each turn where it is a router. The learner trains one step after
the other. The makespan is the time at which the last step is trained.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

from agent_rl.scheduling.policies.base import EngineFacts, Placement, PlacementPolicy, Setting, WaitingTurn
from agent_rl.scheduling.policies.guard import Guarded
from agent_rl.scheduling.staleness import StepAssembler
from benchmarks.twin.modelled_engine import ModelledEngine, Rollout, SimulationError
from benchmarks.twin.outcome import Outcome, Trained
from benchmarks.twin.trace import Trace

Kind: TypeAlias = Literal["engine", "tools", "trained", "published", "joins", "lost", "drains"]

Event: TypeAlias = tuple[float, int, Kind, int, int]

FACTS_SECONDS = 5.0
"""An engine's facts are told to the policy at most so often, besides weight updates."""


class Simulator:
    """One run of a policy on a trace."""

    def __init__(
        self,
        trace: Trace,
        policy: PlacementPolicy,
        *,
        evicts_half: bool = False,
        each_turn: bool = False,
        record: Callable[[float, Placement], None] | None = None,
    ) -> None:
        """``evicts_half``: see `ModelledEngine`. ``record`` gets each placement with its time.

        ``each_turn``: the policy is asked at each turn of a rollout, and may place it elsewhere. In a run it is asked
        when a rollout starts or has lost its engine.
        """
        self.trace = trace
        self.policy = Guarded(policy)
        self.now = 0.0
        self.engines = [ModelledEngine(life.name, life.model, evicts_half=evicts_half) for life in trace.engines]
        self.outcome = Outcome(trace)
        self._numbers = {life.name: number for number, life in enumerate(trace.engines)}
        self._events: list[Event] = []
        self._order = 0
        self._record = record
        self._each_turn = each_turn
        self._rollouts: dict[str, Rollout] = {}
        self._in_tools: list[Rollout] = []
        self._free: list[int] = []
        """Places of ``_in_tools`` that are free."""
        self._dirty: set[int] = set()
        self._news = False
        """The policy was told something since it decided."""
        self._told = [-math.inf] * len(self.engines)
        self._steps = StepAssembler(0, trace.groups_per_step, trace.max_staleness, "wait")
        self._opened = 0
        self._unplaced = 0
        """Turns that wait for the policy."""
        self._missing: dict[int, int] = {}
        """Rollouts that are not ended, of each open group."""
        self._served = 0
        """The version that the engines serve."""
        self._to_train: list[int] = []
        """Tokens of steps that are closed and not trained yet."""
        self._training = False
        self._began_training = 0.0

    def run(self) -> Outcome:
        """Run until the last step is trained."""
        trace = self.trace
        self.policy.begin(Setting(trace.samples, trace.groups_per_step, trace.max_staleness))
        for number, life in enumerate(trace.engines):
            for kind, at in (("joins", life.joins), ("lost", life.lost), ("drains", life.drains)):
                if kind == "joins" and at == 0:
                    self._tell_facts(number)
                elif at < math.inf:
                    self.engines[number].open = self.engines[number].open and kind != "joins"
                    self._at(at, kind, number)  # type: ignore[arg-type]
        self._open_groups()
        self._decide()
        handlers = {
            "engine": self._engine_event,
            "tools": self._tools_ended,
            "trained": self._trained,
            "published": self._published,
            "joins": self._joins,
            "lost": self._lost,
            "drains": self._drains,
        }
        while self.outcome.steps < trace.steps:
            _, _, kind, number, stamp = self._next_event()
            if kind == "engine" and self.engines[number].stamp != stamp:
                continue
            handlers[kind](number)
            self._decide()
        return self.outcome.finished(self.now, self.engines, self.policy.faults)

    def _at(self, when: float, kind: Kind, number: int = 0, stamp: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, kind, number, stamp))

    def _next_event(self) -> Event:
        """Take the next event, and move the clock on to it."""
        if not self._events:
            raise SimulationError(f"{self.trace.name}: nothing will happen, after {self.outcome.steps} steps")
        event = heapq.heappop(self._events)
        self.now = event[0]
        return event

    # Decisions

    def _decide(self) -> None:
        """Carry out what the policy decides, and let the engines go on, until neither tells the other anything new."""
        self._news = True
        while self._news:
            self._news = False
            for placement in self.policy.decide(self.now):
                if self._record is not None:
                    self._record(self.now, placement)
                self._unplaced -= 1
                self._place(self._rollouts[placement.rollout], self._numbers[placement.engine])
            if self.trace.opens_late:
                self._open_groups()
            for number in sorted(self._dirty):
                self._settle(number)

    def _place(self, rollout: Rollout, number: int) -> None:
        engine = self.engines[number]
        if rollout.started < 0:
            rollout.started = self.now
            self.outcome.started(rollout.group, self.now)
        if rollout.prefix_on not in {-1, number}:
            self.engines[rollout.prefix_on].drop(rollout)
        rollout.engine = rollout.prefix_on = number
        engine.advance(self.now)
        engine.put(rollout)
        self._dirty.add(number)

    def _settle(self, number: int) -> None:
        """The engine preempts and admits; its next event is due."""
        self._dirty.discard(number)
        engine = self.engines[number]
        engine.settle()
        when = engine.next_event()
        if when < math.inf:
            self._at(when, "engine", number, engine.stamp)
        if engine.open and self.now - self._told[number] >= FACTS_SECONDS:
            self._tell_facts(number)

    def _tell_facts(self, number: int) -> None:
        self._told[number] = self.now
        engine, model = self.engines[number], self.engines[number].model
        rows, queued = len(engine.rows), len(engine.queue)
        room = model.kv_total, engine.used, rows, queued, model.max_rollouts
        facts = EngineFacts(engine.name, *room, self._served, engine.written)
        self.policy.engine_reported(facts, self.now)

    # Turns

    def _wait(self, rollout: Rollout) -> None:
        """The rollout's turn waits for an engine."""
        self._unplaced += 1
        self._news = True
        rollout.engine = -1
        self.policy.turn_waits(
            WaitingTurn(
                rollout.name,
                str(rollout.group),
                str(rollout.group),
                rollout.sample,
                rollout.turn,
                rollout.shape.prompt,
                rollout.context,
                self.trace.limit,
            ),
            self.now,
        )

    def _engine_event(self, number: int) -> None:
        self.engines[number].advance(self.now)
        self._turns_ended(number)
        self._dirty.add(number)

    def _turns_ended(self, number: int) -> list[Rollout]:
        """Take the turns that have ended from the engine: their tools start, or the rollout ends."""
        ended = self.engines[number].ended()
        self._news = self._news or bool(ended)
        for rollout in ended:
            shape, turn = rollout.shape, rollout.turn
            rollout.engine = -1
            if turn + 1 < len(shape.written):
                if self._each_turn:
                    self.policy.turn_ended(rollout.name, rollout.context, self.now)
                if self._free:
                    place = self._free.pop()
                    self._in_tools[place] = rollout
                else:
                    place = len(self._in_tools)
                    self._in_tools.append(rollout)
                self._at(self.now + shape.tool_s[turn], "tools", place)
            else:
                self._rollout_ended(rollout, number)
        return ended

    def _tools_ended(self, place: int) -> None:
        rollout = self._in_tools[place]
        self._free.append(place)
        rollout.context += rollout.shape.tool_tokens[rollout.turn]
        rollout.turn += 1
        rollout.left = rollout.shape.written[rollout.turn]
        if self._each_turn or not self.engines[rollout.prefix_on].open:
            self._wait(rollout)
        else:
            self.policy.turn_ended(rollout.name, rollout.context, self.now)
            self._news = True
            self._place(rollout, rollout.prefix_on)

    def _rollout_ended(self, rollout: Rollout, number: int) -> None:
        self.engines[number].drop(rollout)
        del self._rollouts[rollout.name]
        self.outcome.ended(rollout.context)
        self.policy.rollout_ended(rollout.name, rollout.context, self.now)
        self._missing[rollout.group] -= 1
        if self._missing[rollout.group]:
            return
        del self._missing[rollout.group]
        opened_under = self.outcome.group_ended(rollout.group, self.now)
        self._steps.decided(str(rollout.group), opened_under, signal=True)
        self._close_steps()

    # Groups and steps

    def _open_groups(self) -> None:
        trace = self.trace
        budget = min((trace.max_staleness + self._served + 1) * trace.groups_per_step, len(trace.groups))
        while self._opened < budget and not (trace.opens_late and self._unplaced):
            group = self._opened
            self._opened += 1
            self._missing[group] = trace.samples
            self._steps.opened(str(group), self._served)
            self.outcome.opened(group, self._served, self.now)
            for sample, shape in enumerate(trace.groups[group]):
                rollout = Rollout(f"{group}/{sample}", group * trace.samples + sample, group, sample, shape)
                self._rollouts[rollout.name] = rollout
                self._wait(rollout)

    def _close_steps(self) -> None:
        while (step := self._steps.close()) is not None:
            tokens = sum(shape.context for group in step.trained for shape in self.trace.groups[int(group)])
            self.outcome.staleness += step.staleness
            self._to_train.append(tokens)
            self._train()

    def _train(self) -> None:
        if self._training or not self._to_train:
            return
        self._training = True
        seconds = self._to_train.pop(0) * self.trace.learner.kept / self.trace.learner.tokens_per_s
        self._began_training = self.now
        self._at(self.now + seconds, "trained")

    def _trained(self, _: int) -> None:
        self._training = False
        self.outcome.learner_busy += self.now - self._began_training
        self.outcome.steps += 1
        written, steps = sum(each.written for each in self.engines), sum(each.steps for each in self.engines)
        self.outcome.trained.append(Trained(self.now, written, steps))
        self._at(self.now + self.trace.learner.publish_s, "published", self.outcome.steps)
        self._train()

    def _published(self, version: int) -> None:
        learner = self.trace.learner
        self._served = version
        for number, engine in enumerate(self.engines):
            if not engine.open:
                continue
            engine.advance(self.now)
            self._turns_ended(number)
            engine.pause(learner.pause_s, kept=learner.kv_kept)
            self._dirty.add(number)
        self._open_groups()

    # Engines come and go

    def _joins(self, number: int) -> None:
        self.engines[number].open = True
        self.engines[number].advance(self.now)
        self._tell_facts(number)

    def _lost(self, number: int) -> None:
        """The tokens of turns under way are lost; those of completed turns are not."""
        engine = self.engines[number]
        engine.advance(self.now)
        self._turns_ended(number)
        engine.open = False
        self.policy.engine_gone(engine.name, self.now)
        rows = list(engine.rows)
        for rollout in rows:
            engine.take_back(rollout)
            wrote = rollout.shape.written[rollout.turn] - rollout.left
            self.outcome.lost_tokens += wrote
            rollout.context -= wrote
            rollout.left += wrote
        self._leave(engine, rows)

    def _drains(self, number: int) -> None:
        """Turns under way end; queued ones wait again."""
        engine = self.engines[number]
        engine.advance(self.now)
        engine.open = False
        self.policy.engine_draining(engine.name, self.now)
        self._leave(engine, [])

    def _leave(self, engine: ModelledEngine, rows: list[Rollout]) -> None:
        queued = list(engine.queue)
        engine.queue.clear()
        engine.stamp += 1
        for rollout in [*rows, *queued]:
            self._wait(rollout)
        self._dirty.add(self._numbers[engine.name])
