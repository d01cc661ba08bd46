"""Has the ranks of a learner on a host other than that of rank 0: starts them, watches them, and ends them together.

The role is not written in topologies: `agent_rl.config.standard` adds it, with one process for each further host of a
learner. `FarRanks` is the side of rank 0::

    RanksWanted(begin) --> former ranks killed --> probe files seen --> processes of the ranks (`Followers`)
                                                     `--(not there)--> RanksState: the hosts do not share that folder
    a rank ends, is silent or cannot go on --> all ranks of this host killed --> RanksState says why
    rank 0 is gone --------------------------> all ranks of this host killed
    rank 0 ends in order --> the ranks end ---> RanksState: ended
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import trio

from actors.base import Actor, ActorContext, Call
from actors.learner.followers import Followers, RankLostError
from agent_rl.config.full import resolved_text
from agent_rl.config.processes import ActorEntry
from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import RanksState, RanksWanted
from agent_rl.messages.pipes import Beginning
from transport import LinkEvent, PeerGone, PeerLeft

STOP_SECONDS = 240.0
"""How long the ranks go on when this host stops: rank 0 may have a step to finish and a checkpoint to save."""
WELL = RanksState("", mistake=False, ended=False)


@dataclass(eq=False)
class _Kept:
    """The ranks of one meeting."""

    meeting: str
    learner: str
    followers: Followers
    state: RanksState = WELL
    over: trio.Event = field(default_factory=trio.Event)
    """Set once all have ended, with ``state``."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class RankKeeper(Actor):
    """One process on each host of a learner but the first. Its ranks die with it."""

    concurrency = 8
    each_needed: ClassVar[bool] = True
    drain_order = 31  # after the learner
    drain_seconds = STOP_SECONDS + 10.0
    receives = (Call(RanksWanted, RanksState),)

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self._kept: _Kept | None = None
        self._beginning = trio.Lock()

    async def handle(self, message: RanksWanted) -> RanksState:
        """Start ranks, or say how those of a meeting are."""
        if message.begin:
            async with self._beginning:
                return await self._begin(message, self.sender)
        kept = self._kept
        if not message.meeting:  # whether this process is there
            return WELL
        if kept is None or kept.meeting != message.meeting:
            return RanksState(f"the ranks of the learner on host {self._host} are lost", mistake=False, ended=True)
        with trio.move_on_after(message.seconds):
            await kept.over.wait()
        return kept.state

    async def _begin(self, wanted: RanksWanted, learner: str) -> RanksState:
        if self._kept is not None:
            self._kept.scope.cancel()
            await self._kept.over.wait()
        topology, role = self.context.topology, learner.rpartition(".")[0]
        entry = ActorEntry.model_validate_json(wanted.entry)
        first = topology.hosts[entry.rank_hosts[0]].address
        for folder in wanted.folders:
            probe = Path(wanted.directory) / folder / f".ranks-{wanted.meeting}"
            if not await self.context.in_thread(_holds, probe, wanted.meeting):
                return RanksState(unseen(self._host, entry.rank_hosts[0], probe), mistake=True, ended=True)
        beginning = Beginning(
            topology=resolved_text(_with(topology, role, entry)),
            role=role,
            directory=wanted.directory,
            base=str(self.context.base.absolute()),
            rank=0,
            meeting=first,
            port=wanted.port,
            address=topology.hosts[self._host].address,
            silent_seconds=wanted.seconds,
        )
        count = entry.ranks_per_host
        begin = (self.context.replica + 1) * count
        followers = Followers(beginning, range(begin, begin + count), self.log, host=self._host)
        self._kept = kept = _Kept(wanted.meeting, learner, followers)
        self.context.nursery.start_soon(self._keep, kept)
        return WELL

    @property
    def _host(self) -> str:
        return self.context.topology.homes(self.context.role)[self.context.replica]

    async def _keep(self, kept: _Kept) -> None:
        """Watch ranks until all have ended."""
        fault, mistake = "", False
        with kept.scope:
            try:
                await kept.followers.watch()
            except* (RankLostError, TrainingStoppedError) as errors:
                error = _first(errors)
                fault, mistake = f"{error}", isinstance(error, TrainingStoppedError)
                self.log.warning("ranks end", reason=fault)
        kept.followers.kill()
        with trio.CancelScope(shield=True):
            await kept.followers.ended()
        if kept.scope.cancelled_caught:
            fault = f"the ranks of the learner on host {self._host} were ended"
        kept.state = RanksState(fault, mistake=mistake, ended=True)
        kept.over.set()

    def peer_changed(self, event: LinkEvent) -> None:
        """Without rank 0 the other ranks wait for nothing."""
        kept = self._kept
        if isinstance(event, PeerGone | PeerLeft) and kept is not None and event.peer == kept.learner:
            kept.scope.cancel()

    async def stop(self) -> None:
        """Let the ranks go on until rank 0 ends them: the run may be stopping on all hosts. Then end them."""
        kept = self._kept
        if kept is None:
            return
        with trio.move_on_after(STOP_SECONDS):
            await kept.over.wait()
        kept.scope.cancel()
        await kept.over.wait()

    def status(self) -> tuple[str, ActorFigures]:
        """Whether ranks run."""
        return ("idle" if self._kept is None or self._kept.over.is_set() else "running"), ActorFigures()


def unseen(host: str, first: str, probe: Path) -> str:
    """The message about a host that does not see a folder of rank 0's host, ``first``."""
    return (
        f"host {host} does not see {probe.parent} of host {first}: {probe.name}, which host {first} has just written, "
        "is not there. The ranks write that folder together; put it on a file system that their hosts share, at the "
        "same path on each, or make it a link to such a folder (docs/clusters.md, Ranks on several hosts)"
    )


def _holds(path: Path, text: str) -> bool:
    """Whether a file is there and holds this text."""
    try:
        return path.read_text() == text
    except OSError:
        return False


def _with(topology: Topology, role: str, entry: ActorEntry) -> Topology:
    """The topology of this host with the learner's entry as rank 0 has it: a swap may have changed it."""
    return topology.model_copy(update={"actors": {**topology.actors, role: entry}})


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
