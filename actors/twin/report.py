"""What the full twin says beside the fast level: the busiest actor, what actors pay, warnings, and a Gantt chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from actors.twin.world import World
from agent_rl.simulation.gantt import Box, Gantt, Lane, boxes_of
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
    if made.plan.trace.shared is not None:
        yield f"{'warning':18}here every actor has a core of its own; only the fast level shares cores"
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


def chart(made: Prediction, world: World) -> Gantt:
    """Lanes of the learner's steps, of the KV cache of each engine, and of the process of each actor."""
    plan, seconds = made.plan, made.outcome.makespan_s
    steps = [Box(began, ended, 0.55 + 0.45 * (step % 2), f"step {step}") for step, began, ended in world.trained]
    lanes = [Lane("learner.0 trains", "step", steps)]
    lanes += [Lane(name, "engine", boxes_of(bins, seconds)) for name, bins in sorted(world.occupied.items())]
    ranked = sorted(world.processors.items(), key=lambda item: (item[1].role, -item[1].busy_s, item[0]))
    roles: set[str] = set()
    for name, each in ranked:
        if each.role not in roles:
            roles.add(each.role)
            lanes.append(Lane(f"{name} handles", "process", boxes_of(each.bins, seconds)))
    title = (
        f"{plan.trace.name}: {plan.about}; policy {plan.policy}. Steps of the learner, share of each KV cache in use, "
        "and of each role the busiest event loop"
    )
    return Gantt(title, seconds, lanes)
