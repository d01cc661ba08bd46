"""The filter asks executors to judge rollouts, until each rollout has a judgement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from agent_rl.groups.outages import UNAVAILABLE, CheckerTrust, OutageError
from agent_rl.messages import Judgement, JudgementReply, JudgementWanted
from transport import CallFailed, CallTimeout, PeerLost

if TYPE_CHECKING:
    from agent_rl.environments.base import Environment
    from agent_rl.groups.instructions import Judge
from collections.abc import Awaitable

from agent_rl.records.journal import Journal

CAME_TO_NOTHING = frozenset({"crashed", "timeout", "memory_limit", "output_limit"})
"""Notes of judgements whose check died of the answer."""


class Judging:
    """Has any number of rollouts judged at once, each until it has a judgement or its environment has failed."""

    def __init__(
        self,
        ask: Callable[..., Any],
        judged: Callable[[Judge, JudgementReply], None],
        environments: Mapping[str, Environment],
        log: Any,
        *,
        timeout: float,
        attempts: int,
    ) -> None:
        """``ask`` is the link to the executors; ``judged`` is called with each judgement and each fault.

        ``timeout`` is in seconds, from asking to the answer. ``attempts`` is how often an executor may die of one
        rollout.
        """
        self._ask, self._judged, self._environments, self._log = ask, judged, environments, log
        self._timeout, self._attempts = timeout, attempts
        self._wanted, self._to_ask = trio.open_memory_channel["Judge"](math.inf)
        self._trust = CheckerTrust()
        self._trying = trio.Lock()
        self.under_way = 0
        self.failed = 0
        """Questions that came to nothing, all attempts counted."""

    def want(self, wanted: Judge) -> None:
        """Have one rollout judged."""
        self._wanted.send_nowait(wanted)

    async def run(self) -> None:
        """Until cancelled. Raises OutageError when the checkers do not work."""
        async with trio.open_nursery() as nursery:
            async for wanted in self._to_ask:
                nursery.start_soon(self._judge, wanted)

    async def _judge(self, wanted: Judge) -> None:
        self.under_way += 1
        reply = await self.reply(wanted)
        self.under_way -= 1
        self._judged(wanted, reply)

    async def reply(self, wanted: Judge) -> JudgementReply:
        """The judgement, however long it takes until there is an executor to make it, or the environment's fault.

        When the checks of several answers in a row die, the checkers judge a rollout that the environment knows to be
        successful. Raises OutageError when they do not find it so.
        """
        trajectory = wanted.trajectory
        message = JudgementWanted(trajectory.rollout, wanted.problem, trajectory.transcript, wanted.seed)
        reply = await self._asked(message)
        if reply.judgement is None or reply.judgement.note not in CAME_TO_NOTHING:
            self._trust.judged()
        elif self._trust.doubted():
            await self._try_checkers(wanted.problem.environment)
        return reply

    async def _asked(self, message: JudgementWanted) -> JudgementReply:
        """An executor's answer; a fault when executors die of the rollout, or are never there."""
        deaths = unavailable = 0
        failure = ""
        while deaths < self._attempts and unavailable < UNAVAILABLE:
            try:
                reply: JudgementReply = await self._ask(message, timeout=self._timeout)
            except (CallTimeout, PeerLost) as error:
                failure = str(error)
            except CallFailed as error:
                failure, deaths = str(error), deaths + 1
            else:
                if not reply.unavailable:
                    return reply
                failure, unavailable = reply.unavailable, unavailable + 1
            self._log.warning("not judged yet", rollout=message.rollout, deaths=deaths, error=failure)
            self.failed += 1
        return JudgementReply(message.rollout, None, f"the executors did not judge: {failure}")

    async def _try_checkers(self, name: str) -> None:
        """Have a rollout judged that is right beyond doubt. Raises OutageError when no attempt finds it so."""
        control = self._environments[name].control()
        if control is None:
            self._trust.judged()
            return
        async with self._trying:
            found: Judgement | None = None
            for _ in range(self._attempts):
                reply = await self._asked(JudgementWanted("control", *control))
                found = reply.judgement
                if found is not None and found.success:
                    self._trust.judged()
                    return
        raise OutageError(CheckerTrust.message(name, "it was not judged" if found is None else found.note))


class Compaction:
    """Carries out `Journal.compaction` whenever it is wanted, and lets handlers act between its pieces."""

    def __init__(
        self, journal: Journal, keep: str | int, commit: Callable[[], None], in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        """``keep`` is ``run.keep_trajectories``."""
        self._journal = journal
        self._steps = keep if isinstance(keep, int) else 0
        self._all = keep == "all"
        self._commit = commit
        self._in_thread = in_thread
        self._wanted = trio.Event()

    def want(self) -> None:
        """There may be something to forget."""
        self._wanted.set()

    async def run(self) -> None:
        """Forget what may be forgotten, whenever it is wanted."""
        while not self._all:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self.once()

    async def once(self) -> None:
        """Forget what may be forgotten now."""
        for remove in self._journal.compaction(self._steps):
            self._commit()
            if remove is None:
                await trio.lowlevel.checkpoint()
            else:
                await self._in_thread(self._remove, remove)

    def _remove(self, remove: Callable[[], None]) -> None:
        self._journal.settle()
        remove()
