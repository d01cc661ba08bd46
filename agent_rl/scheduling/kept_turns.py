"""The completed turns of rollouts in flight, so that another process of a generator can go on with a rollout.

The scheduler keeps them in memory, because the scheduler places rollouts, and its actor appends them to files, from
which its next process takes them. Generators have them too: a restarted scheduler asks for its rollouts again, and
their generators then send all turns again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from agent_rl.messages import CompletedTurn, PolicyVersion, TurnsCompleted

OVERHEAD_BYTES = 1024
"""What a turn takes beside its arrays and texts."""


class KeptTurns:
    """At most ``limit`` bytes. Turns beyond the limit are left out: such a rollout goes on from an earlier turn.

    ``recorded``: `changes` are noted, so that they can be written to a file.
    """

    def __init__(self, limit: int, *, recorded: bool = False) -> None:
        self._limit = limit
        self._recorded = recorded
        self._changes: list[TurnsCompleted] = []
        self._chains: dict[str, list[CompletedTurn]] = {}
        self._tokens: dict[str, int] = {}
        self.bytes = 0
        self.left_out = 0
        """Number of turns that found no room."""

    def add(self, completed: TurnsCompleted) -> None:
        """Keep turns that continue what is kept of the rollout; a turn replaces those that it does not continue.

        The rollout's number of tokens is kept too.

        Turns that continue anything else are left out: a second generator wrote them, and only one of the two is
        followed.
        """
        if completed.tokens:
            self._tokens[completed.rollout] = completed.tokens
        chain = self._chains.setdefault(completed.rollout, [])
        taken = []
        for turn in completed.turns:
            place = turn.number - 1
            if place > len(chain) or (place and chain[place - 1].after != turn.before):
                break
            if place < len(chain) and chain[place].after == turn.after:
                continue
            size = size_of(turn)
            self._drop(chain, place)
            if self.bytes + size > self._limit:
                self.left_out += 1
                break
            chain.append(turn)
            taken.append(turn)
            self.bytes += size
        if not chain:
            del self._chains[completed.rollout]
        if self._recorded and taken:
            self._changes.append(replace(completed, turns=tuple(taken)))

    def of(self, rollout: str) -> tuple[CompletedTurn, ...]:
        """The kept turns of a rollout, from the first."""
        return tuple(self._chains.get(rollout, ()))

    def tokens(self, rollout: str) -> int:
        """Tokens of the rollout with its prompt, as its generator said last; 0 when that is not known."""
        return self._tokens.get(rollout, 0)

    def lost(self, rollout: str) -> None:
        """The rollout's generator is lost: what goes on are the kept turns."""
        self._tokens.pop(rollout, None)

    def forget(self, rollout: str) -> None:
        """The rollout is done, or will not be asked for again."""
        self._tokens.pop(rollout, None)
        chain = self._chains.pop(rollout, None)
        if chain is not None:
            self._drop(chain, 0)
            if self._recorded:
                self._changes.append(TurnsCompleted(rollout, "", ()))

    def changes(self) -> list[TurnsCompleted]:
        """What was kept and forgotten since the last call. A rollout that was forgotten has no turns."""
        changes, self._changes = self._changes, []
        return changes

    def restore(self, changes: Iterable[TurnsCompleted]) -> None:
        """Make the same changes again, in another process."""
        for change in changes:
            if change.turns:
                self.add(change)
            else:
                self.forget(change.rollout)
        self._changes.clear()

    def forget_newer(self, policy: PolicyVersion) -> None:
        """Forget rollouts with tokens of newer policies than this one. These are of a run that is no more."""
        newest = (policy.epoch, policy.version)
        for rollout, chain in list(self._chains.items()):
            if any((epoch, version) > newest for turn in chain for epoch, version, _ in turn.policies.tolist()):
                self.forget(rollout)

    def retain(self, rollouts: AbstractSet[str]) -> None:
        """Forget all other rollouts."""
        for rollout in (self._chains.keys() | self._tokens.keys()) - rollouts:
            self.forget(rollout)

    def _drop(self, chain: list[CompletedTurn], place: int) -> None:
        self.bytes -= sum(size_of(turn) for turn in chain[place:])
        del chain[place:]


def size_of(turn: CompletedTurn) -> int:
    """Bytes of memory that a turn takes, about."""
    arrays = (turn.written, turn.logprobs, turn.policies, turn.answer)
    texts = sum(len(call.response) for call in turn.calls) + sum(len(reply.content) for reply in turn.replies)
    snapshots = len(turn.state) + sum(map(len, turn.tool_states.values()))
    return OVERHEAD_BYTES + sum(array.nbytes for array in arrays) + texts + snapshots


def tokens_of(turns: Sequence[CompletedTurn]) -> int:
    """Tokens that the turns add to a rollout, with their answers."""
    return sum(len(turn.written) + len(turn.answer) for turn in turns)
