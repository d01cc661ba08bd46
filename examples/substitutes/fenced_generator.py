"""A generator for a format of its own: a calculation between fences, what comes back in one line.

::

    the model:   Let me compute that.          what comes back:   = 42
                 ```calc
                 print(6 * 7)
                 ```

Two lines of a topology beside it choose it, for the learner's demonstrations too::

    [actors.rollout_generator]
    class = "fenced_generator:FencedGenerator"

A format alone needs no generator: ``settings.chat_format = "fenced_generator:Calculations"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from actors.rollout_generator import RolloutGenerator
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.rollout.fenced import FencedFormat


class Calculations(FencedFormat):
    """One tool with a label of its own, and results without a fence."""

    fences: ClassVar = {"calc": (PYTHON_TOOL, "code")}

    def responses(self, responses: Sequence[str]) -> str:
        """Each result after a sign."""
        return "\n".join(f"= {text}" for text in responses)


class FencedGenerator(RolloutGenerator):
    """The agent loop as it is, in this format."""

    chat_format = Calculations
