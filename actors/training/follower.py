"""A rank of a learner other than rank 0: a process that rank 0's actor starts, and that cannot outlive it.

``lifeline.py PARENT actors.training.follower`` reads one JSON object from its standard input (`Beginning`), makes the
trainer that the topology names, and carries out rank 0's orders.
"""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path

from pydantic import BaseModel

from agent_rl.config.topology import Topology

ALIKE_SECONDS = 20.0
"""So long a rank that cannot make its trainer waits for rank 0, which has the same error as a rule, to say so."""


class Beginning(BaseModel):
    """What a rank must know to begin."""

    topology: str
    """As TOML."""
    role: str
    directory: Path
    base: Path
    rank: int
    port: int
    """Where the ranks meet, on this host."""


def main() -> None:
    """Entry point. Exits with an error when rank 0 is lost, after a line on stderr."""
    beginning = Beginning.model_validate_json(sys.stdin.read())
    from actors.training.building import build, device_of
    from actors.training.orders import ALIKE, follow
    from agent_rl.config.parallel import mesh_sizes
    from agent_rl.config.plugins import resolve
    from agent_rl.learning.ranks import joined
    from agent_rl.learning.trainer import Trainer

    topology = Topology.model_validate(tomllib.loads(beginning.topology))
    entry = topology.actors[beginning.role]
    settings = resolve("actor", entry.class_path).Settings.model_validate(entry.settings)
    ranks = joined(
        beginning.rank,
        mesh_sizes(entry.ranks, topology.model.parallel),
        place=beginning.port,
        device=device_of(settings.device, beginning.rank, entry.ranks),
        seconds=settings.rank_timeout_seconds,
    )
    try:
        trainer = build(Trainer, topology, settings, directory=beginning.directory, base=beginning.base, ranks=ranks)
    except ALIKE as error:
        time.sleep(ALIKE_SECONDS)
        raise SystemExit(str(error)) from error
    follow(trainer)
    ranks.leave()


if __name__ == "__main__":
    main()
