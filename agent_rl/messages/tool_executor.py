"""What an executor is asked: run a tool, answer a turn, judge a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_rl.messages.rollouts import EnvironmentMessage, Judgement, Problem, ToolOutcome, Transcript


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Run a tool of the problem's environment. ``arguments`` is the JSON object that the model wrote.

    ``state`` is the snapshot from the rollout's last call of a stateful tool; empty before the first. ``ends``: the
    rollout is over; the executor runs nothing and forgets the rollout.
    """

    call: str
    rollout: str
    tool: str
    arguments: dict[str, Any]
    problem: Problem
    seed: int
    state: bytes = b""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool call ended. ``queue_seconds`` is the wait before it ran, ``run_seconds`` the wall time of its code.

    ``state`` is the snapshot for the next call; None keeps the previous one. ``note`` is about that state; the model
    always reads it.
    """

    call: str
    outcome: ToolOutcome
    stdout: str
    stderr: str
    value: str
    queue_seconds: float
    run_seconds: float
    state: bytes | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ObserveTurn:
    """Let the problem's environment answer the last turn of a rollout, which called no tool.

    ``state`` is the snapshot of the previous answer, empty at first. Any executor can continue from it.
    """

    rollout: str
    problem: Problem
    transcript: Transcript
    state: bytes
    seed: int


@dataclass(frozen=True, slots=True)
class TurnObserved:
    """The environment's answer, and the snapshot to send with the next turn. ``done`` ends the rollout.

    ``fault``: the environment's error, with file and line.
    """

    messages: tuple[EnvironmentMessage, ...] = ()
    state: bytes = b""
    done: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class JudgementWanted:
    """Judge a rollout that its environment left to an executor. Checks of different rollouts take turns."""

    rollout: str
    problem: Problem
    transcript: Transcript
    seed: int = 0


@dataclass(frozen=True, slots=True)
class JudgementReply:
    """The judgement, or None with a reason.

    ``fault`` says what is wrong with the environment, with file and line. ``unavailable`` says why the executor could
    not judge; then the filter asks again.
    """

    rollout: str
    judgement: Judgement | None
    fault: str = ""
    unavailable: str = ""
    seconds: float = 0.0
