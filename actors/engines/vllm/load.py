"""Live figures of a vLLM engine, from the statistics of its steps."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from actors.engines.base import EngineFigures


class VllmLoad:
    """The load after vLLM's last step. Written in the asyncio thread, read in any."""

    def __init__(self, kv_tokens: int, max_rollouts: int) -> None:
        self._figures = EngineFigures(kv_tokens_total=kv_tokens, max_rollouts=max_rollouts)
        self._stepping_since: float | None = None
        """When a step was last seen that left more to do. The engine is busy between such steps."""

    def has_room(self, kv_tokens: int) -> None:
        """Set the real capacity of the cache, in tokens."""
        self._figures = replace(self._figures, kv_tokens_total=kv_tokens)

    def with_unseen(self, in_flight: int) -> EngineFigures:
        """The figures with ``in_flight`` requests. Requests that vLLM has not seen yet count as waiting."""
        figures = self._figures
        unseen = in_flight - figures.running - figures.waiting
        return replace(figures, waiting=figures.waiting + unseen) if unseen > 0 else figures

    def observe(self, scheduler: Any, iteration: Any) -> None:
        """Take in the statistics of one of vLLM's steps."""
        figures = self._figures
        if scheduler is not None:
            figures = replace(
                figures,
                running=scheduler.num_running_reqs,
                waiting=scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs,
                kv_tokens_used=round(scheduler.kv_cache_usage * figures.kv_tokens_total),
                cached_tokens=figures.cached_tokens + scheduler.prefix_cache_stats.hits,
            )
        if iteration is not None:
            figures = replace(
                figures,
                generated_tokens=figures.generated_tokens + iteration.num_generation_tokens,
                prefilled_tokens=figures.prefilled_tokens + iteration.num_prompt_tokens,
                preempted=figures.preempted + iteration.num_preempted_reqs,
            )
        now = time.perf_counter()
        if self._stepping_since is not None:
            figures = replace(figures, busy_seconds=figures.busy_seconds + now - self._stepping_since)
        self._stepping_since = now if figures.running or figures.waiting else None
        self._figures = figures

    def logger(self) -> Any:
        """A stat logger class for vLLM, instead of its Prometheus exporter, which measures every token."""
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        observe = self.observe

        class Statistics(PrometheusStatLogger):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
                del vllm_config, engine_indexes

            def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
                observe(scheduler_stats, iteration_stats)

            def log_engine_initialized(self) -> None:
                """No effect."""

            def record_sleep_state(self, *_: Any, **__: Any) -> None:
                """No effect: the engine never sleeps."""

        return Statistics
