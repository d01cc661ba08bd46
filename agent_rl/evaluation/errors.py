"""What ends ``agent-rl eval`` with one message."""

from __future__ import annotations


class EvaluationError(Exception):
    """The evaluation is not possible; the message says what is wrong and what to do."""
