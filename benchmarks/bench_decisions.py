"""What events cost the scheduler, in processor time, at two sizes of a run.

    agent-rl bench decisions
    agent-rl bench decisions --policies worst_case --events 500

The real `GroupScheduler` runs without links (benchmarks/scheduler_decisions.py), with 64 engines and 16,384 rollouts in
flight, and with 512 engines and 131,072 (names that end in ``_512``). ``POLICY.event_us`` is the cost of a rollout's
end, a load with news of its engine, and the next rollout there; ``drop_us`` that of dropping a group of 32 rollouts
that wait; ``event_after_drop_us`` that of an event while dropped groups are announced; ``quiet_load_us`` that of a load
without news; ``fill_s`` that of filling empty engines. All is processor time of one process. Decisions a second are
measured by ``agent-rl bench scheduler``.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_rl.scheduling.policies.registry import POLICIES
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.scheduler_decisions import SIZES, dropping, event_us, opening_s, quiet_load_us


@dataclass(kw_only=True)
class Options:
    """The options."""

    policies: tuple[str, ...] = ("worst_case", "predictive")
    """The policies."""
    events: int = 2000
    """Events of each measurement."""


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    for name in options.policies:
        if name not in POLICIES:
            raise WrongOptions(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")
    rows: list[list[object]] = []
    figures: dict[str, float | str | None] = {}
    for policy in options.policies:
        for suffix, size in SIZES.items():
            drops = dropping(size, policy, options.events)
            measured = {
                "event_us": event_us(size, policy, options.events),
                "fill_s": opening_s(size, policy),
                "quiet_load_us": quiet_load_us(size, policy, options.events),
                "drop_us": drops.drop_us,
                "event_after_drop_us": drops.event_us,
            }
            rows.append([policy, f"{size.engines} engines, {size.rollouts:,} rollouts", *measured.values()])
            figures |= {f"{policy}.{name}{suffix}": value for name, value in measured.items()}
    header = ["policy", "size", "event us", "to fill s", "load without news us", "drop us", "event after drop us"]
    print_table("Events of the scheduler, processor time", header, rows)
    print_figures(figures)
    return 0
