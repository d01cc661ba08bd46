"""Turns of a rollout whose messages come from outside the agent loop: a user's own loop, or an agent at the gateway.

::

    messages --> Conversation.plan --(room?)--> Conversation.open --> engine.generate --> Conversation.wrote --> Written

Several turns may be written at once. A turn may have ``max_tokens``, or else all tokens that limited turns under way
leave. One that would get fewer waits until turns under way are over; the engine bounds this wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from agent_rl.messages import TurnPlace
from agent_rl.rollout.conversation import Message

if TYPE_CHECKING:
    from actors.rollout_generator.agent_loop import AgentLoop, Watch
    from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector
    from agent_rl.rollout.conversation import Conversation, Plan
    from agent_rl.rollout.episode import Episode, Strand


class NoRoom(Exception):  # noqa: N818 - no error of this side
    """The messages leave no room in a sequence, and the rollout may go on with others."""


class RolloutOver(Exception):  # noqa: N818 - no error
    """The rollout has ended: no turn is written any more. The episode says how."""


@dataclass(frozen=True, slots=True)
class Written:
    """A turn: its tokens [n], log-probabilities [n] and policies [n, 2], and its text."""

    strand: Strand
    tokens: Int32Vector
    logprobs: Float32Vector
    policies: Int32Matrix
    stopped: bool
    text: str
    place: TurnPlace
    given: Sequence[int]
    """The tokens before the turn; with one that begins a sequence, all."""


def as_said(text: str) -> Message:
    """A turn as it comes back when the loop repeats its text."""
    return Message("assistant", text)


class TurnWriter:
    """Writes the turns of one rollout."""

    def __init__(self, agent: AgentLoop, episode: Episode) -> None:
        self.episode = episode
        self.agent = agent
        self._writing: dict[int, Strand] = {}
        """The strands whose turns are being written."""
        self._turn_over = trio.lowlevel.ParkingLot()

    async def write(
        self,
        conversation: Conversation,
        planned: Callable[[], Plan],
        *,
        max_tokens: int | None = None,
        watch: Watch | None = None,
        said: Callable[[str], Message] = as_said,
        side: bool = False,
        choice: int = 0,
    ) -> Written:
        """The model's next turn after what is ``planned`` in the conversation.

        ``watch`` sees the tokens as they are written, and may cut the turn. ``said``: the turn as it would come back.
        ``side``: it is beside the rollout's task. ``choice``: its number among the turns of a request.
        Raises RolloutOver, NoRoom, EngineError, and PromptError for messages that the chat template does not take.
        """
        episode = self.episode
        plan, room = await self._place(conversation, planned, max_tokens)
        strand = conversation.open(plan, self.agent.policy)
        begins = plan.strand is None or plan.cause is not None
        given = strand.whole if begins else plan.tokens
        if episode.ended is not None:
            raise RolloutOver
        strand.room = room if max_tokens is None else min(room, max_tokens)
        strand.limited = strand.room < room
        strand.side = strand.side if strand.turns else side
        self._writing[strand.number] = strand
        try:
            turn, stopped = await self.agent.write(episode, strand, watch)
            text = episode.append_turn(*turn, stopped=stopped, strand=strand)
            stopped = stopped and (watch is None or not watch.cut_at)
            conversation.wrote(strand, said(text), stopped=stopped)
            asked = plan.digests[-1], len(plan.digests)
            place = TurnPlace(strand.number, begins, plan.cause, *asked, strand.side, stopped, choice)
            return Written(strand, *turn, stopped, text, place, given)
        finally:
            del self._writing[strand.number]
            strand.room = 0
            self._turn_over.unpark_all()

    async def _place(
        self, conversation: Conversation, planned: Callable[[], Plan], max_tokens: int | None
    ) -> tuple[Plan, int]:
        """What is planned, and the tokens that turns under way leave for the turn. With too few it waits."""
        episode = self.episode
        while episode.ended is None:
            turns = episode.request.sampling.max_turns - episode.turns - len(self._writing)
            if turns > 0:
                plan = planned()
                left, in_sequence = episode.room_after(plan)
                writing = self._writing.values()
                room = min(left - sum(strand.room for strand in writing), in_sequence)
                limited = sum(strand.room for strand in writing if strand.limited)
                if room >= min(left - limited if max_tokens is None else max_tokens, in_sequence, left) > 0:
                    return plan, room
                if left > 0 >= in_sequence:
                    raise NoRoom
            if not self._writing:
                if turns > 0:
                    conversation.open(plan, self.agent.policy)  # which finds that there is no room
                episode.ended = episode.ended or ("turn_limit" if turns < 1 else "truncated")
                break
            await self._turn_over.park()
        raise RolloutOver
