"""What the scheduler's decisions ask its actor to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from agent_rl.messages import GroupOpened, RolloutRequest


@dataclass(frozen=True, slots=True)
class AskUnfinished:
    """Instruction: ask the filter for the unfinished groups of this stage. No group is opened before the answer."""

    stage: int


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """Instruction: record the group with the filter. Call `group_recorded` when it is recorded."""

    opened: GroupOpened


@dataclass(frozen=True, slots=True)
class Assign:
    """Instruction: send the request to this engine's generator. Call `rollout_done` when it is acknowledged.

    Do not send it once it is not `current` any more.
    """

    request: RolloutRequest
    generator: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Instruction: take back, at once, all requests to this generator. Their acknowledgements do not count."""

    generator: str


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Instruction: tell all generators which rollouts to end. The fields are those of GroupsUnwanted."""

    groups: tuple[str, ...]
    moved: dict[str, int] = field(default_factory=dict)


Instruction: TypeAlias = AskUnfinished | OpenGroup | Assign | Withdraw | Unwanted
