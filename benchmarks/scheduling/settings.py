"""Settings of the opponents of `sticky`, for each trace, as they were chosen on the training seeds.

`sticky` has one setting for all traces. Its opponents have one for each trace, since their bound on the rollouts of
an engine (``concurrency``) fits one length of rollouts only. What is missing runs with the defaults of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHOSEN: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("paper", "round_robin"): {"concurrency": 160},
    ("paper", "least_requests"): {"concurrency": 100},
    ("paper", "sticky_least_loaded"): {"concurrency": 100},
    ("paper", "cache_aware"): {"absolute": 16, "concurrency": 100},
    ("paper", "cost_aware"): {"concurrency": 100, "overlap_weight": 2.0},
    ("paper", "margin"): {"concurrency": 100, "margin": 4},
    ("paper_tp4", "round_robin"): {"concurrency": 345},
    ("paper_tp4", "least_requests"): {"concurrency": 460},
    ("paper_tp4", "sticky_least_loaded"): {"concurrency": 460},
    ("paper_tp4", "cache_aware"): {"absolute": 16, "concurrency": 460},
    ("paper_tp4", "cost_aware"): {"concurrency": 460, "overlap_weight": 2.0},
    ("paper_tp4", "margin"): {"concurrency": 460, "margin": 8},
    ("mild", "round_robin"): {"concurrency": 128},
    ("mild", "least_requests"): {"concurrency": 160},
    ("mild", "sticky_least_loaded"): {"concurrency": 160},
    ("mild", "cache_aware"): {"absolute": 4, "concurrency": 160, "relative": 1.1},
    ("mild", "cost_aware"): {"concurrency": 144, "overlap_weight": 2.0},
    ("mild", "margin"): {"concurrency": 160, "margin": 64},
    ("mild", "program_aware"): {"interval_s": 60.0},
    ("brutal", "round_robin"): {"concurrency": 96},
    ("brutal", "least_requests"): {"concurrency": 80},
    ("brutal", "sticky_least_loaded"): {"concurrency": 64},
    ("brutal", "cache_aware"): {"concurrency": 96},
    ("brutal", "cost_aware"): {"concurrency": 80},
    ("brutal", "margin"): {"concurrency": 96},
    ("brutal", "program_aware"): {"acting_weight": 0.5, "interval_s": 1.0},
    ("agentic", "round_robin"): {"concurrency": 16},
    ("agentic", "least_requests"): {"concurrency": 18},
    ("agentic", "sticky_least_loaded"): {"concurrency": 19},
    ("agentic", "cache_aware"): {"absolute": 4, "concurrency": 17, "relative": 1.1},
    ("agentic", "cost_aware"): {"concurrency": 17, "overlap_weight": 2.0},
    ("agentic", "margin"): {"concurrency": 20, "margin": 16},
    ("agentic", "program_aware"): {"interval_s": 20.0},
    ("mixed_engines", "round_robin"): {"concurrency": 36},
    ("mixed_engines", "least_requests"): {"concurrency": 320},
    ("mixed_engines", "sticky_least_loaded"): {"concurrency": 56},
    ("mixed_engines", "cache_aware"): {"absolute": 4, "concurrency": 56, "relative": 1.1},
    ("mixed_engines", "cost_aware"): {"concurrency": 112, "overlap_weight": 0.5},
    ("mixed_engines", "margin"): {"concurrency": None, "margin": 4},
    ("mixed_engines", "program_aware"): {"acting_weight": 0.5, "interval_s": 1.0},
    ("engine_lost", "round_robin"): {"concurrency": 120},
    ("engine_lost", "least_requests"): {"concurrency": 110},
    ("engine_lost", "sticky_least_loaded"): {"concurrency": 100},
    ("engine_lost", "cache_aware"): {"concurrency": 100},
    ("engine_lost", "cost_aware"): {"concurrency": 100, "overlap_weight": 2.0},
    ("engine_lost", "margin"): {"concurrency": 100, "margin": 8},
    ("engine_lost", "program_aware"): {"interval_s": 60.0},
    ("drain", "round_robin"): {"concurrency": None},
    ("drain", "least_requests"): {"concurrency": None},
    ("drain", "sticky_least_loaded"): {"concurrency": 120},
    ("drain", "cache_aware"): {"concurrency": None},
    ("drain", "cost_aware"): {"concurrency": None},
    ("drain", "margin"): {"concurrency": None, "margin": 8},
    ("drain", "program_aware"): {"interval_s": 20.0},
    ("recorded", "round_robin"): {"concurrency": 96},
    ("recorded", "least_requests"): {"concurrency": 96},
    ("recorded", "sticky_least_loaded"): {"concurrency": 96},
    ("recorded", "cache_aware"): {"concurrency": 128},
    ("recorded", "cost_aware"): {"concurrency": 96, "overlap_weight": 2.0},
    ("recorded", "margin"): {"concurrency": 96, "margin": 16},
    ("recorded", "program_aware"): {"acting_weight": 0.5, "interval_s": 1.0},
}
"""By trace and policy: the fastest on three seeds at an eighth of the scale (docs/decisions/studies.md)."""


def chosen(trace: str, policy: str) -> dict[str, Any]:
    """The changes to the policy's defaults on this trace."""
    return dict(CHOSEN.get((trace, policy), {}))
