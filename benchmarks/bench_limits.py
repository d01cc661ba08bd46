"""The share of the machine that a model's prefill, decode and update reach, beside the bound by products and memory.

    agent-rl bench limits
    agent-rl bench limits --model DIR --compute float32 --threads 2
    agent-rl bench limits --size 1.7b --device cuda
    agent-rl bench limits --model DIR --peers transformers=.venv-trl/bin/python llama.cpp=PYTHON=FILE.gguf
    agent-rl bench limits --quick

The model is a directory, or fresh weights in the shapes of SmolLM2, which take as long. On a GPU weights are kept in
bfloat16, and the product is 8,192 rows x 4,096 x 4,096.
The bound of a piece of work is the greater of two times: its products at the rate that a linear layer's product reaches
on this machine in the same type (2,048 and 128 rows x 576 x 1,536, the better one), and the bytes of weights and KV
cache that it must read at the rate that a large tensor is read. A share is the bound over the time taken. An update
counts three products for each of the forward pass; attention's products are counted, norms, samples, losses and the
optimizer are not.

Engine and learner are measured in a process each, on processors of their own: alone, then side by side. Rounds
alternate, and a figure is the median; `_low` and `_high` are the least and the greatest. --peers are other engines
(`peer_engines.py`), of which each figure is the best of two; `over_NAME_...` is ours over theirs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from actors.engines.base import TurnRequest
from actors.engines.torch.decode import Decoder
from actors.engines.torch.model import CausalModel
from actors.engines.torch.sequences import SequenceTurn
from agent_rl.config.topology import SftStage
from agent_rl.learning import rates
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import PolicyVersion
from agent_rl.models.model_files import ModelFiles
from agent_rl.models.shapes import Shape
from agent_rl_contract.builders import algorithm
from benchmarks.command import Failure, Hidden
from benchmarks.reporting import print_figures, print_table
from benchmarks.rollout_models import Size, fresh_model

BATCHES = (1, 16, 64, 128)
PEER_BATCHES = (1, 64)
"""Of other engines: the slowest compute the prompts of larger ones for minutes."""
PROMPTS, PROMPT, WRITTEN = 16, 256, 24
"""Prompts of the prefill, tokens of a prompt, and tokens that each sequence writes while decoding is measured."""
UPDATE_ROWS = 2048
SECONDS = 1800.0
"""How long a process that measures one side may take."""


@dataclass(frozen=True)
class Setting:
    """What both sides are measured on."""

    model: Path
    device: str
    compute: Literal["auto", "float32", "bfloat16"]
    threads: int
    rounds: int
    quick: bool

    @property
    def dtype(self) -> rates.Type:
        """The type that weights are kept in."""
        return "float32" if self.device == "cpu" else "bfloat16"


@dataclass(frozen=True)
class Work:
    """Floating-point operations, and bytes that must be read."""

    flops: float
    read: float = 0.0

    def bound(self, rate: float, memory: float) -> float:
        """Seconds at the rates of the machine."""
        return max(self.flops / rate, self.read / memory)


def layers(shape: Shape) -> int:
    """Weights of all linear layers but the output layer."""
    small = 2 * shape.hidden + 2 * shape.head_dim * shape.normed_heads + (shape.queries + 2 * shape.keys) * shape.biased
    return shape.layers * (shape.layer_weights - small)


def attention(shape: Shape, tokens: int, context: float) -> float:
    """Operations of attention of so many tokens that see ``context`` tokens each on average."""
    return 4.0 * shape.layers * shape.queries * tokens * context


def prefill(shape: Shape, prompts: int) -> Work:
    """Prompts of `PROMPT` tokens; the output layer for the last token of each."""
    tokens = prompts * PROMPT
    flops = 2.0 * (layers(shape) * tokens + shape.embedding * prompts) + attention(shape, tokens, PROMPT / 2)
    return Work(flops)


def decode(shape: Shape, rows: int, width: int) -> Work:
    """A token of each row behind `PROMPT` and half of `WRITTEN` tokens."""
    context, weights = PROMPT + WRITTEN / 2, layers(shape) + shape.embedding
    return Work(
        2.0 * weights * rows + attention(shape, rows, context),
        width * weights + rows * context * shape.kv_bytes(width),
    )


def update(shape: Shape, lengths: Sequence[int]) -> Work:
    """Forward and backward passes over sequences all of whose tokens are trained."""
    tokens = sum(lengths)
    seen = sum(attention(shape, length, length / 2) for length in lengths)
    return Work(3.0 * (2.0 * (layers(shape) + shape.embedding) * tokens + seen))


class Engine:
    """The torch engine's decoder, without its thread."""

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.threads)
        device = torch.device(setting.device)
        self.model = CausalModel(setting.model, dtype=setting.dtype, device=device, compute=setting.compute)
        self.type = self.model.compute.type
        self._count = 0

    def _decoder(self, rows: int) -> Decoder:
        return Decoder(
            self.model, max_rollouts=rows, kv_tokens=None, kv_on_update="recompute", policy=PolicyVersion(0, 0)
        )

    def seconds(self, rows: int, *, equal: bool) -> tuple[float, float]:
        """Of the prefill of prompts, different or ``equal``, and of a decoding step, the median."""
        rng = np.random.default_rng(self._count)
        self._count += 1
        with torch.inference_mode():
            decoder = self._decoder(rows)
            prompts = rng.integers(100, self.model.vocabulary - 1, (1 if equal else rows, PROMPT))
            for number in range(rows):
                tokens = prompts[0 if equal else number]
                request = TurnRequest(
                    rollout=str(number),
                    tokens=tokens.tolist(),
                    max_tokens=WRITTEN + 1,
                    temperature=1.0,
                    seed=number,
                    stop_tokens=frozenset(),
                )
                decoder.submit(SequenceTurn(request, number, tokens))
            joining = timed(decoder.step)
            while decoder.prefilled_tokens < len(prompts) * PROMPT:
                joining += timed(decoder.step)
            steps = []
            while decoder.has_work:
                steps.append(timed(decoder.step))
        return joining, statistics.median(steps[: WRITTEN // 2])


class Learner:
    """The trainer's supervised step on packed sequences, all of whose tokens are trained."""

    def __init__(self, setting: Setting) -> None:
        self._trainer = Trainer(
            setting.model,
            dtype=setting.dtype,
            compute=setting.compute,
            device=setting.device,
            algorithm=algorithm().model_copy(update={"microbatch_tokens": UPDATE_ROWS}),
            threads=setting.threads,
            seed=0,
            mismatch_tokens=0,
        )
        self.type = self._trainer.model.compute.type
        self._vocabulary = self._trainer.model.module.config.vocab_size
        self._stage = SftStage(kind="sft", steps=1000, batch=8, warmup_steps=0, learning_rate=1e-6)
        self._steps = 0

    def seconds(self, lengths: Sequence[int]) -> float:
        """Of one update, the optimizer included."""
        rng = np.random.default_rng(self._steps)
        batch = [(rng.integers(100, self._vocabulary, n).tolist(), [0, *[1] * (n - 1)]) for n in lengths]
        self._steps += 1
        return timed(lambda: self._trainer.sft_step(batch, self._stage, self._steps))


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def machine(kind: rates.Type, device: torch.device) -> tuple[float, float]:
    """FLOP/s in this type, and bytes/s."""
    sizes = ((2048, 576, 1536), (128, 576, 1536)) if device.type == "cpu" else ((8192, 4096, 4096),)
    products = max(rates.product_rate(device, rates.TYPES[kind], *size) for size in sizes)
    return products, rates.memory_rate(device)


def measure(side: str, setting: Setting) -> dict[str, list[float]]:
    """Shares of one side in each round, in this process."""
    shape = Shape.of(ModelFiles.read(setting.model).config)
    if shape is None:
        raise Failure(f"{setting.model} is of a kind whose products are not counted (agent_rl/models/shapes.py)")
    shares: dict[str, list[float]] = {}
    batches = [each for each in BATCHES if not setting.quick or each <= 16]
    lengths = (64, 96) if setting.quick else (512, 384, 640, 256, 512, 768, 512, 512)
    worker: Any = Engine(setting) if side == "engine" else Learner(setting)
    for number in range(setting.rounds + 1):  # the first warms up
        rate, memory = machine(worker.type, torch.device(setting.device))
        found: dict[str, float] = {"gflops": rate / 1e9, "gb_per_s": memory / 1e9}
        if side == "engine":
            width = worker.model.dtype.itemsize
            joined, _ = worker.seconds(PROMPTS, equal=False)
            found["prefill_share"] = prefill(shape, PROMPTS).bound(rate, memory) / joined
            found["prefill_tokens_per_s"] = PROMPTS * PROMPT / joined
            for rows in batches:
                _, step = worker.seconds(rows, equal=True)
                found[f"decode_{rows}_share"] = decode(shape, rows, width).bound(rate, memory) / step
                found[f"decode_{rows}_tokens_per_s"] = rows / step
        else:
            spent = worker.seconds(lengths)
            found["update_share_of_matmul"] = update(shape, lengths).bound(rate, memory) / spent
            found["update_tokens_per_s"] = sum(lengths) / spent
        for name, value in found.items() if number else ():
            shares.setdefault(name, []).append(value)
    return {"bfloat16": [float(worker.type == "bfloat16")], **shares}


def started(side: str, setting: Setting, processor: int) -> subprocess.Popen[str]:
    """A process that measures a side on processors of its own, from this number on."""
    cores = sorted(os.sched_getaffinity(0))
    own = [cores[(processor + each) % len(cores)] for each in range(setting.threads)]
    given = json.dumps({**asdict(setting), "model": str(setting.model)})
    command = [sys.executable, "-m", "benchmarks.command", "limits", "--side", side, given, json.dumps(own)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, list[float]]:
    """What the process has measured."""
    out, _ = process.communicate(timeout=SECONDS)
    if process.returncode:
        raise Failure(f"a side ended with exit code {process.returncode}")
    shares: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    return shares


@dataclass(kw_only=True)
class Options:
    """The options."""

    model: Path | None = None
    """A directory of Llama, Qwen2, Qwen3 or Mistral."""
    size: Size = "135m"
    """Of fresh weights, without a model."""
    device: str = "cpu"
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: int = 1
    rounds: int = 3
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""
    peers: tuple[str, ...] = ()
    """Other engines on the same model, NAME=PYTHON or NAME=PYTHON=MODEL; transformers, vllm and llama.cpp."""
    side: Hidden = ()


def main(options: Options) -> int:
    """Measure, and print the table and the figures."""
    if options.side:
        name, text, cores = options.side
        os.sched_setaffinity(0, json.loads(cores))
        given = json.loads(text)
        print(json.dumps(measure(name, Setting(**{**given, "model": Path(given["model"])}))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            fresh_model(Path(folder), options.size, layers=2 if options.quick else None)
        model, threads = options.model or Path(folder), options.threads
        setting = Setting(model, options.device, options.compute, threads, options.rounds, options.quick)
        compare(setting, {name: rest for name, _, rest in (each.partition("=") for each in options.peers)})
    return 0


def peer(name: str, given: str, setting: Setting) -> dict[str, float]:
    """Tokens a second of another engine: ``prefill``, ``decode_ROWS``. Raises Failure."""
    python, _, model = given.partition("=")
    command = [python, "benchmarks/peer_engines.py", name, model or str(setting.model), str(setting.threads)]
    command += map(str, PEER_BATCHES)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise Failure(f"{name} ended with exit code {done.returncode}\n{done.stderr[-2000:]}")
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def compare(setting: Setting, peers: Mapping[str, str]) -> None:
    """Measure each side alone, then both side by side, then other engines."""
    alone = {name: ended(started(name, setting, 0)) for name in ("engine", "learner")}
    both = {name: started(name, setting, number * setting.threads) for number, name in enumerate(alone)}
    beside = {name: ended(process) for name, process in both.items()}
    figures: dict[str, float | str | None] = {}
    rows = []
    for side, shares in alone.items():
        for name, values in shares.items():
            together = statistics.median(beside[side][name])
            value = statistics.median(values)
            key = name if name.startswith(("update", "prefill", "decode")) else f"{side}_{name}"
            figures[key] = value
            if name.endswith(("share", "matmul")):
                figures[f"{key}_low"], figures[f"{key}_high"] = min(values), max(values)
            if name.endswith("tokens_per_s"):
                figures[f"{key}_beside_over_alone"] = together / value
            rows.append([side, name, value, min(values), max(values), together, together / value if value else 0.0])
    print_table("shares of the machine", ["side", "figure", "alone", "least", "greatest", "beside", "ratio"], rows)
    rates = {name: peer(name, given, setting) for name, given in peers.items()}
    for name, found in rates.items():
        for what, rate in found.items():
            figures[f"over_{name}_{what}"] = float(figures[f"{what}_tokens_per_s"] or 0.0) / rate
    if rates:
        made = [[what, figures[f"{what}_tokens_per_s"], *(found[what] for found in rates.values())] for what in found]
        print_table("tokens a second", ["work", "agent_rl", *rates], made)
    print_figures({name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()})
