"""What the scheduler's decisions cost: decisions a second of processor time, at two sizes of a run.

    agent-rl bench decisions
    agent-rl bench decisions --seconds 1

The real `GroupScheduler` runs without links (benchmarks/scheduler_decisions.py). A decision places a turn; it includes
the end of another turn and a load with news of that turn's engine. ``decisions_per_s`` is with 64 engines and 16,384
rollouts in flight, ``decisions_per_s_512`` with 512 engines and 131,072. ``drop_us`` is the cost of dropping a group
of 32 rollouts that wait among 16,384; ``event_after_drop_us`` is the cost of a decision while dropped groups are
announced, ``quiet_load_us`` that of a load without news. All is processor time of one process.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.reporting import print_figures, print_table
from benchmarks.scheduler_decisions import Size, decisions_per_s, dropping, opening_s, quiet_load_us

SIZES = {"": Size(engines=64, rollouts=16_384), "_512": Size(engines=512, rollouts=131_072)}


@dataclass(kw_only=True)
class Options:
    """The options."""

    seconds: float = 5.0
    """Processor time that decisions are measured for, at each size."""
    events: int = 2000
    """Events of the other measurements."""


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    rates = {name: decisions_per_s(size, options.seconds) for name, size in SIZES.items()}
    openings = {name: opening_s(size) for name, size in SIZES.items()}
    quiet = {name: quiet_load_us(size, options.events) for name, size in SIZES.items()}
    drops = {name: dropping(size, options.events) for name, size in SIZES.items()}
    rows = [
        (
            f"{size.engines} engines, {size.rollouts:,} rollouts",
            rates[name],
            1e6 / rates[name],
            openings[name],
            quiet[name],
            drops[name].drop_us,
            drops[name].event_us,
        )
        for name, size in SIZES.items()
    ]
    header = ("size", "decisions/s", "us each", "to fill s", "load without news us", "drop us", "event after drop us")
    print_table("Decisions of the scheduler, processor time", header, rows)
    figures: dict[str, float | str | None] = {}
    for name in SIZES:
        figures[f"decisions_per_s{name}"] = rates[name]
        figures[f"fill_s{name}"] = openings[name]
        figures[f"quiet_load_us{name}"] = quiet[name]
        figures[f"drop_us{name}"] = drops[name].drop_us
        figures[f"event_after_drop_us{name}"] = drops[name].event_us
    print_figures(figures)
    return 0
