"""A rollout under way in the simulator."""

from __future__ import annotations

from agent_rl.simulation.trace import Shape


class Rollout:
    """A rollout: what it is, how far it is, and where. Compared and hashed by identity."""

    __slots__ = (
        "context",
        "ends_at",
        "engine",
        "group",
        "joined_at",
        "left",
        "name",
        "number",
        "prefix_on",
        "sample",
        "shape",
        "started",
        "turn",
    )

    def __init__(self, name: str, number: int, group: int, sample: int, shape: Shape) -> None:
        """``number`` orders rollouts that are otherwise alike; ``group`` is the group's number."""
        self.name = name
        self.number = number
        self.group = group
        self.sample = sample
        self.shape = shape
        self.turn = 0
        self.context = shape.prompt
        """Tokens that the engine must hold before it goes on with the turn."""
        self.left = shape.written[0]
        """Tokens that the turn still writes; hidden from policies."""
        self.engine = -1
        """The number of the engine that the turn is placed on."""
        self.prefix_on = -1
        """The number of the engine that ran it last."""
        self.joined_at = -1
        self.ends_at = -1
        """Of the engine's step counter; -1 while it does not run."""
        self.started = -1.0
