"""The ranks of a learner on other hosts than that of rank 0, as rank 0's actor has them.

On each of these hosts one actor, the keeper (`actors.learner.keeper`), starts the ranks of its host when rank 0 asks,
and ends them when one of them ends or rank 0 is gone::

    every keeper is heard --> probe files written, RanksWanted(begin) --> the keeper sees the files, starts its ranks
    RanksWanted ------------------------------------------------------> RanksState: all is well, or why ranks have ended
    no word for rank_silent_seconds --> rank 0 names the host, and all ranks start again when the host is heard

Only names and numbers cross these links, which are encrypted. What ranks tell each other goes over torch's process
groups, which encrypt nothing.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import trio

from actors.base import passing_link
from actors.learner.followers import LEAVE_SECONDS, RankLostError
from agent_rl.config.algorithm import STAGE_START
from agent_rl.config.standard import RANKS
from agent_rl.files.disk import writing
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import RanksState, RanksWanted

if TYPE_CHECKING:
    from actors.base import ActorContext
    from transport import CallLink

HELLO_SECONDS = 10.0
"""How long one question waits for a keeper that may not be up yet."""
BEGIN_SECONDS = 60.0
"""How long a keeper may take to start its ranks."""
SHOWN_SECONDS = 5.0
"""A host that is missing for a shorter time is not worth a line."""
ANSWERS = 3
"""So many answers of a keeper come within the seconds after which its ranks count as silent."""


class FarRanks:
    """The keepers of a learner's ranks, one for each of its other hosts."""

    def __init__(self, context: ActorContext, port: int) -> None:
        """``port``: where ranks meet at the address of this host."""
        self._context = context
        self._entry = context.topology.actors[context.role]
        self._port = port
        self._silent_seconds: float = context.settings.rank_silent_seconds
        self._meeting = secrets.token_hex(8)
        self._links: dict[str, CallLink] = {}
        """By the name of the host's ranks, as messages have it."""
        for target in context.links[RANKS].targets:
            name = passing_link(RANKS, target)
            link = context.node.call(name, [target], outstanding=2, timeout=BEGIN_SECONDS, reply=RanksState)
            self._links[self._name(int(target.rpartition(".")[2]))] = link
        self._missing = dict.fromkeys(self._links)
        self._since = context.now()
        self._leaving = False
        self._ended = trio.Event()

    def _name(self, keeper: int) -> str:
        count = self._entry.ranks_per_host
        first = (keeper + 1) * count
        ranks = f"rank {first}" if count == 1 else f"ranks {first} to {first + count - 1}"
        return f"host {self._entry.rank_hosts[keeper + 1]}, which has {ranks} of the learner,"

    @property
    def lacking(self) -> str:
        """The hosts that ranks wait for, in words; empty when all are heard, or the wait is short."""
        if not self._missing or self._context.now() - self._since < SHOWN_SECONDS:
            return ""
        return f"{' '.join(self._missing)} is not heard; start it"

    async def begin(self) -> None:
        """Wait until all keepers are heard, and have them start their ranks.

        Raises TrainingStoppedError when a host does not see a folder that ranks share, or is not heard for
        ``run.give_up_minutes``; RankLostError when ranks do not start.
        """
        minutes = self._context.topology.run.give_up_minutes
        with trio.move_on_after(float("inf") if minutes is None else 60.0 * minutes) as limit:
            async with trio.open_nursery() as nursery:
                for name in self._links:
                    nursery.start_soon(self._hear, name)
        if limit.cancelled_caught:
            raise TrainingStoppedError(
                f"{' '.join(self._missing)} was not heard for {minutes:g} minutes (run.give_up_minutes); start it, "
                "and run again: the run goes on where it stopped"
            )
        directory, folders = self._context.directory.absolute(), self._folders()
        probes = [directory / folder / f".ranks-{self._meeting}" for folder in folders]
        try:
            for probe in probes:
                with writing(probe):
                    probe.parent.mkdir(exist_ok=True)
                    probe.write_text(self._meeting)
            wanted = RanksWanted(
                self._meeting,
                begin=True,
                seconds=self._silent_seconds,
                entry=self._entry.model_dump_json(by_alias=True),
                directory=str(directory),
                folders=folders,
                port=self._port,
            )
            async with trio.open_nursery() as nursery:
                for name in self._links:
                    nursery.start_soon(self._begin, name, wanted)
        finally:
            for probe in probes:
                probe.unlink(missing_ok=True)

    def _folders(self) -> tuple[str, ...]:
        """The folders of the run directory that all ranks write: their hosts must share these."""
        kl, published = self._context.topology.algorithm.kl, self._context.settings.weights_in == "run_directory"
        kept = kl is not None and kl.reference == STAGE_START
        return ("checkpoints", *(["weights"] if published else []), *(["reference"] if kept else []))

    async def _hear(self, name: str) -> None:
        """Wait until a keeper answers."""
        from transport import CallTimeout, PeerLost

        while True:
            try:
                await self._links[name](self._question(""), timeout=HELLO_SECONDS)
            except (CallTimeout, PeerLost):
                continue  # both take their time; a host may be started later
            del self._missing[name]
            return

    async def _begin(self, name: str, wanted: RanksWanted) -> None:
        from transport import CallTimeout, PeerLost

        try:
            state: RanksState = await self._links[name](wanted)
        except (CallTimeout, PeerLost) as error:
            raise RankLostError(f"{name} did not start: {error}") from error
        _raise(state)

    def _question(self, meeting: str) -> RanksWanted:
        seconds = self._silent_seconds / ANSWERS
        return RanksWanted(meeting, begin=False, seconds=seconds, entry="", directory="", folders=(), port=0)

    async def watch(self) -> None:
        """Wait until all ranks have ended because rank 0 told them to.

        Raises RankLostError when a rank ends before or a host is silent, and TrainingStoppedError when a rank cannot go
        on, and a restart would not help.
        """
        async with trio.open_nursery() as nursery:
            for name in self._links:
                nursery.start_soon(self._watch, name)
        self._ended.set()

    async def _watch(self, name: str) -> None:
        from transport import CallTimeout, PeerLost

        heard = self._context.now()
        while True:
            left = heard + self._silent_seconds - self._context.now()
            try:
                state: RanksState = await self._links[name](self._question(self._meeting), timeout=max(left, 0.0))
            except PeerLost:
                continue  # silent for a moment, or a new process, which says that it does not have these ranks
            except CallTimeout:
                if self._leaving:
                    return
                silent = f"has not been heard for rank_silent_seconds ({self._silent_seconds:g} s)"
                raise RankLostError(f"{name} {silent}") from None
            if state.ended and (self._leaving or not state.fault):
                return
            _raise(state)
            heard = self._context.now()

    def leaving(self) -> None:
        """The ranks are told to end."""
        self._leaving = True

    async def ended(self) -> None:
        """Wait until the ranks of other hosts have ended after `leaving`, or take too long: their keepers end them."""
        with trio.move_on_after(LEAVE_SECONDS):
            await self._ended.wait()


def _raise(state: RanksState) -> None:
    if state.fault:
        raise TrainingStoppedError(state.fault) if state.mistake else RankLostError(state.fault)
