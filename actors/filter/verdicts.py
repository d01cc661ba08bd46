"""The filter's questions to the checkers: each answer's verdict, asked for until somebody has judged it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import trio

from agent_rl.groups.outages import CONTROL, UNAVAILABLE, CheckerTrust, OutageError
from agent_rl.messages import Verdict, VerifyAnswer
from transport import CallFailed, CallTimeout, PeerLost

if TYPE_CHECKING:
    from agent_rl.groups.instructions import Check

CAME_TO_NOTHING = frozenset({"crashed", "timeout", "memory_limit"})
"""Methods of verdicts that no checker reached: the answers count as not equal."""


class Judged(Protocol):
    """Is told of a verdict."""

    def __call__(self, check: Check, /, *, equal: bool) -> None:
        """Whether the answer equals its gold one."""


class Verdicts:
    """Checks under way: any number at once, each until it has a verdict."""

    def __init__(
        self,
        ask: Callable[..., Any],
        judged: Judged,
        log: Any,
        *,
        timeout: float,
        attempts: int,
    ) -> None:
        """``ask`` is the link to the checkers; ``judged`` is told of each verdict.

        ``timeout`` is in seconds, from asking to the verdict; ``attempts`` is how often a check of one answer may die.
        """
        self._ask, self._judged, self._log = ask, judged, log
        self._timeout, self._attempts = timeout, attempts
        self._wanted, self._to_ask = trio.open_memory_channel["Check"](math.inf)
        self._trust = CheckerTrust()
        self._trying = trio.Lock()
        self.under_way = 0
        self.failed = 0
        """Checks that came to nothing, all attempts counted."""

    def want(self, check: Check) -> None:
        """Have one answer judged."""
        self._wanted.send_nowait(check)

    async def run(self) -> None:
        """Until cancelled. Raises OutageError when the checkers do not work."""
        async with trio.open_nursery() as nursery:
            async for check in self._to_ask:
                nursery.start_soon(self._judge, check)

    async def _judge(self, check: Check) -> None:
        self.under_way += 1
        equal = await self.verdict(check)
        self.under_way -= 1
        self._judged(check, equal=equal)

    async def verdict(self, check: Check) -> bool:
        """Whether the answer is right, however long it takes until there is a checker to say so.

        One whose checkers die of it again and again is the answer's doing: it counts as not equal, loudly. When that happens to
        several answers in a row, the checkers are tried with an answer that they must know. Raises OutageError when they do not.
        """
        name = f"{check.group}/{check.sample}/{check.attempt}"
        verdict = await self._verdict(VerifyAnswer(name, check.gold, check.prediction, check.group))
        if verdict is None:
            self._log.error("answer counted as not equal: its check kept dying", check=name)
        elif verdict.method not in CAME_TO_NOTHING:
            self._trust.judged()
            return verdict.equal
        if self._trust.doubted():
            await self._try_checkers()
        return False

    async def _verdict(self, message: VerifyAnswer) -> Verdict | None:
        """A checker's verdict, perhaps that it crashed or took too long; None when none of several attempts came to one."""
        deaths = unavailable = 0
        while deaths < self._attempts and unavailable < UNAVAILABLE:
            try:
                verdict: Verdict = await self._ask(message, timeout=self._timeout)
            except (CallTimeout, PeerLost) as error:
                failure = str(error)
            except CallFailed as error:
                failure, deaths = str(error), deaths + 1
            else:
                if not verdict.failure:
                    return verdict
                failure = verdict.failure
                if verdict.method == "unavailable":
                    unavailable += 1
                else:
                    deaths += 1
            self._log.warning("check failed", check=message.check, deaths=deaths, error=failure)
            self.failed += 1
        return None

    async def _try_checkers(self) -> None:
        """Have an answer judged that is equal beyond doubt. Raises OutageError when no attempt finds it so."""
        async with self._trying:
            found = None
            for _ in range(self._attempts):
                found = await self._verdict(VerifyAnswer("control", *CONTROL, "control"))
                if found is not None and found.equal:
                    self._trust.judged()
                    return
        raise OutageError(CheckerTrust.message("their checks keep dying" if found is None else found.method))
