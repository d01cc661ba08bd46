"""What a gateway asks of a generator: turns of the model, in the words of no one dialect, and live sessions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from agent_rl.messages.rollouts import BranchCause
from agent_rl.messages.tokens import Float32Vector, Int32Vector

SaidRole: TypeAlias = Literal["system", "user", "assistant", "tool"]
Finish: TypeAlias = Literal["stop", "length", "tool_calls"]
Refusal: TypeAlias = Literal["", "key", "ended", "overflow", "request", "busy", "failed"]
"""Why there is no turn. ``key``: nobody has this key; ``ended``: its rollout is over; ``overflow``: the messages leave
no room; ``request``: they cannot be served; ``busy``: try again; ``failed``: engine or generator failed, try again."""


def _none() -> Int32Vector:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class SaidCall:
    """A tool call. ``arguments``: a JSON object, as it was written."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a conversation. ``call_id``: of the call that a message of the role ``tool`` answers."""

    role: SaidRole
    content: str = ""
    reasoning: str = ""
    calls: tuple[SaidCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class TurnAsked:
    """Write the next turn of a conversation, or say more of one that is being written.

    ``key``: of the rollout; ``ask``: of this request. With ``follows`` only these two are given and ``after``: the
    reply has the parts from that number on, as soon as there is one. ``model``: as the client named it. ``tools``: a
    JSON list of function schemas, as chat templates take them. ``tokens`` [n]: in place of messages. ``count``: turns
    beside each other. ``max_tokens`` 0: no limit. ``streams``: parts are wanted; the first reply comes as soon as the
    prompt is known. ``again``: the client repeats a request that was not answered. ``counts``: only the number of the
    prompt's tokens is wanted. ``evidence``: why the request begins a branch, if the harness says so.
    """

    key: str
    ask: str
    model: str = ""
    messages: tuple[Said, ...] = ()
    tools: str = "[]"
    tokens: Int32Vector = field(default_factory=_none)
    count: int = 1
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    streams: bool = False
    again: bool = False
    counts: bool = False
    evidence: BranchCause | None = None
    follows: bool = False
    after: int = 0


@dataclass(frozen=True, slots=True)
class TurnPart:
    """What was written of a turn since the part before: ``tokens`` [n], ``logprobs`` [n], and the text in them.

    ``choice`` numbers the turns of a request. Calls are in the `Choice` alone, and their text in no part. ``said``:
    where calls are run here, the turn that makes them, and in the next such part what answers them.
    """

    choice: int
    content: str
    reasoning: str
    tokens: Int32Vector
    logprobs: Float32Vector
    said: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A turn. ``tokens`` [n] are as sampled, with the stop token; ``logprobs`` [n]. ``cut_at``: the stop string."""

    content: str
    reasoning: str
    calls: tuple[SaidCall, ...]
    finish: Finish
    tokens: Int32Vector
    logprobs: Float32Vector
    cut_at: str = ""


@dataclass(frozen=True, slots=True)
class TurnGiven:
    """The turns of a request, or with ``done`` False those of its parts that were asked for.

    ``prompt`` [n]: the tokens that the turns follow. ``policy_version``: of the newest token. ``refusal`` and ``why``:
    there is no turn.
    """

    done: bool = True
    refusal: Refusal = ""
    why: str = ""
    parts: tuple[TurnPart, ...] = ()
    prompt: Int32Vector = field(default_factory=_none)
    choices: tuple[Choice, ...] = ()
    policy_version: int = 0


@dataclass(frozen=True, slots=True)
class SessionAsked:
    """Something about a session of live traffic, which is a rollout whose agent comes from outside.

    ``start``: take a rollout that waits for a session, of the problem ``task`` where that is not empty; wait up to
    ``seconds`` for one. ``reward``: the session with this ``key`` has this ``reward``. ``end``: it asks for no more
    turns. ``by_agent``: the agent's own key may set the reward. ``opens``: the session is of one request at the asking
    gateway, and ends with it.
    """

    what: Literal["start", "reward", "end"]
    key: str = ""
    task: str = ""
    reward: float = 0.0
    seconds: float = 0.0
    by_agent: bool = False
    opens: bool = False


@dataclass(frozen=True, slots=True)
class SessionGiven:
    """The session. ``key``: of its rollout; ``task`` and ``prompt``: id and text of its problem, given at its start.

    ``reward_key``: with which its reward is set; given at its start.
    """

    refusal: Refusal = ""
    why: str = ""
    key: str = ""
    rollout: str = ""
    task: str = ""
    prompt: str = ""
    reward_key: str = ""
