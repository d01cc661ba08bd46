"""Settings of the opponents of `predictive`, for each trace: what was tried, and what was chosen on the training seeds.

`predictive` has one setting for all traces. Its opponents have one for each trace, since their bound on the rollouts of
an engine fits one length of rollouts only. What is not in `CHOSEN` runs with the defaults of its class.

The search behind `CHOSEN` was short: one training seed in the short form, and a part of `CANDIDATES`. On paper_tp4,
mixed_engines, engine_lost and drain the bounds are carried over from the other traces, and were not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CONCURRENCY = (None, 20, 96, 160, 256)

CANDIDATES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "least_requests": [{"concurrency": bound} for bound in CONCURRENCY],
    "sticky_least_loaded": [{"concurrency": bound} for bound in CONCURRENCY],
    "cache_aware": [{"concurrency": bound} for bound in CONCURRENCY],
    "cost_aware": [{"concurrency": bound} for bound in CONCURRENCY],
    "margin": [{"margin": margin, "concurrency": bound} for bound in CONCURRENCY for margin in (2, 8)],
    "program_aware": [{}, {"acting_weight": 0.5}, {"interval_s": 1.0}],
}
"""What ``--tune`` tries."""

CHOSEN: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("agentic", "sticky_least_loaded"): {"concurrency": 20},
    ("agentic", "cost_aware"): {"concurrency": 20},
    ("agentic", "least_requests"): {"concurrency": 20},
    ("agentic", "margin"): {"margin": 8, "concurrency": 20},
    ("brutal", "sticky_least_loaded"): {"concurrency": 96},
    ("brutal", "margin"): {"margin": 8},
    ("mild", "sticky_least_loaded"): {"concurrency": 256},
    ("mild", "margin"): {"margin": 8},
    ("mild", "cache_aware"): {"concurrency": 256},
    ("paper", "sticky_least_loaded"): {"concurrency": 160},
    ("paper_tp4", "sticky_least_loaded"): {"concurrency": None},
    ("mixed_engines", "sticky_least_loaded"): {"concurrency": None},
    ("engine_lost", "sticky_least_loaded"): {"concurrency": 160},
    ("drain", "sticky_least_loaded"): {"concurrency": 160},
}
"""By trace and policy."""


def chosen(trace: str, policy: str) -> dict[str, Any]:
    """The changes to the policy's defaults on this trace."""
    return dict(CHOSEN.get((trace, policy), {}))
