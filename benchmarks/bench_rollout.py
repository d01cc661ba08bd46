"""Rollouts: the embedded engine beside Hugging Face generate, and the agent loop beside the bare engine.

    agent-rl bench rollout
    agent-rl bench rollout --models quickstart --rounds 7 --seed 100
    agent-rl bench rollout --quick
    agent-rl bench rollout --engine vllm --rounds 7

First, tokens a second of the engine and of `model.generate`, on the same prompts with the same numbers of response
tokens, sampling and threads. `generate` runs in batches of each of --batches prompts, and its best counts. Then the
production generator runs episodes of one turn, and episodes that call tools which answer at once, beside its engine
alone on the same token sequences.

With --engine vllm (in an environment that has it): the generator over vLLM on episodes of one turn, beside vLLM's own
`LLM.generate`, in a process of its own, on the same prompts with the same numbers of response tokens.

Rounds alternate between the sides, ratios are taken within a round, and figures are medians over rounds. Each round
draws new prompts and lengths.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import structlog
import transformers
import trio

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table
from benchmarks.rollout_models import Lengths, larger_model, quickstart_model, save_writer, workload
from benchmarks.rollout_sides import (
    AT_ONCE,
    PaddedGenerate,
    engine_seconds,
    generator,
    replay,
    requests,
    sample,
    torch_engine,
    turns,
)
from benchmarks.tool_processes import tree_seconds

MODELS = {"quickstart": quickstart_model, "larger": larger_model}
SUFFIX = {"quickstart": "", "larger": "_larger"}
EPISODES = {"generator": (60.0, 0.0), "agent_loop": (16.0, 0.6)}
"""Mean letters of a turn, and the probability of a tool call: without tools, and with (2.2 turns of 25 tokens)."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    engine: Literal["torch", "vllm"] = "torch"
    """Engine of the generator."""
    models: tuple[Literal["quickstart", "larger"], ...] = ("quickstart", "larger")
    """The quickstart's has 0.3M parameters, the larger one 25M."""
    prompts: int = 64
    batches: tuple[int, ...] = (64, 16)
    """Batch sizes of generate; the best counts."""
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


class Figures(defaultdict[str, list[float]]):
    """The figures by name, with a value for each round."""

    def __init__(self) -> None:
        super().__init__(list)

    def median(self, name: str) -> float:
        """The median over rounds."""
        return statistics.median(self[name])


async def compare_engines(model: Path, lengths: Lengths, options: Options, figures: Figures, name: str) -> list[object]:
    """Engine beside generate; a row for the table. Adds ``engine_ratio_to_generate`` and rates, suffix ``name``."""
    engine = torch_engine(model, options.prompts, options.threads)
    other = await trio.to_thread.run_sync(PaddedGenerate, model, options.threads)
    rates: dict[int, list[float]] = {batch: [] for batch in options.batches}
    own: list[float] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        warm = workload(options.prompts, lengths, options.seed, scale=0.1 * options.scale)
        await engine_seconds(engine, warm, 0)
        await trio.to_thread.run_sync(other.seconds, warm, options.prompts, 0)
        for number in range(1, options.rounds + 1):
            work = workload(options.prompts, lengths, options.seed + number, scale=options.scale)
            own.append(work.tokens / await engine_seconds(engine, work, number))
            for batch in options.batches:
                seconds = await trio.to_thread.run_sync(other.seconds, work, batch, number)
                rates[batch].append(work.tokens / seconds)
        nursery.cancel_scope.cancel()
    best = max(rates, key=lambda batch: statistics.median(rates[batch]))
    for number, rate in enumerate(own):
        figures[f"engine_ratio_to_generate{name}"].append(rate / rates[best][number])
        figures[f"engine_tokens_per_s{name}"].append(rate)
        figures[f"generate_tokens_per_s{name}"].append(rates[best][number])
    return [
        lengths,
        statistics.median(own),
        *(statistics.median(rates[batch]) for batch in options.batches),
        figures.median(f"engine_ratio_to_generate{name}"),
    ]


async def compare_loops(
    spec: InitialiseModel, kind: str, folder: Path, options: Options, figures: Figures, name: str
) -> list[object]:
    """Generator beside its engine alone; a row for the table. Adds ``KIND_share_of_engine``, with suffix ``name``."""
    model = folder / f"writer-{kind}"
    thinking, calling = EPISODES[kind]
    save_writer(model, spec, thinking=thinking, calling=calling)
    engine = torch_engine(model, AT_ONCE, options.threads)
    counts: list[float] = []
    agreeing: list[float] = []
    async with generator(model, folder, options.threads) as stage, trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for number in range(options.rounds + 1):
            sampled = await sample(stage, requests(options.rollouts, number))
            seconds, tokens = await replay(engine, sampled, model)
            if number == 0:  # warms both up
                continue
            loop, alone = sampled.tokens / sampled.seconds, tokens / seconds
            figures[f"{kind}_share_of_engine{name}"].append(loop / alone)
            figures[f"{kind}_tokens_per_s{name}"].append(loop)
            figures[f"{kind}_alone{name}"].append(alone)
            counts.append(sampled.turns)
            agreeing.append(tokens / sampled.tokens)
        nursery.cancel_scope.cancel()
    if min(agreeing) < 0.99:
        raise AssertionError(f"the engine alone wrote {min(agreeing):.3f} of the tokens it was to write again")
    return [
        "one turn" if calling == 0 else "with tools",
        statistics.fmean(counts),
        figures.median(f"{kind}_tokens_per_s{name}"),
        figures.median(f"{kind}_alone{name}"),
        figures.median(f"{kind}_share_of_engine{name}"),
    ]


async def compare_vllm(spec: InitialiseModel, folder: Path, options: Options, figures: Figures) -> None:
    """Generator over vLLM beside bare vLLM. Adds ``generator_over_bare_vllm``. Raises EngineError without vLLM."""
    from benchmarks.rollout_vllm import ENGINE, bare_vllm

    model = folder / "writer"
    thinking, calling = EPISODES["generator"]
    save_writer(model, spec, thinking=thinking, calling=calling)
    chosen = f"actors.rollout_generator.settings.engine={ENGINE}"
    async with generator(model, folder, options.threads, chosen) as stage, bare_vllm(model) as bare:
        for number in range(options.rounds + 1):
            began = tree_seconds(os.getpid(), without=bare.pid)
            sampled = await sample(stage, requests(options.rollouts, number))
            loop_cpu = tree_seconds(os.getpid(), without=bare.pid) - began
            written = [turn for made in sampled.trajectories.values() for turn in turns(made)]
            prompts, lengths = [tokens for tokens, _ in written], [count for _, count in written]
            began = tree_seconds(bare.pid)
            seconds = await bare.seconds(prompts, lengths, number)
            bare_cpu = tree_seconds(bare.pid) - began
            if number == 0:  # warms both up
                continue
            loop, alone = sampled.tokens / sampled.seconds, sampled.tokens / seconds
            figures["generator_over_bare_vllm"].append(loop / alone)
            figures["generator_tokens_per_s_vllm"].append(loop)
            figures["bare_vllm_tokens_per_s"].append(alone)
            figures["generator_cpu_us_per_token_vllm"].append(1e6 * loop_cpu / sampled.tokens)
            figures["bare_vllm_cpu_us_per_token"].append(1e6 * bare_cpu / sampled.tokens)
            figures["generator_over_bare_vllm_cpu"].append(bare_cpu / loop_cpu)
    wanted = (
        *("generator_tokens_per_s_vllm", "bare_vllm_tokens_per_s", "generator_over_bare_vllm"),
        *("generator_cpu_us_per_token_vllm", "bare_vllm_cpu_us_per_token", "generator_over_bare_vllm_cpu"),
    )
    header = ["round", "generator over vLLM", "bare vLLM", "generator / bare"]
    header += ["processor us a token", "bare vLLM's", "bare / generator"]
    rows = [[number + 1, *(figures[name][number] for name in wanted)] for number in range(options.rounds)]
    title = f"tokens a second and processor time, {options.rollouts} rollouts a round, {AT_ONCE} at once"
    print_table(title, header, rows)


async def measure(name: str, spec: InitialiseModel, folder: Path, options: Options, figures: Figures) -> None:
    """All comparisons of one model."""
    suffix = SUFFIX[name]
    model = folder / "model"
    await trio.to_thread.run_sync(partial(initialise_model, spec, model, seed=options.seed))
    kinds: tuple[Lengths, ...] = get_args(Lengths) if name == "quickstart" else ("log-normal",)
    rows = []
    for lengths in kinds:
        ending = suffix if lengths == "log-normal" else f"_{lengths}{suffix}"
        rows.append(await compare_engines(model, lengths, options, figures, ending))
    header = ["response lengths", "engine", *(f"generate, batch {batch}" for batch in options.batches), "engine / best"]
    print_table(f"{name}: tokens a second, {options.prompts} prompts", header, rows)
    rows = [await compare_loops(spec, kind, folder, options, figures, suffix) for kind in EPISODES]
    header = ["episodes", "turns", "generator", "engine alone", "generator / engine"]
    print_table(f"{name}: tokens a second, {AT_ONCE} rollouts at once", header, rows)


def against_vllm(options: Options, figures: Figures) -> int:
    """The comparison with vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise WrongOptions("vLLM is not installed: `make test-vllm` builds .venv-vllm with it")
    with tempfile.TemporaryDirectory() as folder:
        trio.run(compare_vllm, quickstart_model(), Path(folder), options, figures)
    print_figures({name: round(figures.median(name), 4) for name in figures})
    return 0


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    if options.quick:
        options = replace(options, models=("quickstart",), prompts=8, batches=(8,), rounds=1, rollouts=32)
    transformers.logging.disable_progress_bar()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    figures = Figures()
    if options.engine == "vllm":
        return against_vllm(options, figures)
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(measure, name, MODELS[name](), Path(folder), options, figures)
    wanted = ("_share_of_engine", "engine_", "generate_")
    print_figures({name: round(figures.median(name), 4) for name in figures if any(w in name for w in wanted)})
    return 0
