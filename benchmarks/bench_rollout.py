"""Rollouts: the embedded engine beside Hugging Face generate, and the agent loop beside the bare engine.

    agent-rl bench rollout
    agent-rl bench rollout --quick

First, tokens a second of the engine and of `model.generate`, on the same prompts with the same numbers of response
tokens, sampling and threads. `generate` runs in batches of each of BATCHES prompts, and its best batch size counts.
Then the production generator runs episodes of one turn, and episodes that call tools which answer at once, beside its
engine alone on the same token sequences. Last, the cost of sending each rollout to an OpenTelemetry collector.

Rounds alternate between the sides, ratios are taken within a round, and figures are medians over rounds. Each round
draws new prompts and lengths.
"""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import structlog
import transformers
import trio

from agent_rl.learning.tiny import initialise_model
from benchmarks.reporting import print_figures, print_table
from benchmarks.rollout_models import Lengths, quickstart_model, save_writer, workload
from benchmarks.rollout_sides import (
    AT_ONCE,
    PaddedGenerate,
    engine_seconds,
    generator,
    replay,
    requests,
    sample,
    torch_engine,
)

PROMPTS = 64
BATCHES = (64, 16)
"""Batch sizes of generate."""
EPISODES = {"generator": (60.0, 0.0), "agent_loop": (16.0, 0.6)}
"""Mean letters of a turn, and the probability of a tool call: without tools, and with (2.2 turns of 25 tokens)."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    rounds: int = 5
    threads: int = 1
    """Torch's threads, for both sides."""
    rollouts: int = 768
    """Episodes of a round."""
    seed: int = 0
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""

    @property
    def scale(self) -> float:
        """By what response lengths are multiplied."""
        return 0.1 if self.quick else 1.0


Figures = defaultdict[str, list[float]]
"""The figures by name, with a value for each round."""


async def compare_engines(model: Path, lengths: Lengths, options: Options, figures: Figures) -> list[object]:
    """Engine beside generate; a row for the table. Adds ``engine_ratio_to_generate`` and both rates."""
    ending = "" if lengths == "log-normal" else f"_{lengths}"
    engine = torch_engine(model, PROMPTS, options.threads)
    other = await trio.to_thread.run_sync(PaddedGenerate, model, options.threads)
    rates: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    own: list[float] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        warm = workload(PROMPTS, lengths, options.seed, scale=0.1 * options.scale)
        await engine_seconds(engine, warm, 0)
        await trio.to_thread.run_sync(other.seconds, warm, PROMPTS, 0)
        for number in range(1, options.rounds + 1):
            work = workload(PROMPTS, lengths, options.seed + number, scale=options.scale)
            own.append(work.tokens / await engine_seconds(engine, work, number))
            for batch in BATCHES:
                seconds = await trio.to_thread.run_sync(other.seconds, work, batch, number)
                rates[batch].append(work.tokens / seconds)
        nursery.cancel_scope.cancel()
    medians = {batch: statistics.median(rates[batch]) for batch in BATCHES}
    best = rates[max(medians, key=medians.__getitem__)]
    ratios = [ours / theirs for ours, theirs in zip(own, best, strict=True)]
    figures[f"engine_ratio_to_generate{ending}"] = ratios
    figures[f"engine_tokens_per_s{ending}"] = own
    figures[f"generate_tokens_per_s{ending}"] = best
    return [lengths, statistics.median(own), *medians.values(), statistics.median(ratios)]


async def compare_loops(kind: str, folder: Path, options: Options, figures: Figures) -> list[object]:
    """Generator beside its engine alone; a row for the table. Adds ``KIND_share_of_engine``."""
    model = folder / f"writer-{kind}"
    thinking, calling = EPISODES[kind]
    save_writer(model, quickstart_model(), thinking=thinking, calling=calling)
    engine = torch_engine(model, AT_ONCE, options.threads)
    counts, loops, alones = [], [], []
    async with generator(model, folder, options.threads) as (stage, _), trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for number in range(options.rounds + 1):
            sampled = await sample(stage, requests(options.rollouts, number))
            seconds, tokens = await replay(engine, sampled, model)
            if tokens < 0.99 * sampled.tokens:
                raise AssertionError(f"the engine alone wrote {tokens} of {sampled.tokens} tokens")
            if number == 0:  # warms both up
                continue
            loops.append(sampled.tokens / sampled.seconds)
            alones.append(tokens / seconds)
            counts.append(sampled.turns)
        nursery.cancel_scope.cancel()
    shares = [loop / alone for loop, alone in zip(loops, alones, strict=True)]
    figures[f"{kind}_share_of_engine"] = shares
    return [kind, statistics.fmean(counts), *map(statistics.median, (loops, alones, shares))]


async def cost_of_traces(folder: Path, options: Options, figures: Figures) -> None:
    """Adds ``otel_cost``: the share of the generator's processor time that traces take, with a collector that answers.

    Episodes with tools of the loops above.
    """
    with collecting() as (url, collected):
        async with generator(folder / "writer-agent_loop", folder, options.threads, url) as (stage, actor):
            tracing = actor.tracing
            assert tracing is not None
            for number in range(options.rounds + 1):
                began, before = time.process_time(), tracing.cpu_seconds
                await sample(stage, requests(options.rollouts, number))
                if number:  # the first round imports and connects
                    figures["otel_cost"].append((tracing.cpu_seconds - before) / (time.process_time() - began))
        rollouts = (options.rounds + 1) * options.rollouts
        if tracing.dropped or collected() < rollouts:
            raise AssertionError(f"{collected():,} of {rollouts:,} traces arrived, {tracing.dropped:,} were dropped")


@contextmanager
def collecting() -> Iterator[tuple[str, Callable[[], int]]]:
    """A collector in a process of its own: its address, and the number of root spans that it got."""
    command = [sys.executable, "-m", "benchmarks.collector"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()

        def collected() -> int:
            with urllib.request.urlopen(url) as answer:  # noqa: S310 - its own address
                return int(answer.read())

        try:
            yield url, collected
        finally:
            process.kill()


async def measure(folder: Path, options: Options) -> Figures:
    """All comparisons."""
    figures: Figures = defaultdict(list)
    model = folder / "model"
    await trio.to_thread.run_sync(partial(initialise_model, quickstart_model(), model, seed=options.seed))
    rows = [await compare_engines(model, lengths, options, figures) for lengths in get_args(Lengths)]
    header = ["response lengths", "engine", *(f"generate, batch {batch}" for batch in BATCHES), "engine / best"]
    print_table(f"tokens a second, {PROMPTS} prompts", header, rows)
    rows = [await compare_loops(kind, folder, options, figures) for kind in EPISODES]
    await cost_of_traces(folder, options, figures)
    header = ["episodes", "turns", "generator", "engine alone", "generator / engine"]
    print_table(f"tokens a second, {AT_ONCE} rollouts at once", header, rows)
    return figures


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    if options.quick:
        options = replace(options, rounds=1, rollouts=32)
    transformers.logging.disable_progress_bar()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        figures = trio.run(measure, Path(folder), options)
    print_figures({name: round(statistics.median(values), 4) for name, values in figures.items()})
    return 0
