"""What the twin says of its actors: the busiest one, what they pay, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from actors.twin.world import World
from agent_rl.simulation.prediction import Prediction

SATURATED = 0.9
"""An actor that is busy for a larger share of the makespan limits the run."""
FULL = 0.05
"""An executor whose places are all taken for a larger share of the makespan lets calls wait."""


def twin_lines(made: Prediction, world: World, warnings: Counter[str]) -> Iterator[str]:
    """The lines, as `agent_rl.simulation.prediction.lines` has them."""
    makespan = made.outcome.makespan_s
    ranked = sorted(world.processors.items(), key=lambda item: (-item[1].busy_s, item[0]))
    name, busiest = ranked[0]
    share = busiest.busy_s / makespan
    text = f"{name}, {share:.2%} of the makespan, {busiest.handled.total():,} messages"
    yield f"{'busiest actor':18}{text}{'; it limits the run' if share > SATURATED else ''}"
    for executor, places in sorted(world.places.items(), key=lambda item: (-item[1].full_s, item[0]))[:1]:
        used, full = places.used_s / places.count / makespan, places.full_s / makespan
        text = f"{executor}, {used:.1%} of its {places.count} places, all of them taken for {full:.1%} of the makespan"
        yield f"{'fullest executor':18}{text}{'; calls wait for it: more places are due' if full > FULL else ''}"
    for what, count in sorted(warnings.items()):
        yield f"{'warning':18}{what}: {count:,} times"
    yield ""
    yield "messages of an actor      share    busy s  messages  of which"
    shown = set()
    for name, each in ranked:
        if each.role in shown:
            continue  # the busiest process of each role
        shown.add(each.role)
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in each.handled.most_common(4))
        yield f"{name:22}{each.busy_s / makespan:9.2%}{each.busy_s:10,.2f}{each.handled.total():10,}  {kinds}"
