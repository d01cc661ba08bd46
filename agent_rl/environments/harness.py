"""What a reward sees of a harness's program: how it ended, what it wrote, its files, and its check."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from agent_rl.messages import Transcript

Fault: TypeAlias = Literal["", "model", "program", "infrastructure"]
OUTPUT, REST = "harness", "harness_outcome"
"""The roles of the two messages that end the transcript of a rollout by a program."""


@dataclass(frozen=True, slots=True)
class HarnessOutcome:
    """``status``: "status 0", a signal, or what went wrong. ``output``: the end of it. ``files``: texts by path.

    Of the check: its ``check_status`` and ``check_output``, and ``check_reward``, the text of the reward's file.
    ``reward``: of a session of live traffic.
    ``refused``: addresses that the program asked for, and that ``network`` does not name.
    """

    status: str
    output: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    check_status: str = ""
    check_output: str = ""
    check_reward: str = ""
    reward: float | None = None
    refused: Sequence[str] = ()
    lost: bool = False
    """The host did not let it run to its end."""

    @property
    def failed(self) -> bool:
        """Whether the program itself ended with an error."""
        return self.status.startswith("status ") and self.status != "status 0"


def packed(data: bytes, *, executable: bool = False) -> str:
    """A file as `Environment.files` gives it: its text, or a NUL, its mode, a space, and its bytes in base64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not executable and not text.startswith("\0"):
        return text
    return f"\0{0o755 if executable else 0o644:o} {b64encode(data).decode()}"


def whose_fault(outcome: HarnessOutcome, *, turns: int, overflowed: bool, disturbed: bool) -> Fault:
    """Whose fault the end of a rollout by a program is, before its check runs; empty: the rollout is judged.

    ``turns``: of the model. ``overflowed``: the prompt left no room. ``disturbed``: a gateway was lost meanwhile.
    A program that fails by itself is judged, so that it cannot get rid of a reward.
    """
    if outcome.lost or (disturbed and (outcome.failed or not turns)):
        return "infrastructure"
    if not turns:
        return "model" if overflowed else "program"
    return ""


def told_of(outcome: HarnessOutcome) -> list[tuple[str, str]]:
    """The messages that tell it, as role and content."""
    rest = {name: value for name, value in asdict(outcome).items() if name not in {"output", "lost"}}
    return [(REST, json.dumps(rest)), (OUTPUT, outcome.output)]


def outcome_of(transcript: Transcript) -> HarnessOutcome | None:
    """The outcome in a transcript; None if no program wrote the rollout."""
    found = {message.role: message.content for message in transcript.replies}
    if REST not in found:
        return None
    return HarnessOutcome(output=found[OUTPUT], **json.loads(found[REST]))
