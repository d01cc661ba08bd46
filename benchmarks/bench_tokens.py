"""Supervised steps that teach a pretrained model to call a tool: with tags, with tags that have rows, and with fences.

    agent-rl bench tokens --model models/coder

``tags`` are the template's <tool_call> and </tool_call>, which some models never learned (`agent-rl check` names
them); ``spelt`` gives them the mean of the rows of their spelling first (`agent-rl model spell`); ``fences`` is a chat
format in plain text. Each is trained on the same first turns of arithmetic, and then asked other problems, greedily and
sampled.
``well_formed``: one call that the format reads; ``right``: with the code of the demonstration.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import trio

from actors.engines.torch.engine import TorchEngine
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.plugins import resolve
from agent_rl.config.topology import SftStage
from agent_rl.learning.spelling import spelt_rows
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import PolicyVersion
from agent_rl.rollout.fenced import FencedFormat
from agent_rl.rollout.parsing import ParsedCall, parse_calls
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.supervised import sequences
from agent_rl_contract.engine import generate_all, turn
from benchmarks.quickstart import TASK
from benchmarks.reporting import print_figures, print_table

TAGS = ("<tool_call>", "</tool_call>")


@dataclass
class Options:
    """The options."""

    model: Path
    """The directory of a pretrained model whose template has the tags."""
    _: KW_ONLY
    steps: int = 25
    batch: int = 8
    rate: float = 1e-5
    problems: int = 60
    tokens: int = 80
    """The longest turn."""
    threads: int = 2


def main(options: Options) -> int:
    """Train and ask; returns the exit code."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        spelt = Path(folder, "spelt")
        spelt_rows(options.model, spelt, TAGS)
        for name, model, format_of in (
            ("tags", options.model, ChatFormat),
            ("spelt", spelt, ChatFormat),
            ("fences", options.model, FencedFormat),
        ):
            for way, shares in measured(options, model, format_of, Path(folder, name)).items():
                figures |= {f"tokens.{name}_{way}_{what}": share for what, share in shares.items()}
    print_table("first turns", ("figure", "share"), [(name, f"{value:.0%}") for name, value in figures.items()])
    print_figures(figures)
    return 0


def first_turns(seed: int) -> Iterator[list[dict[str, str]]]:
    """A question and the call that answers it, again and again."""
    task = resolve("environment", TASK["class"])
    for shown in task(seed=seed, base=Path()).problems().demonstrations(random.Random(seed)):
        yield [dict(message) for message in shown.messages[:2]]


def measured(options: Options, model: Path, format_of: Any, saved: Path) -> dict[str, dict[str, float]]:
    """The shares of well-formed and of right turns, greedy and sampled."""
    trainer = Trainer(
        model, dtype="bfloat16", device="cpu", algorithm=Algorithm(), threads=options.threads, seed=0, mismatch_tokens=0
    )
    chat = format_of(trainer.tokenizer, compact=True)
    stage = SftStage(kind="sft", steps=options.steps, learning_rate=options.rate, warmup_steps=3)
    shown = first_turns(0)
    for step in range(options.steps):
        batch = [pair for turns in islice(shown, options.batch) for pair in sequences(chat, turns)]
        trainer.sft_step(batch, stage, step)
    trainer.model.save(saved, dict(trainer.model.served()))
    trainer.tokenizer.save_pretrained(saved)
    held_out = list(islice(first_turns(1), options.problems))
    del trainer
    torch.set_num_threads(options.threads)

    async def asked() -> dict[str, dict[str, float]]:
        engine = TorchEngine(
            saved,
            max_rollouts=options.problems,
            kv_tokens=options.problems * 512,
            device="cpu",
            dtype="bfloat16",
            initial_policy=PolicyVersion(0, 0),
        )
        found = {}
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            for way, temperature in (("greedy", 0.0), ("sampled", 1.0)):
                requests = [
                    turn(
                        f"{way}{at}",
                        chat.encode(chat.render(turns[:1], generate=True)),
                        options.tokens,
                        temperature=temperature,
                        seed=at,
                        stop_tokens=chat.stop_tokens,
                    )
                    for at, turns in enumerate(held_out)
                ]
                texts = [chat.decode(result.tokens.tolist()) for result in await generate_all(engine, requests)]
                found[way] = shares(chat, texts, held_out)
            nursery.cancel_scope.cancel()
        return found

    return trio.run(asked)


def shares(chat: ChatFormat, texts: list[str], shown: list[list[dict[str, str]]]) -> dict[str, float]:
    """Of well-formed and of right turns."""
    well, right = 0, 0
    for text, turns in zip(texts, shown, strict=True):
        calls, wanted = chat.sound_calls(text), parse_calls(turns[1]["content"])
        if len(calls) == 1 and isinstance(calls[0], ParsedCall) and isinstance(wanted[0], ParsedCall):
            well += 1
            right += str(calls[0].arguments.get("code", "")).strip() == str(wanted[0].arguments["code"]).strip()
    return {"well_formed": well / len(texts), "right": right / len(texts)}
