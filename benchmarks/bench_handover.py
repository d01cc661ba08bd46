"""What it costs that rollouts survive their generator, while nothing fails.

    agent-rl bench handover
    agent-rl bench handover --models quickstart --rounds 15 --seed 100
    agent-rl bench handover --quick

First, the production generator runs episodes that call tools, with and without sending its completed turns, in turn.
Generator, a stand-in that keeps the turns as the scheduler does, and an executor that answers at once share a process,
so its processor time counts all of them. Real tools cost time on both sides, which makes the share smaller.

Then one turn alone, of 25 tokens and of 2,500, in processor time: its completion, its message over a link in memory,
the keeping of it, and its writing to a file. From these follow the same overhead without the noise of rounds
(``survival_overhead_counted``), and the scheduler's work for a step of 16,384 rollouts of 10,000 tokens in four turns.
"""

from __future__ import annotations

import gc
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import structlog
import transformers
import trio

from actors.kv_scheduler.turn_log import TurnLog
from actors.testing import Stage
from agent_rl import messages
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import Policy, Sampling, ToolCallRecord, TurnsCompleted
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.scheduling.kept_turns import KeptTurns, size_of
from agent_rl.testing import environments, request
from benchmarks.reporting import print_figures, print_table
from benchmarks.rollout_loop import Sampled, generator, requests, sample
from benchmarks.rollout_models import larger_model, quickstart_model, save_writer
from transport import Delivery, MemoryNetwork, Node, Registry
from transport.codec import decode, encode
from transport.codec import size_of as frames_size

MODELS: dict[str, Callable[[], InitialiseModel]] = {"quickstart": quickstart_model, "larger": larger_model}
SUFFIX = {"quickstart": "", "larger": "_larger"}
THINKING, CALLING = 16.0, 0.6
"""Episodes of 2.2 turns of 25 tokens, as of ``agent-rl bench rollout``."""
TURNS = (25, 2500)
"""Tokens of the turns that are measured alone; a fifth of them is the tool's answer."""
STEP_ROLLOUTS, STEP_TURNS = 16_384, 4
"""A step of the paper: 512 problems, 32 samples each; rollouts of four turns of 2,500 tokens."""


@dataclass(kw_only=True)
class Options:
    """The options."""

    models: tuple[Literal["quickstart", "larger"], ...] = ("quickstart",)
    """The quickstart's has 0.3M parameters, the larger one 25M."""
    rounds: int = 15
    rollouts: int = 512
    """Episodes of a round."""
    threads: int = 1
    """Torch's threads."""
    turns: int = 2000
    """How often one turn is measured alone."""
    seed: int = 0
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""


@dataclass(frozen=True)
class Cost:
    """A token's share of the time of a round, in seconds."""

    processor: float
    clock: float


async def _round(stage: Stage, options: Options, number: int) -> tuple[Cost, Sampled]:
    gc.collect()
    began = time.process_time()
    sampled = await sample(stage, requests(options.rollouts, number))
    cost = Cost((time.process_time() - began) / sampled.tokens, sampled.seconds / sampled.tokens)
    for peer in stage.peers.values():
        peer.forget()
    return cost, sampled


async def compare(name: str, folder: Path, options: Options, figures: dict[str, float]) -> list[object]:
    """Rounds with and without, in turn; a row for the table. Adds ``survival_overhead`` and its parts."""
    model = folder / "writer"
    save_writer(model, MODELS[name](), thinking=THINKING, calling=CALLING)
    off = "actors.rollout_generator.settings.keep_turns=false"
    kept, sent = KeptTurns(1 << 30), 0

    def keep(message: Any) -> None:
        nonlocal sent
        if isinstance(message, TurnsCompleted):
            kept.add(message)
            sent += len(message.turns)

    ratios: list[tuple[float, float]] = []
    bare: list[float] = []
    turns: list[float] = []
    for part in ("with", "without"):
        (folder / part).mkdir()
    async with (
        generator(model, folder / "with", options.threads) as with_turns,
        generator(model, folder / "without", options.threads, off) as without,
    ):
        with_turns["kv_scheduler"].reply = keep
        for number in range(options.rounds + 1):
            costs: dict[int, Cost] = {}
            for stage in (with_turns, without) if number % 2 else (without, with_turns):
                costs[id(stage)], sampled = await _round(stage, options, options.seed + number)
                for rollout in sampled.trajectories if stage is with_turns else ():
                    kept.forget(rollout)
                turns.append(sampled.turns)
            if number == 0:  # warms both up
                sent = 0
                continue
            one, other = costs[id(with_turns)], costs[id(without)]
            bare.append(other.processor * sampled.tokens / options.rollouts)
            ratios.append((one.processor / other.processor - 1, one.clock / other.clock - 1))
    processor, clock = (sorted(ratio[column] for ratio in ratios) for column in (0, 1))
    suffix = SUFFIX[name]
    figures[f"survival_overhead{suffix}"] = statistics.median(processor)
    figures[f"survival_overhead_clock{suffix}"] = statistics.median(clock)
    sends = sent / options.rounds / options.rollouts
    figures[f"turns_a_processor_second{suffix}"] = sends / statistics.median(bare)
    medians = (100 * statistics.median(each) for each in (processor, clock))
    return [name, statistics.fmean(turns), sends, *medians, f"{100 * processor[0]:.1f} to {100 * processor[-1]:.1f}"]


def one_turn(tokens: int, options: Options, figures: dict[str, float]) -> list[object]:
    """What a turn of ``tokens`` costs alone; a row for the table."""
    chat = ChatFormat(build_tokenizer(), environments())
    rng = np.random.default_rng(options.seed)
    given = tokens // 5
    written = rng.integers(4, 50, tokens - given).astype(np.int32)
    logprobs = -rng.random(len(written), dtype=np.float32)
    policies = np.ones((len(written), 2), dtype=np.int32)
    policies[len(written) // 2 :, 1] = 2
    answer = chat.decode(rng.integers(4, 50, given - 1).tolist())
    record = ToolCallRecord(1, "python", "success", 0.1, 0.2, False, {"code": answer}, answer)
    registry, spent = Registry.of(messages), dict.fromkeys(("complete", "link", "decode", "keep", "file"), 0.0)
    kept, arrived = KeptTurns(1 << 40), []

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        spent[name] += time.process_time() - began
        return result

    episodes = [Episode(request(sampling=Sampling(1.0, 10 * tokens, 9)), chat) for _ in range(options.turns)]
    for episode in episodes:
        episode.wrote_text(written, logprobs, policies, stopped=True)
        episode.responded([answer], [record], Policy(1, 2))
    turns = timed("complete", lambda: [episode.complete(1.0) for episode in episodes])
    sent = [TurnsCompleted(f"s0-g{at:06d}/0/0", "rollout_generator.0", (turn,)) for at, turn in enumerate(turns)]
    frames = [[bytes(frame) for frame in encode(message)] for message in sent]
    arrived = timed("decode", lambda: [decode(each, registry) for each in frames])
    timed("keep", lambda: list(map(kept.add, arrived)))
    timed("link", lambda: trio.run(_over_link, sent, registry))
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as folder:
        turn_log = TurnLog(Path(folder), 1 << 40, structlog.get_logger())
        turn_log.begin()
        timed("file", lambda: turn_log.write(sent))
        turn_log.close()
    turn, size = turns[0], frames_size(frames[0])
    micro = {name: 1e6 * seconds / options.turns for name, seconds in spent.items()}
    for name, value in micro.items():
        figures[f"{name}_us_{tokens}"] = value
    figures[f"bytes_{tokens}"] = size
    return [tokens, *micro.values(), size, size_of(turn)]


async def _over_link(sent: Sequence[TurnsCompleted], registry: Registry) -> None:
    """Encode, send, decode, dispatch and acknowledge."""
    network = MemoryNetwork()
    one, other = (Node(name, network, registry, incarnation=1) for name in ("one", "other"))
    link = one.push("kept", ["other"], window=256)

    async def handled(_: Delivery) -> None:
        pass

    async with trio.open_nursery() as nursery:
        for node in (one, other):
            await nursery.start(node.run, handled)
        for message in sent:
            await link.send(message)
        await link.drained()
        nursery.cancel_scope.cancel()


def main(options: Options) -> int:
    """Measure, and print tables and figures."""
    if options.quick:
        options = replace(options, models=("quickstart",), rounds=1, rollouts=32, turns=10)
    transformers.logging.disable_progress_bar()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    figures: dict[str, float] = {}
    rows = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(trio.run(compare, name, Path(folder), options, figures))
    header = ["model", "turns", "turns sent a rollout", "processor %", "clock %", "processor % of rounds"]
    print_table("What keeping turns adds to a token", header, rows)
    rows = [one_turn(tokens, options, figures) for tokens in TURNS]
    header = [
        "tokens of a turn",
        "complete us",
        "link us",
        "of it decode us",
        "keep us",
        "file us",
        "bytes sent",
        "bytes kept",
    ]
    print_table("One turn", header, rows)
    cost = sum(figures[f"{part}_us_{TURNS[0]}"] for part in ("complete", "link", "keep", "file"))
    for suffix in (SUFFIX[name] for name in options.models):
        figures[f"survival_overhead_counted{suffix}"] = 1e-6 * cost * figures.pop(f"turns_a_processor_second{suffix}")
    turns = STEP_ROLLOUTS * (STEP_TURNS - 1)
    figures["step_scheduler_s"] = (
        1e-6 * turns * sum(figures[f"{part}_us_{TURNS[1]}"] for part in ("link", "keep", "file"))
    )
    figures["step_gib"] = turns * figures[f"bytes_{TURNS[1]}"] / 2**30
    print_figures({name: round(value, 4) for name, value in figures.items()})
    return 0
