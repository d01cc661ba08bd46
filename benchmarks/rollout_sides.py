"""The sides of bench_rollout: the embedded engine, `generate` on padded batches, and the generator among stand-ins.

The stand-ins (scheduler, filter, and an executor that answers at once) share the generator's process and event loop
over the in-memory network, so what they cost is counted as the loop's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteriaList

from actors.engines.base import Engine, TurnRequest
from actors.engines.torch.engine import TorchEngine
from actors.rollout_generator import RolloutGenerator
from agent_rl.config.load import load_topology
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.load import mixed_tasks
from agent_rl.messages import PolicyPublished, PolicyVersion, RolloutRequest, Sampling, ToolCall, ToolResult, Trajectory
from agent_rl_contract.stage import Stage, running, stand_ins
from benchmarks.quickstart import EXAMPLE, TASK
from benchmarks.rollout_models import Workload

GENERATOR = "rollout_generator.0"
AT_ONCE = 256
"""Rollouts in flight, as in the quickstart."""
SAMPLING = Sampling(temperature=1.0, max_response_tokens=400, max_turns=4)


# The engine beside generate -------------------------------------------------------------------------------------------


def torch_engine(model: Path, rows: int, threads: int) -> TorchEngine:
    """The embedded engine, with room for so many rollouts."""
    return TorchEngine(
        model, max_rollouts=rows, kv_tokens=None, threads=threads, dtype="float32", initial_policy=PolicyVersion(0, 0)
    )


async def engine_seconds(engine: Engine, work: Workload, seed: int) -> float:
    """All prompts at once, each with its own length, at temperature 1."""
    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for index, prompt in enumerate(work.prompts):
            request = TurnRequest(
                rollout=f"{seed}/{index}",
                tokens=prompt,
                max_tokens=int(work.lengths[index]),
                temperature=1.0,
                stop_tokens=frozenset(),
                seed=1000 * seed + index,
            )
            nursery.start_soon(engine.generate, request)
    seconds = time.perf_counter() - began
    for index in range(len(work.prompts)):
        engine.release(f"{seed}/{index}")
    return seconds


class PaddedGenerate:
    """``model.generate`` as usually called: prompts padded on the left, a batch ends with its longest response.

    It has what helps it: SDPA attention (eager was slower), the KV cache, inference mode, no filtering of logits,
    prompts sorted by length when there is more than one batch, a row's end at its own length (from then on it is
    padding), and no log-probabilities, which the engine computes too.
    """

    def __init__(self, path: Path, threads: int) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            path, trust_remote_code=False, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._model.eval()
        self._threads = threads

    def seconds(self, work: Workload, batch: int, seed: int) -> float:
        """In batches of so many, one after the other. Blocks: to be called in a thread."""
        torch.set_num_threads(self._threads)
        order = list(range(len(work.prompts)))
        if batch < len(order):
            order.sort(key=lambda index: len(work.prompts[index]))
        began = time.perf_counter()
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for first in range(0, len(order), batch):
                chosen = order[first : first + batch]
                self._generate([work.prompts[i] for i in chosen], torch.from_numpy(work.lengths[chosen]))
        return time.perf_counter() - began

    def _generate(self, prompts: Sequence[Sequence[int]], lengths: Tensor) -> None:
        width, longest = max(map(len, prompts)), int(lengths.max())
        tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1

        def ended(known: Tensor, _: Any, **__: Any) -> Tensor:
            return lengths <= known.shape[1] - width

        written = self._model.generate(
            tokens,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=None,
            pad_token_id=0,
            max_new_tokens=longest,
            stopping_criteria=StoppingCriteriaList([ended]),
        )
        assert written.shape == (len(prompts), width + longest)


# The generator beside its engine -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampled:
    """A generator's trajectories, and the seconds that all of them took."""

    requests: Sequence[RolloutRequest]
    trajectories: Mapping[str, Trajectory]
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens the model wrote."""
        return sum(int(made.unpack().loss_mask.sum()) for made in self.trajectories.values())

    @property
    def turns(self) -> float:
        """Turns of an episode, on average."""
        return float(np.mean([made.turns for made in self.trajectories.values()]))


def requests(count: int, round_number: int) -> list[RolloutRequest]:
    """Rollouts of the quickstart's problems, 16 a group."""
    entry = EnvironmentEntry.model_validate(TASK)
    tasks = mixed_tasks([entry], seed=round_number, base=Path())
    return [
        RolloutRequest(
            rollout=f"s{round_number}-g{index // 16:06d}/{index % 16}/0",
            group=f"s{round_number}-g{index // 16:06d}",
            stage=round_number,
            sample=index % 16,
            attempt=0,
            purpose="train",
            problem=tasks.problem(0, index // 16),
            sampling=SAMPLING,
            seed=10_000 * round_number + index,
        )
        for index in range(count)
    ]


@asynccontextmanager
async def generator(
    model: Path, folder: Path, threads: int, otel: str | None = None
) -> AsyncIterator[tuple[Stage, RolloutGenerator]]:
    """The production generator with the quickstart's settings, serving ``model``, among stand-ins.

    ``otel``: the collector that gets its rollouts.
    """
    settings = [f"run.directory={folder / 'run'}", f'model={{path="{model}"}}']
    settings += [f"actors.rollout_generator.settings.max_rollouts={AT_ONCE}"]
    settings += [f"actors.rollout_generator.settings.threads={threads}"]
    topology = load_topology(EXAMPLE, settings + ([] if otel is None else [f'run.otel="{otel}"']))

    def answer(message: Any) -> ToolResult | None:
        return ToolResult(message.call, "success", "3\n", "", "", 0.0, 0.0) if isinstance(message, ToolCall) else None

    published = PolicyPublished(PolicyVersion(1, 0), (model / "model.safetensors").as_uri(), 0, 0)
    async with stand_ins(topology, "rollout_generator", concurrency={"tool_executor": 4096}) as stage:
        stage["tool_executor"].reply = answer
        stage["learner"].announce("policy", GENERATOR).set(published)
        async with running(RolloutGenerator, topology, "rollout_generator", folder, stage) as actor:
            await stage.started(GENERATOR)
            assert isinstance(actor, RolloutGenerator)
            yield stage, actor


async def sample(stage: Stage, wanted: Sequence[RolloutRequest]) -> Sampled:
    """Have the generator run these rollouts, ``AT_ONCE`` at a time; one that ends makes way for the next."""
    places = trio.Semaphore(AT_ONCE)
    push = stage["kv_scheduler"].push("requests", GENERATOR, window=2 * AT_ONCE)
    made: dict[str, Trajectory] = {}
    began = time.perf_counter()
    for request in wanted:
        await places.acquire()
        await push.send(request, on_ack=places.release)
    while len(made) < len(wanted):
        trajectory: Trajectory = await stage["roc_filter"].receive(Trajectory)
        made[trajectory.rollout] = trajectory
    return Sampled(wanted, made, time.perf_counter() - began)


async def replay(engine: Engine, sampled: Sampled, model: Path) -> tuple[float, int]:
    """Seconds and tokens of the engine alone writing the same turns of the same sequences, as many at once."""
    stop_tokens = frozenset({AutoTokenizer.from_pretrained(model, trust_remote_code=False).eos_token_id})
    places = trio.Semaphore(AT_ONCE)
    written = 0

    async def rollout(request: RolloutRequest) -> None:
        nonlocal written
        for tokens, count in turns(sampled.trajectories[request.rollout]):
            result = await engine.generate(
                TurnRequest(
                    rollout=request.rollout,
                    tokens=tokens,
                    max_tokens=count,
                    temperature=request.sampling.temperature,
                    stop_tokens=stop_tokens,
                    seed=request.seed,
                )
            )
            written += len(result.tokens)
        engine.release(request.rollout)
        places.release()

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for request in sampled.requests:
            await places.acquire()
            nursery.start_soon(rollout, request)
    return time.perf_counter() - began, written


def turns(trajectory: Trajectory) -> list[tuple[list[int], int]]:
    """For each turn: all tokens before it, and how many the model wrote in it."""
    body = trajectory.unpack()
    mask = body.loss_mask.astype(np.int8)
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0))
    prompt = body.prompt_tokens.tolist()
    tokens = body.tokens.tolist()
    return [(prompt + tokens[:first], int(last - first)) for first, last in zip(edges[::2], edges[1::2], strict=True)]
