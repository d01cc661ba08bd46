"""The learner's memory beside the plan of `agent-rl check`, after steps of mixed lengths, for three sizes of model.

    agent-rl bench memory
    agent-rl bench memory --models 135m --steps 200 --tokens 512
    agent-rl bench memory --path DIR
    agent-rl bench memory --quick

Each model is trained in a process of its own, which is set up as an actor's process and shares the threads of torch's
work as the learner does. After each step the policy is copied and written beside the next step, and every ten steps a
checkpoint is. Response lengths are log-normal, up to --tokens with their prompts, and so are micro-batches.

Measured is the most memory that belongs to no file, by the kernel's account. `learner_over_plan_MODEL` is its ratio to
what the plan has for the learner and for its host's memory. `plan_error_percent` is the plan's largest error.
`--heap glibc` leaves malloc as it is by default, `--heap messages` as actors without a model set it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
import trio

from actors.runtime.process import prepare_heap
from agent_rl.config.load import load_topology
from agent_rl.files.disk import remove
from agent_rl.learning.trainer import Trainer, write_weights
from agent_rl.records.checkpoint_files import Position
from agent_rl.topology_checks.memory import TOGETHER, Need, plan
from benchmarks.bench_learner import save_model
from benchmarks.command import Failure, Hidden
from benchmarks.learner_sides import GROUP, groups_of
from benchmarks.quickstart import EXAMPLE
from benchmarks.reporting import print_figures, print_table
from benchmarks.rollout_models import Workload

SMOLLM2: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
"""The sizes of SmolLM2-135M. Memory does not depend on the weights' values, so these are random."""
CHECKPOINT_EVERY = 10
MEDIAN_SHARE, SPREAD = 0.15, 0.8
"""The median of a response's length, as a share of the longest, and the standard deviation of its logarithm."""
SECONDS = 7200.0

Heap = Literal["shipped", "messages", "glibc"]
Compute = Literal["auto", "float32", "bfloat16"]
ROLES: dict[Heap, str] = {"shipped": "learner.0", "messages": "roc_filter.0"}


@dataclass(frozen=True)
class Work:
    """What the process of a model does."""

    model: str
    steps: int
    sequences: int
    tokens: int
    threads: int
    heap: Heap
    compute: Compute

    def overrides(self) -> list[str]:
        """The topology of which the plan is compared."""
        stage = f'{{kind="rl",name="rl",steps={self.steps},max_response_tokens={self.tokens},max_turns=1}}'
        algorithm = {
            "groups_per_step": self.sequences // GROUP,
            "samples": GROUP,
            "keep": GROUP,
            "updates_per_step": 1,
            "microbatch_tokens": self.tokens,
        }
        return [
            f'model={{path="{self.model}"}}',
            f"stages=[{stage}]",
            *(f"algorithm.{name}={value}" for name, value in algorithm.items()),
        ]

    def lengths(self, seed: int) -> Workload:
        """Prompts, and lengths of responses."""
        rng = np.random.default_rng(seed)
        prompts = rng.integers(10, 100, (self.sequences, self.tokens // 16))
        drawn = rng.lognormal(math.log(MEDIAN_SHARE * self.tokens), SPREAD, self.sequences).round().astype(np.int64)
        return Workload(tuple(map(tuple, prompts.tolist())), drawn.clip(1, self.tokens - self.tokens // 16))


@dataclass(frozen=True)
class Held:
    """Bytes at most, and after the last step; processor seconds of a step."""

    most: int
    last: int
    processor: float


class NoTokenizer:
    """Stands in the checkpoint for a tokenizer."""

    def save_pretrained(self, directory: Path) -> None:
        """Nothing."""


def held() -> dict[str, int]:
    """Bytes by the kernel's names, as in ``RssAnon``."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


async def train(work: Work, folder: Path) -> Held:
    """All steps, published and saved as `actors.learner` does."""
    topology = load_topology(EXAMPLE, work.overrides())
    torch_thread, writers = trio.CapacityLimiter(1), [trio.CapacityLimiter(1), trio.CapacityLimiter(1)]

    def load() -> Trainer:
        return Trainer(
            Path(work.model),
            dtype="float32",
            compute=work.compute,
            device="cpu",
            algorithm=topology.algorithm,
            threads=work.threads,
            seed=0,
            tokenizer=NoTokenizer(),
        )

    async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        return await trio.to_thread.run_sync(function, *arguments, limiter=torch_thread)

    trainer: Trainer = await in_thread(load)
    stage, vocabulary = topology.stages[0], trainer.model.module.config.vocab_size
    processor = 0.0
    async with trio.open_nursery() as nursery:

        async def beside(limiter: trio.CapacityLimiter, function: Callable[..., None], *arguments: Any) -> None:
            await trio.to_thread.run_sync(function, *arguments, limiter=limiter)

        for step in range(work.steps):
            groups, began = groups_of(work.lengths(step), step, vocabulary), time.process_time()
            await in_thread(trainer.rl_step, groups, stage, step)
            processor += time.process_time() - began
            weights = await in_thread(trainer.copy_weights, step + 1)
            if not writers[0].borrowed_tokens:  # else the learner writes the next policy instead
                nursery.start_soon(beside, writers[0], write_weights, weights, folder / "policy.safetensors")
            del weights
            if step % CHECKPOINT_EVERY == 1 and not writers[1].borrowed_tokens:
                remove(folder / "checkpoint")
                staged = await in_thread(trainer.stage, folder / "checkpoint", Position(0, step, step))
                nursery.start_soon(beside, writers[1], staged.write)
                del staged
    now = held()
    return Held(now["VmHWM"] - now["RssFile"], now["RssAnon"] + now["RssShmem"], processor / work.steps)


def be_learner(text: str) -> None:
    """What the process of a model runs."""
    work = Work(**json.loads(text))
    if role := ROLES.get(work.heap):
        prepare_heap(role)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asdict(trio.run(train, work, Path(folder)))), flush=True)


def measured(work: Work) -> Held:
    """The memory of a process of its own. Raises Failure."""
    command = [sys.executable, "-m", "benchmarks.command", "memory", "--learner", json.dumps(asdict(work))]
    threads = {"OMP_NUM_THREADS": str(work.threads), "MKL_NUM_THREADS": str(work.threads), "OPENBLAS_NUM_THREADS": "1"}
    environment = os.environ | threads
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise Failure(f"the process of {work.model} ended with {done.returncode}")
    return Held(**json.loads(done.stdout.splitlines()[-1]))


def planned(work: Work) -> Iterator[Need]:
    """What the plan has for the learner's process."""
    for need in plan(load_topology(EXAMPLE, work.overrides())):
        if need.where == "learner" or (need.what.startswith("memory: ") and need.what != TOGETHER):
            yield need


@dataclass(kw_only=True)
class Options:
    """The options."""

    models: tuple[Literal["quickstart", "larger", "135m"], ...] = ("quickstart", "larger", "135m")
    """Of 0.3M, 11M and 135M parameters."""
    path: Path | None = None
    """A model directory in place of these."""
    steps: int = 24
    sequences: int = 16
    """Of a step; a multiple of 8."""
    tokens: int = 1024
    """Of a micro-batch, and of the longest sequence."""
    threads: int = 1
    """Torch's threads."""
    heap: Heap = "shipped"
    compute: Compute = "auto"
    """The type of matrix products, as in [model]."""
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""
    learner: Hidden = ()


def main(options: Options) -> int:
    """Measure, and print the table and the figures."""
    transformers.logging.disable_progress_bar()
    if options.learner:
        be_learner(*options.learner)
        return 0
    work = Work("", options.steps, options.sequences, options.tokens, options.threads, options.heap, options.compute)
    if options.quick:
        work, options.models = replace(work, steps=3, sequences=8, tokens=128), ("quickstart",)
    rows: list[list[object]] = []
    figures: dict[str, float | str | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (options.path.name,) if options.path else options.models:
            model = options.path or Path(folder) / name
            if name == "135m" and not options.path:
                config = transformers.LlamaConfig(**SMOLLM2)
                torch.manual_seed(0)
                transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(model)
            elif not options.path:
                save_model(name, model)
            needs = list(planned(of := replace(work, model=str(model))))
            size, process = sum(need.size for need in needs), measured(of)
            print(f"{name}: " + ", ".join(f"{need.what} {need.size / 2**20:,.0f}" for need in needs), flush=True)
            error = 100 * (size / process.most - 1)
            rows.append([name, size / 2**20, process.most / 2**20, process.last / 2**20, error, process.processor])
            figures[f"learner_over_plan_{name}"] = round(process.most / size, 3)
            figures[f"plan_error_percent_{name}"] = round(error, 1)
            figures[f"learner_processor_s_{name}"] = round(process.processor, 3)
    header = ["model", "planned MiB", "held at most", "after the last step", "plan's error %", "processor s a step"]
    print_table(f"memory of a learner, {work.steps} steps, micro-batches of {work.tokens:,} tokens", header, rows)
    figures["plan_error_percent"] = max(abs(float(str(row[4]))) for row in rows)
    print_figures(figures)
    return 0
