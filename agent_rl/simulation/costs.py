"""What handling a message costs an actor's process: a table that `agent-rl calibrate --messages` measures.

The event loop of a process handles one message at a time. A message's seconds hold all that follows from it in the
process: decoding, the decision, journalling, encoding what is sent, and acknowledgements.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, NonNegativeFloat


class Cost(BaseModel):
    """Seconds of a message, and further seconds for each token that it carries."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    seconds: NonNegativeFloat
    token_s: NonNegativeFloat = 0.0


class Costs:
    """Costs by role and type of message. A message that is not in the table costs nothing."""

    def __init__(self, table: Mapping[str, Mapping[str, Cost]]) -> None:
        self._table = table

    def seconds(self, role: str, kind: str, tokens: int) -> float:
        """Seconds in which a process of the role handles a message of this type with so many tokens."""
        cost = self._table.get(role, {}).get(kind)
        return 0.0 if cost is None else cost.seconds + tokens * cost.token_s
