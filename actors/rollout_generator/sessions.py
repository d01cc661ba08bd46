"""Rollouts by live traffic: each waits for a session from outside, and ends when that has its reward and has ended.

::

    waiting --start--> open --(reward and end, in either order)--> finished: the rollout is judged
                         `--(no reward within `seconds`, or no turn)--> dropped: the rollout waits for another session

A session is in one generator and ends with it: its rollout then waits elsewhere, from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from agent_rl.environments.harness import HarnessOutcome, told_of
from agent_rl.messages import EnvironmentMessage, Problem, SessionAsked, SessionGiven

if TYPE_CHECKING:
    from actors.rollout_generator.agent_loop import AgentLoop
    from actors.rollout_generator.served import ServedRollout, ServedRollouts
    from agent_rl.rollout.episode import Episode


@dataclass(slots=True, eq=False)
class _Session:
    key: str
    reward_key: str
    rollout: str
    problem: Problem
    prompt: str
    reward: float | None = None
    ended: bool = False
    gateway: str = ""
    """The gateway whose request it is; empty: that of a user."""
    taken: trio.Event = field(default_factory=trio.Event)
    settled: trio.Event = field(default_factory=trio.Event)


class Sessions:
    """The sessions of a generator."""

    def __init__(self, agent: AgentLoop, served: ServedRollouts, log: structlog.typing.FilteringBoundLogger) -> None:
        self._agent, self._served, self._log = agent, served, log
        self._waiting: list[_Session] = []
        self._more = trio.Event()
        """Set when another rollout waits for a session."""
        self._open: dict[str, _Session] = {}
        self._by_reward_key: dict[str, _Session] = {}

    async def run(self, episode: Episode, prompt: str, seconds: float, tools: str) -> bool:
        """Let a session write the rollout. False: it was dropped. ``tools``: as for `ServedRollout`.

        Raises EngineError, ContractError and ToolsUnavailableError.
        """
        request = episode.request
        served = self._served.serving(self._agent, episode, tools=tools)
        async with served as (key, rollout), trio.open_nursery() as nursery:
            session = _Session(key, self._served.another_key(), request.rollout, request.problem, prompt)
            self._waiting.append(session)
            self._more.set()
            self._more = trio.Event()
            try:
                await session.taken.wait()
                nursery.start_soon(self._settle_failed, session, rollout)
                with trio.move_on_after(seconds):
                    await session.settled.wait()
            finally:
                self._open.pop(key, None)
                self._by_reward_key.pop(session.reward_key, None)
                if session in self._waiting:
                    self._waiting.remove(session)
            nursery.cancel_scope.cancel()
        if rollout.failure is not None:
            raise rollout.failure
        if session.reward is None or not session.ended or not episode.turns:
            if not episode.turns:
                why = "it ended without a turn"
            elif session.gateway and session.settled.is_set():
                why = "its gateway was lost"
            else:
                why = f"it had no {'reward' if session.reward is None else 'end'} within {seconds:g} s"
            self._log.warning("a session is dropped", rollout=request.rollout, why=why)
            return False
        outcome = HarnessOutcome("session ended", reward=session.reward)
        episode.record_messages([EnvironmentMessage(episode.turns, role, text) for role, text in told_of(outcome)])
        episode.finish()
        return True

    @staticmethod
    async def _settle_failed(session: _Session, rollout: ServedRollout) -> None:
        """The engine failed: nothing more comes of the session."""
        await rollout.over.wait()
        if rollout.failure is not None:
            session.settled.set()

    def gateway_lost(self, gateway: str) -> None:
        """Requests at this gateway have ended, and with them the sessions that are of one request."""
        for session in self._open.values():
            if session.gateway == gateway:
                session.settled.set()

    async def answer(self, asked: SessionAsked, sender: str) -> SessionGiven:
        """Begin a session, take its reward, or end it."""
        if asked.what == "start":
            with trio.move_on_after(asked.seconds):
                while not any(asked.task in {"", each.problem.id} for each in self._waiting):
                    await self._more.wait()
            return self._start(asked.task, sender if asked.opens else "")
        session = self._by_reward_key.get(asked.key)
        if session is None:
            session = self._open.get(asked.key)
            if session is not None and asked.what == "reward" and not asked.by_agent:
                why = 'a reward is set with the reward_key of the session, or write rewards_by = "api_key", as AReaL'
                return SessionGiven("key", why)
        if session is None or session.settled.is_set():
            return SessionGiven("ended", "there is no session with this key: it has ended, or had its time")
        if asked.what == "reward":
            session.reward = asked.reward
        else:
            session.ended = True
        if session.ended and session.reward is not None:
            session.settled.set()
        return SessionGiven(key=session.key, rollout=session.rollout)

    def _start(self, task: str, gateway: str) -> SessionGiven:
        session = next((each for each in self._waiting if task in {"", each.problem.id}), None)
        if session is None:
            wanted = f"rollout of task {task!r:.100}" if task else "rollout"
            return SessionGiven("busy", f"no {wanted} waits for a session now; try again")
        self._waiting.remove(session)
        session.taken.set()
        self._open[session.key] = self._by_reward_key[session.reward_key] = session
        session.gateway = gateway
        return SessionGiven(
            key=session.key,
            rollout=session.rollout,
            task=session.problem.id,
            prompt=session.prompt,
            reward_key=session.reward_key,
        )
