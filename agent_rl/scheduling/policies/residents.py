"""What the predictive policy keeps of engines and of the rollouts that reside there."""

from __future__ import annotations

from agent_rl.scheduling.policies.base import EngineFacts, WaitingTurn
from agent_rl.scheduling.policies.forecast import Forecast


class EngineUse:
    """An engine, who its residents are, and what they will need."""

    __slots__ = ("clock", "facts", "forecast", "most", "now", "places", "residents", "stale")

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.forecast = Forecast()
        self.most = 0.0
        self.places = 0.0
        """Further rollouts that have room here, roughly."""
        self.residents: dict[str, None] = {}
        self.stale = 0.0
        """When the forecast is to be made anew."""
        self.clock = 0.0
        """Tokens that a rollout would have written here until ``now``."""
        self.now = 0.0


class Resident:
    """A rollout: where it is, and what is known of its present turn. `engine` is empty when it is nowhere."""

    __slots__ = (
        "context",
        "counted",
        "engine",
        "limit",
        "missing",
        "placed_at",
        "placed_clock",
        "survival",
        "tools_since",
        "trains",
        "writes",
    )

    def __init__(self, turn: WaitingTurn) -> None:
        self.engine = ""
        self.limit = turn.limit
        self.trains = turn.trains
        self.context = turn.context
        self.missing = 0
        """Tokens to prefill in the turn under way."""
        self.placed_at = 0.0
        self.placed_clock = 0.0
        self.writes = False
        self.tools_since = -1.0
        self.counted = 0.0
        """The context that the forecast of its engine counts, with this survival."""
        self.survival: list[float] = []
