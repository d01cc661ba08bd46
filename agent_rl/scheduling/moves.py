"""Where rollouts run: their first turn, their next ones, and what becomes of rollouts that move, wait or are freed.

::

    wait --(Placement)--> placed --(TurnsCompleted.then = waits)--> tools run --(writes)--> the policy is asked --+
      ^                          ^                                       `-(policy: Drop)-> its KV cache is freed     |
      |                          +--------------------------------------------------(Placement on its engine)---------+
      +--(left: its generator has let go of it)<--held--------------------(Placement elsewhere, or no decision)-------+

A generator goes on with the next turn as soon as the tools have answered, while the policy decides about that turn. If
the policy places it elsewhere, or not yet, the generator is asked to let go of the rollout: at once if the turn has
only just begun, else when it is complete. Loads have changed by then, so the policy is asked again. It also learns in
this way when the turn really begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent_rl.messages import PolicyVersion, Problem, RolloutRequest, TurnsCompleted
from agent_rl.scheduling.in_flight import InFlight
from agent_rl.scheduling.instructions import Assign, Instruction
from agent_rl.scheduling.kept_turns import KeptTurns, tokens_of
from agent_rl.scheduling.members import Members
from agent_rl.scheduling.pending import Pending, Waiting
from agent_rl.scheduling.policies import base
from agent_rl.scheduling.policies.guard import Guarded


class Moves:
    """Tells the policy of turns, and carries out its decisions about them. Pure."""

    def __init__(
        self,
        policy: Guarded,
        members: Members,
        kept: KeptTurns,
        prompt_tokens: Callable[[Problem], int],
        now: Callable[[], float],
    ) -> None:
        """``prompt_tokens`` estimates the tokens of a problem's prompt."""
        self.pending = Pending()
        self.in_flight = InFlight()
        self.count = 0
        """How often rollouts have left or lost their generator."""
        self._policy = policy
        self._members = members
        self._kept = kept
        self._prompt_tokens = prompt_tokens
        self._now = now
        self._undecided: set[str] = set()
        """Rollouts in flight that the policy was asked about, and that its next decisions may leave out."""
        self._in_tools: dict[str, PolicyVersion] = {}
        """Rollouts whose tools run, as the policy knows, each with the weights that its engine served then."""
        self._no_result: set[str] = set()
        """Rollouts that are over without a result."""

    # Decisions of the policy

    def decide(self) -> list[Instruction]:
        """Carry out what the policy decides now. Rollouts that it says nothing about are let go of."""
        instructions: list[Instruction] = []
        for decision in self._policy.decide(self._now()):
            instructions += self._carry_out(decision)
        for rollout in self._undecided:
            self.in_flight.hold(rollout)
        self._undecided.clear()
        return instructions

    def _carry_out(self, decision: base.Decision) -> list[Instruction]:
        rollout = decision.rollout
        if isinstance(decision, base.Placement) and rollout in self.pending:
            return [self.place(rollout, decision.engine, decision.need)]
        place = self.in_flight.get(rollout)
        if isinstance(decision, base.Placement):
            self._undecided.discard(rollout)
        if place is None:
            return []
        match decision:
            case base.Placement() if place.generator == decision.engine:
                self.in_flight.keep(rollout)
            case base.Placement():
                self.in_flight.hold(rollout, decision.engine)
            case base.Hold():
                self.ask(place)
            case base.Drop():
                self.in_flight.free(rollout, self.context(place.request))
        return []

    # Rollouts that are nowhere

    def wait(self, request: RolloutRequest, last: str = "") -> None:
        """Let a rollout wait for the policy's decision. ``last``: the generator that has lost it."""
        self.pending.add(Waiting(request, last))
        self._policy.turn_waits(self._turn(request), self._now())

    def place(self, rollout: str, generator: str, need: float = 0.0) -> Assign:
        """Assign a rollout that waits."""
        item = self.pending.take(rollout)
        place = Assign(item.request, generator)
        self._members.take(generator, rollout, need or self.limit(item.request))
        self.in_flight.add(place, moved=item.last not in {"", generator})
        return place

    # Rollouts in flight

    def ask(self, place: Assign, *, cached: bool = True) -> None:
        """Let a rollout wait for the policy's decision about its next turn, while it runs where it is."""
        self._undecided.add(place.request.rollout)
        self._policy.turn_waits(self._turn(place.request, place.generator if cached else ""), self._now())

    def goes_on(self, place: Assign, completed: TurnsCompleted) -> list[Instruction]:
        """The rollout's generator says how it goes on. The policy hears of each turn, and of the tools after it."""
        rollout = place.request.rollout
        if completed.then == "left":
            return self._left(place)
        if completed.then == "ended":
            if not completed.tokens:
                self._no_result.add(rollout)
        elif self.in_flight.destination(rollout) is None and self._members.offered(place.generator):
            if completed.then == "waits":
                self._tools_run(place)
            else:
                self._tools_answered(place)
        return []

    def _tools_run(self, place: Assign) -> None:
        rollout = place.request.rollout
        if rollout not in self._in_tools:
            self._in_tools[rollout] = self._members.weights(place.generator)
            self._policy.turn_ended(rollout, self.context(place.request), self._now())

    def _tools_answered(self, place: Assign) -> None:
        self._tools_run(place)  # unless it is known, since the two messages may come as one
        weights = self._in_tools.pop(place.request.rollout)
        freed = self.in_flight.answered(place.request.rollout)
        self.ask(place, cached=not freed and self._members.keeps(place.generator, weights))

    def _left(self, place: Assign) -> list[Instruction]:
        """The generator has let go of the rollout, which waits for the policy's decision."""
        rollout = place.request.rollout
        destination = self.in_flight.destination(rollout)
        self.leave(place)
        self.count += 1
        self.pending.add(Waiting(replace(place.request, move=place.request.move + 1)))
        if destination != "":  # otherwise the policy has not decided yet
            self._policy.turn_waits(self._turn(self.pending.get(rollout).request), self._now())
        return []

    def ended(self, place: Assign, *, wanted: bool) -> None:
        """The journal has the rollout's trajectory. The policy learns the length of one that is ``wanted``."""
        rollout = place.request.rollout
        if wanted and rollout not in self._no_result and self.in_flight.destination(rollout) != "":
            self._policy.rollout_ended(rollout, self.context(place.request), self._now())
        else:
            self._policy.rollout_dropped(rollout, self._now())
        self.leave(place)

    def leave(self, place: Assign) -> None:
        """The generator has the rollout no more."""
        self.in_flight.remove(place.request.rollout)
        self._members.free(place.generator, place.request.rollout)
        self._forget(place.request.rollout)

    def lost(self, rollout: str) -> RolloutRequest:
        """The rollout's generator is lost. Returns the rollout's request."""
        place = self.in_flight.remove(rollout)
        assert place is not None
        self._forget(rollout)
        self._kept.lost(rollout)
        return place.request

    def _forget(self, rollout: str) -> None:
        self._undecided.discard(rollout)
        self._in_tools.pop(rollout, None)
        self._no_result.discard(rollout)

    # Sizes

    def _turn(self, request: RolloutRequest, kept_on: str = "") -> base.WaitingTurn:
        """The rollout's next turn, as the policy is told of it. Its prefix is cached on ``kept_on``."""
        context = self.context(request)
        return base.WaitingTurn(
            request.rollout,
            request.group,
            request.problem.id,
            request.sample,
            len(self._kept.of(request.rollout)),
            min(context, self._prompt_tokens(request.problem)),
            context,
            self.limit(request),
            kept_on,
            context if kept_on else 0,
            trains=request.purpose == "train",
        )

    def limit(self, request: RolloutRequest) -> int:
        """The most tokens that the rollout may need, as far as its prompt's length can be estimated."""
        return self._prompt_tokens(request.problem) + request.sampling.max_response_tokens

    def context(self, request: RolloutRequest) -> int:
        """The tokens that the rollout is known to have."""
        known = self._kept.tokens(request.rollout)
        return known or self._prompt_tokens(request.problem) + tokens_of(self._kept.of(request.rollout))
