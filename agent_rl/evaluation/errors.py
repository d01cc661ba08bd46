"""What ends ``agent-rl eval`` with one message."""

from __future__ import annotations


class EvaluationError(Exception):
    """The evaluation cannot be made as asked; the message says what is wrong and what would mend it."""
