"""What handling a message costs an actor's process: a table that `agent-rl bench scheduling --messages` measures.

The event loop of a process handles one message at a time. A message's seconds hold all that follows from it in the
process: decoding, the decision, journalling, encoding what is sent, and acknowledgements. They hold neither the work of
ZeroMQ's threads nor the tools: the seconds of a tool call are those from asking to the answer. A generator is also
charged for each turn that its engine has written, by the name `TURN`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, TypeAdapter

TURN = "Turn"
FILE = Path(__file__).parent / "message_costs.toml"
"""The table for profiles without one."""


class Cost(BaseModel):
    """Seconds of a message, and further seconds for each token that it carries."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    seconds: NonNegativeFloat
    token_s: NonNegativeFloat = 0.0


CostTable: TypeAlias = dict[str, dict[str, Cost]]
"""By role, and by type of message."""


class Costs:
    """Costs by role and type of message. A message that is not in the table costs nothing."""

    def __init__(self, table: Mapping[str, Mapping[str, Cost]]) -> None:
        self._table = table

    def seconds(self, role: str, kind: str, tokens: int) -> float:
        """Seconds in which a process of the role handles a message of this type with so many tokens."""
        cost = self._table.get(role, {}).get(kind)
        return 0.0 if cost is None else cost.seconds + tokens * cost.token_s


def shipped_costs() -> CostTable:
    """The table that comes with agent_rl."""
    table: CostTable = TypeAdapter(CostTable).validate_python(
        tomllib.loads(FILE.read_text(encoding="utf-8"))["messages"]
    )
    return table
