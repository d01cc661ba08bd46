"""Live figures of a vLLM engine, from the statistics of its steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from actors.engines.base import EngineFigures, PassTable


class VllmLoad:
    """The load after vLLM's last step. Written in the asyncio thread, read in any.

    Tokens come in bundles (`actors.engines.vllm.scheduler`), so that the size of a pass is that of the requests that
    ran; what it prefilled is said with a bundle, and mostly of an earlier pass.
    """

    def __init__(self, kv_tokens: int, max_rollouts: int) -> None:
        self._figures = EngineFigures(kv_tokens_total=kv_tokens, max_rollouts=max_rollouts)
        self._stepping_since: float | None = None
        """When a step was last seen that left more to do. The engine is busy between such steps."""
        self._passes = PassTable()
        self._processor: Callable[[], float] = float
        self._processor_before = 0.0
        self._writing = threading.Lock()

    def computes_in(self, processor: Callable[[], float]) -> None:
        """``processor()`` gives the processor seconds so far of the processes that compute."""
        self._processor = processor

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
        with self._writing:
            self._figures = self._observed(scheduler, iteration)

    def _observed(self, scheduler: Any, iteration: Any) -> EngineFigures:
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
                steps=figures.steps + 1,
                generated_tokens=figures.generated_tokens + iteration.num_generation_tokens,
                prefilled_tokens=figures.prefilled_tokens + iteration.prompt_token_stats.computed,
                preempted=figures.preempted + iteration.num_preempted_reqs,
            )
        now, processor = time.perf_counter(), self._processor()
        if self._stepping_since is not None:
            seconds, cpu_seconds = now - self._stepping_since, processor - self._processor_before
            if iteration is not None:
                written = figures.running + len(iteration.finished_requests)
                prefilled, context = iteration.prompt_token_stats.computed, figures.kv_tokens_used
                self._passes.add(seconds, cpu_seconds, written=written, prefilled=prefilled, context=context)
            figures = replace(figures, busy_seconds=figures.busy_seconds + seconds, passes=self._passes.table)
        self._stepping_since = now if figures.running or figures.waiting else None
        self._processor_before = processor
        return figures

    def paused(self) -> None:
        """The engine falls asleep or wakes: what is between two steps is no work."""
        with self._writing:
            self._stepping_since = None

    def updated(self) -> None:
        """New weights were loaded between two steps, which is no work of the engine: the next step begins now."""
        with self._writing:
            if self._stepping_since is not None:
                self._stepping_since, self._processor_before = time.perf_counter(), self._processor()

    def logger(self) -> Any:
        """A stat logger class for vLLM, instead of its Prometheus exporter, which measures every token."""
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        observe, paused = self.observe, self.paused

        class Statistics(PrometheusStatLogger):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
                del vllm_config, engine_indexes

            def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
                observe(scheduler_stats, iteration_stats)

            def log_engine_initialized(self) -> None:
                """No effect."""

            def record_sleep_state(self, *_: Any, **__: Any) -> None:
                """A sleep is no time of work."""
                paused()

        return Statistics
