"""Builders of messages for tests of actors and deciders; every argument has a default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import RlStage
from agent_rl.environments.base import Environment
from agent_rl.environments.judging import judged_at_once
from agent_rl.environments.maths import Maths
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans
from agent_rl.messages import (
    EngineLoad,
    Evaluation,
    GroupOpened,
    PolicyPublished,
    PolicyVersion,
    Problem,
    RolloutRequest,
    Sampling,
    Tokens,
    ToolCall,
    ToolCallRecord,
    TrainingGroup,
    Trajectory,
    Transcript,
)


def problem(number: int = 0, *, answer: str = "4", environment: str = "arithmetic") -> Problem:
    """A problem whose answer is 4."""
    return Problem(f"p{number}", "What is 2 + 2?", answer, environment)


def environments(prompt: Literal["plain", "rstar2", "template"] = "plain") -> dict[str, Environment]:
    """The environment that `problem` is of, putting it so."""
    return {"arithmetic": Maths(seed=0, base=Path(), prompt=prompt)}


def algorithm(**changes: Any) -> Algorithm:
    """Steps of 2 groups of 4 samples, 2 of them kept."""
    return Algorithm(**{"groups_per_step": 2, "samples": 4, "keep": 2, **changes})


def rl_stage(**changes: Any) -> RlStage:
    """Ten steps, short rollouts."""
    return RlStage(**{"kind": "rl", "steps": 10, "max_response_tokens": 20, "max_turns": 4, **changes})


def opened(
    number: int = 0, *, stage: int = 0, samples: int = 4, version: int = 0, purpose: Any = "train"
) -> GroupOpened:
    """A group of four samples."""
    evaluation = None if purpose == "train" else Evaluation(stage)
    group = f"s{stage}-g{number:06d}"
    return GroupOpened(group, stage, number, purpose, problem(number), samples, PolicyVersion(1, version), evaluation)


def call(outcome: Any = "success", turn: int = 1) -> ToolCallRecord:
    """The record of a tool call."""
    return ToolCallRecord(turn, "python_code_with_standard_io", outcome, 0.001, 0.002)


def tool_call(
    arguments: dict[str, Any],
    tool: str = PYTHON_TOOL,
    *,
    rollout: str = "s0-g000000/0/0",
    number: str = "1.0",
    state: bytes = b"",
    ends: bool = False,
) -> ToolCall:
    """A generator's call of a tool."""
    return ToolCall(f"{rollout}/{number}", rollout, tool, arguments, problem(), 7, state, ends)


def trajectory(
    group: GroupOpened,
    sample: int = 0,
    *,
    answer: str | None = "4",
    attempt: int = 0,
    status: Any = "finished",
    version: int | Sequence[int] = 0,
    tokens: int = 6,
    calls: tuple[ToolCallRecord, ...] = (),
    texts: tuple[str, ...] = (),
    purpose: Any = None,
) -> Trajectory:
    """A finished rollout of the group with one token of a tool in its middle, judged where its text decides; ``answer``
    None: without one.

    ``texts``: what the model wrote instead of that answer. ``version``: the policy's, or those that took turns.
    """
    text = "" if answer is None else f"<answer>\\boxed{{{answer}}}</answer>"
    mask = np.ones(tokens, dtype=np.uint8)
    mask[tokens // 2 : tokens // 2 + 1] = 0
    body = Tokens(
        prompt_tokens=np.arange(3, dtype=np.int32),
        tokens=np.arange(tokens, dtype=np.int32) + 5,
        loss_mask=mask,
        logprobs=np.full(tokens, -0.5, dtype=np.float32),
        policies=np.array([[1, each] for each in in_turns(version, tokens)], dtype=np.int32).reshape(tokens, 2),
    )
    made = Trajectory(
        rollout=f"{group.group}/{sample}/{attempt}",
        group=group.group,
        stage=group.stage,
        sample=sample,
        attempt=attempt,
        purpose=purpose or group.purpose,
        transcript=Transcript(texts or (text,), calls, status=status),
        reason="",
        generator="rollout_generator.0",
        seconds=0.1,
        **_counted(body),
    )
    return judged_at_once({group.problem.environment: environments()["arithmetic"]}, group.problem, made)


def in_turns(version: int | Sequence[int], tokens: int) -> list[int]:
    """The version of each token: as many of each, in their order, as far as there are tokens."""
    versions = [version] if isinstance(version, int) else version
    return [versions[place * len(versions) // tokens] for place in range(tokens)]


def oldest_token(*made: Trajectory) -> int:
    """The oldest version that wrote a token of the model in these trajectories."""
    bodies = [each.unpack() for each in made]
    return min(int(body.policies[body.loss_mask > 0, 1].min()) for body in bodies)


def repacked(made: Trajectory, **changes: Any) -> Trajectory:
    """The trajectory with other fields, or other arrays of `Tokens` and the counts that follow from them."""
    arrays = {name: changes.pop(name) for name in Tokens._fields if name in changes}
    return replace(made, **changes, **_counted(made.unpack()._replace(**arrays)))


def _counted(body: Tokens) -> dict[str, Any]:
    oldest, newest = body.versions
    lengths = {"prompt_length": len(body.prompt_tokens), "response_length": len(body.tokens)}
    written = int(body.loss_mask.sum())
    return {**lengths, "written": written, "oldest": oldest, "newest": newest, "body": body.pack()}


def training_group(group: GroupOpened, rewards: list[float], **changes: Any) -> TrainingGroup:
    """A decided group with these rewards."""
    return TrainingGroup(
        group=group.group,
        stage=group.stage,
        policy=group.policy,
        trajectories=tuple(trajectory(group, sample, **changes) for sample in range(len(rewards))),
        rewards=np.array(rewards, dtype=np.float32),
    )


def engine_load(
    generator: str = "rollout_generator.0",
    *,
    version: int = 0,
    epoch: int = 1,
    total: int = 1000,
    used: int = 0,
    max_rollouts: int = 100,
) -> EngineLoad:
    """An idle engine."""
    return EngineLoad(generator, 1, PolicyVersion(epoch, version), total, used, max_rollouts, 0, 0, 0, 0)


def published(version: int = 0, *, stage: int = 0, stage_version: int = 0, epoch: int = 1) -> PolicyPublished:
    """A policy published in a stage."""
    return PolicyPublished(PolicyVersion(epoch, version), f"file:///weights/{version}", stage, stage_version)


def request(**changes: Any) -> RolloutRequest:
    """A request for the first sample of the first group."""
    defaults: dict[str, Any] = {
        "rollout": "s0-g000000/0/0",
        "group": "s0-g000000",
        "stage": 0,
        "sample": 0,
        "attempt": 0,
        "purpose": "train",
        "problem": problem(),
        "sampling": Sampling(1.0, 60, 3),
        "seed": 1,
    }
    return RolloutRequest(**{**defaults, **changes})


def evaluated(success: float, name: str = "after") -> EvaluationFigures:
    """The result of an evaluation of one answer to each of four problems."""
    answers = AnswerFigures(
        problems=4,
        success=success,
        low=success,
        high=success,
        lost=0,
        answered=RolloutMeans(rollouts=4, success=success),
    )
    return EvaluationFigures(name=name, sampled=answers)
