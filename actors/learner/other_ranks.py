"""The other ranks of a learner, as rank 0's actor has them: each is an actor of its own (`actors.learner.rank`).

::

    every rank is heard --> probe files written, RanksWanted(begin) --> the rank sees the files, and follows rank 0
    RanksWanted --------------------------------------------------> RanksState: all is well, or why the rank has ended
    a rank fails, its process ends, or it says nothing for rank_silent_seconds --> rank 0 names it and fails
    `-- the others see that rank 0 is gone, and end; the supervisors start all again, rank 0 from its newest checkpoint

Only names and numbers cross these links, which are encrypted between hosts. What ranks tell each other goes over
torch's process groups, which encrypt nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.base import passing_link
from agent_rl.config.algorithm import STAGE_START
from agent_rl.config.full import toml_text
from agent_rl.config.standard import RANKS
from agent_rl.files.disk import writing
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import RanksState, RanksWanted
from transport import CallTimeout, PeerLost

if TYPE_CHECKING:
    from actors.base import ActorContext
    from transport import CallLink

HELLO_SECONDS = 10.0
"""How long one question waits for a rank whose process may not be up yet."""
BEGIN_SECONDS = 60.0
"""How long a rank may take to look at the shared folders."""
SHOWN_SECONDS = 5.0
"""A rank that is missing for a shorter time is not worth a line."""
ANSWERS = 3
"""So many answers of a rank come within the seconds after which it counts as silent."""
OTHER_SECONDS = 5.0
"""How long after an error of torch another rank may be found that has caused it."""
LEAVE_SECONDS = 10.0
"""How long ranks that were told to end may take."""


class RankLostError(Exception):
    """A rank has ended by itself, is silent, or cannot go on. The message names the rank."""


@dataclass(eq=False)
class Other:
    """A rank other than rank 0. ``host`` is empty where it is rank 0's, ``process`` 0 until it is heard."""

    rank: int
    actor: str
    host: str
    link: CallLink
    process: int = 0

    def __str__(self) -> str:
        process, host = f", process {self.process}" if self.process else "", self.host and f" of host {self.host}"
        return f"rank {self.rank} of the learner ({self.actor}{process}{host})"

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process, as far as is known on this host."""
        try:
            stat = "" if self.host else Path(f"/proc/{self.process}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])


class OtherRanks:
    """The ranks of a learner but rank 0."""

    def __init__(self, context: ActorContext, port: int) -> None:
        """``port``: where ranks meet at the address of this host."""
        self._context = context
        self._port = port
        self._entry = entry = context.topology.actors[context.role]
        self._silent_seconds: float = context.settings.rank_silent_seconds
        self._meeting = secrets.token_hex(8)
        self._ranks: list[Other] = []
        for rank, actor in enumerate(context.links[RANKS].targets, 1):
            name, host = passing_link(RANKS, actor), entry.rank_hosts[rank // entry.ranks_per_host]
            link = context.node.call(name, [actor], outstanding=2, timeout=BEGIN_SECONDS, reply=RanksState)
            self._ranks.append(Other(rank, actor, host if host != entry.rank_hosts[0] else "", link))
        self._since = context.now()
        self._leaving = False
        self._ended = trio.Event()

    @property
    def _missing(self) -> str:
        missing = [each for each in self._ranks if not each.process]
        hosts = ", ".join(dict.fromkeys(f"host {each.host}" for each in missing if each.host))
        return f"{', '.join(map(str, missing))} is not heard{hosts and f'; start {hosts}'}" if missing else ""

    @property
    def lacking(self) -> str:
        """The ranks that rank 0 waits for, in words; empty when all are heard, or the wait is short."""
        return self._missing if self._context.now() - self._since > SHOWN_SECONDS else ""

    async def begin(self) -> None:
        """Wait until all ranks are heard, and let them begin.

        Raises TrainingStoppedError when a host does not see a folder that ranks share, or a rank is not heard for
        ``run.give_up_minutes``; RankLostError when a rank does not begin.
        """
        minutes = self._context.topology.run.give_up_minutes
        with trio.move_on_after(float("inf") if minutes is None else 60.0 * minutes) as limit:
            async with trio.open_nursery() as nursery:
                for each in self._ranks:
                    nursery.start_soon(self._hear, each)
        if limit.cancelled_caught:
            within = f"within {minutes:g} minutes (run.give_up_minutes)"
            raise TrainingStoppedError(f"{self._missing}, {within}; run again: the run goes on where it stopped")
        directory, folders = self._context.directory.absolute(), self._folders()
        probes = [directory / folder / f".ranks-{self._meeting}" for folder in folders]
        entry = toml_text(self._entry.model_dump(by_alias=True))
        wanted = RanksWanted(self._meeting, True, 0.0, entry, str(directory), folders, self._port)
        try:
            for probe in probes:
                with writing(probe):
                    probe.parent.mkdir(exist_ok=True)
                    probe.write_text(self._meeting)
            async with trio.open_nursery() as nursery:
                for each in self._ranks:
                    nursery.start_soon(self._begin, each, wanted)
        finally:
            for probe in probes:
                probe.unlink(missing_ok=True)

    def _folders(self) -> tuple[str, ...]:
        """The folders of the run directory that ranks of several hosts write together."""
        kl, published = self._context.topology.algorithm.kl, self._context.settings.weights_in == "run_directory"
        kept = kl is not None and kl.reference == STAGE_START
        folders = ("checkpoints", *(["weights"] if published else []), *(["reference"] if kept else []))
        return folders if len(self._entry.rank_hosts) > 1 else ()

    async def _hear(self, each: Other) -> None:
        """Wait until a rank answers. A process that has begun before ends instead, and another one answers."""
        wanted = RanksWanted(self._meeting, begin=False, seconds=0.0)
        while not each.process:
            try:
                each.process = (await each.link(wanted, timeout=HELLO_SECONDS)).process
            except (CallTimeout, PeerLost):
                continue  # both take their time; a host may be started later

    async def _begin(self, each: Other, wanted: RanksWanted) -> None:
        try:
            state: RanksState = await each.link(wanted, timeout=BEGIN_SECONDS)
        except (CallTimeout, PeerLost) as error:
            raise RankLostError(f"{each} did not begin: {error}") from error
        each.process = state.process
        if state.ended:
            raise TrainingStoppedError(state.fault)

    async def watch(self) -> None:
        """Wait until all ranks have ended because rank 0 told them to.

        Raises RankLostError when a rank ends before, or is silent, and TrainingStoppedError when a rank cannot go on,
        and a restart would not help.
        """
        async with trio.open_nursery() as nursery:
            for each in self._ranks:
                nursery.start_soon(self._watch, each)
        self._ended.set()

    async def _watch(self, each: Other) -> None:
        """Ask a rank how it is, until it has ended after `leaving`. Raises as `watch`."""
        wanted = RanksWanted(self._meeting, begin=False, seconds=self._silent_seconds / ANSWERS)
        heard = self._context.now()
        state: RanksState | None = None
        while state is None or not (state.ended or state.meeting != self._meeting):
            try:
                left = heard + self._silent_seconds - self._context.now()
                state = await each.link(wanted, timeout=max(0.0, left))
                heard = self._context.now()
            except PeerLost:
                if each.actor in self._context.node.gone:
                    break  # else it is silent for a moment, or a new process, which says that it has not begun
            except CallTimeout:
                text = f"{each} has given no sign of life for rank_silent_seconds ({self._silent_seconds:g} s)"
                stopped = "; the process is stopped (SIGSTOP or a debugger)" if each.stopped else ""
                if not self._leaving:
                    raise RankLostError(f"{text}{stopped}") from None
                break
        if self._leaving or (state is not None and state.ended and not state.fault):
            return
        if state is None or not state.fault:
            raise RankLostError(f"{each} has ended")
        if state.kind == "torch":
            await trio.sleep(OTHER_SECONDS)  # cancelled when another rank is named
        error = TrainingStoppedError if state.kind == "mistake" else RankLostError
        raise error(f"{each} cannot go on: {state.fault}")

    def leaving(self) -> None:
        """The ranks are told to end."""
        self._leaving = True

    async def ended(self) -> None:
        """Wait until the ranks have ended after `leaving`, or take too long: their supervisors end them."""
        with trio.move_on_after(LEAVE_SECONDS):
            await self._ended.wait()
