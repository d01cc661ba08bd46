"""Whether the numerics guard finds and names the faults that are injected into an engine on purpose.

    agent-rl bench guard
    agent-rl bench guard --updates 1000

A learner's model of random weights has been updated twice. The engine's side is computed by transformers alone, with
one fault of `guard_faults` at a time, and the guard checks its rollouts twice at most. Then engines without a fault
learner through updates, in ten kinds (`HEALTHY`); the guard checks them as in a run: the first two, and every fourth.
The exit code is 1 when a fault of `FAULTS` is not found or not named, or an alarm is false. `FRESH` are counted only.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.utils.logging import disable_progress_bar

from agent_rl.config.topology import Lora
from agent_rl.learning.guard_causes import Sampled
from benchmarks.guard_faults import FAULTS, FRESH, MOVED_IN_HEALTH, Fault, Pair, plain, top_k, top_p, write_model
from benchmarks.reporting import print_figures, print_table


@dataclass(kw_only=True)
class Options:
    """The options."""

    updates: int = 48
    """Healthy updates, in all."""


class Health(NamedTuple):
    """A pair without a fault."""

    pair: Mapping[str, Any] = {}
    engine: torch.dtype = torch.float32
    rollouts: Mapping[str, Any] = {}
    how: Sampled = Sampled(1.0)
    cast: bool = False
    """Whether products are in bfloat16, and weights are not."""


HALF = torch.bfloat16
HEALTHY: Mapping[str, Health] = {
    "float32": Health(),
    "bfloat16 engine": Health(engine=HALF),
    "one version behind": Health(rollouts={"behind": 1}),
    "float16 engine": Health(engine=torch.float16),
    "cast engine": Health(cast=True),
    "filters": Health(rollouts={"filtered": lambda each: top_p(0.9)(top_k(20)(each))}, how=Sampled(1.0, 0.9, 20)),
    "temperature, two engines": Health(rollouts={"temperature": 0.7}, how=Sampled(0.7)),
    "adapters": Health({"lora": Lora(rank=4)}),
    "all in bfloat16": Health({"dtype": "bfloat16", "compute": "bfloat16"}, HALF),
    "cast learner": Health({"compute": "bfloat16"}),
}


def said_of(fault: Fault, path: Path) -> str:
    """What the guard says of rollouts with this fault, in its first check or in the second."""
    pair = Pair(path, lora=Lora(rank=4) if fault.lora else None)
    rollouts = fault.rollouts(pair)
    return pair.guard.check(rollouts, fault.known) or pair.guard.check(rollouts, fault.known)


def alarms_in_health(path: Path, updates: int) -> list[str]:
    """What the guard says of engines without a fault: it should be nothing."""
    alarms = []
    for number, (name, kind) in enumerate(HEALTHY.items()):
        pair = Pair(path, **kind.pair)
        for seed in range(number, updates, len(HEALTHY)):
            pair.update(MOVED_IN_HEALTH)
            engine = copy.deepcopy(pair.before if "behind" in kind.rollouts else pair.engine)
            kept = engine.model.rotary_emb.inv_freq
            engine = engine.to(kind.engine)
            engine.model.rotary_emb.inv_freq = kept  # as engines and transformers have it, in float32
            with torch.autocast("cpu", HALF, enabled=kind.cast):
                rollouts = pair.rollouts(plain(engine), count=3, seed=seed, **kind.rollouts)
                two = pair.rollouts(plain(engine), count=3, seed=-seed, generator="b", **kind.rollouts)
            said = pair.guard.check([*rollouts, *two], kind.how)
            alarms += [f"{name}: {said}"] if said else []
    return alarms


def main(options: Options) -> int:
    """Inject each fault, go through healthy updates, and print what the guard said."""
    disable_progress_bar()
    torch.set_num_threads(1)  # more are slower for so small a model
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder))
        for kind, faults in (("", FAULTS), ("fresh_", FRESH)):
            said = {name: said_of(fault, path) for name, fault in faults.items()}
            named = {name: fault.named in said[name] for name, fault in faults.items()}
            rows = [(name, "yes" if named[name] else "no", text) for name, text in said.items()]
            print_table("What the guard says", ("fault", "named", "said"), rows)
            found = sum(map(bool, said.values()))
            counts |= {f"{kind}faults": len(faults), f"{kind}found": found, f"{kind}named": sum(named.values())}
        alarms = alarms_in_health(path, options.updates)
    print_table("What it says without a fault", ("said",), [(text,) for text in alarms])
    counts |= {"updates": options.updates, "false_alarms": len(alarms)}
    print_figures({f"guard.{name}": count for name, count in counts.items()})
    return int(counts["named"] < len(FAULTS) or bool(alarms))
