"""Asynchronous tool-use reinforcement learning in one file: how the parts of this project play together.

::

    generate: problems --> rollouts with tool calls --> groups --channel--> learn: select, update --+
        ^                                                                                           |
        +------------------ new weights, between two tokens of running rollouts --------------------+

A tiny Qwen3 learns the format of tool calls from demonstrations, which teach it wrong arithmetic (the quickstart's
task). Then it learns from rewards alone what to compute. Run it in a clone: ``.venv/bin/python -m examples.one_file``
In a real run each part is an actor, a process of its own: comments say which one, and what the real one adds.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

import torch
import trio
from safetensors.torch import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.engines.base import TurnRequest
from actors.engines.torch.engine import TorchEngine
from actors.sandbox.owner.client import Sandbox
from agent_rl.config.topology import InitialiseModel
from agent_rl.environments.maths.environment import format_penalty
from agent_rl.environments.maths.rewards import final_answer
from agent_rl.groups.resampling import Candidate, has_signal, select_paper
from agent_rl.learning.losses.base import LossSettings, MicroBatch, reduced
from agent_rl.learning.losses.grpo import grpo
from agent_rl.learning.tiny import initialise_model
from agent_rl.messages import PolicyVersion, Problem
from agent_rl.rollout.parsing import AnyCall, MalformedCall, cut_middle, harmless
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.supervised import demonstrated
from examples.quickstart.arithmetic import Arithmetic

# In a real run a topology file holds these, and `agent-rl check` proves that they fit together.
MODEL = InitialiseModel(hidden_size=128, layers=2, heads=8, kv_heads=4, head_dim=32, mlp_size=128, max_length=256)
FORMAT_STEPS, DEMONSTRATIONS, FORMAT_RATE = 700, 16, 3e-3
STEPS, GROUPS, SAMPLES, KEEP, UPDATES, RATE, HELD_OUT = 50, 16, 16, 8, 2, 6e-4, 256
MAX_TOKENS, MAX_TURNS, MAX_CHARACTERS = 192, 4, 48  # of a rollout, and of what the model reads of a call
MAX_STALENESS = 1  # steps from the weights that begin a batch to those that it trains: the channel's size bounds them


@dataclass
class Rollout:
    """An attempt at a problem. The lists are as long as prompt and response together."""

    problem: Problem
    version: int  # of the weights that began it
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of each token, by the policy that sampled it
    mask: list[bool] = field(default_factory=list)  # whether the model wrote the token: the others are not trained
    turns: list[str] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)  # of each call, whether it failed
    reward: float = 0.0

    def append(self, tokens: list[int], logprobs: list[float] | None = None) -> None:
        """Append tokens of the model, with their log-probabilities, or tokens of others without."""
        self.tokens += tokens
        self.logprobs += logprobs or [0.0] * len(tokens)
        self.mask += [logprobs is not None] * len(tokens)


class Generator:
    """Writes rollouts: the engine continues tokens, the sandbox runs the calls."""

    def __init__(self, engine: TorchEngine, sandbox: Sandbox, chat: ChatFormat, task: Arithmetic) -> None:
        self.engine, self.sandbox, self.chat, self.problems = engine, sandbox, chat, task.problems()
        self.seeds = count()

    # Rollout generator. The real one gives completed turns to the scheduler, so that a rollout outlives its process.
    # Environments may answer turns there, and loops of your own and agents that speak HTTP may write rollouts.
    async def write(self, rollout: Rollout) -> None:
        """The agent loop: the model writes turns, and their calls are answered, until a turn calls no tool."""
        seed, stop = next(self.seeds), self.chat.stop_tokens
        rollout.append(self.chat.prompt_tokens(rollout.problem))
        while (room := MAX_TOKENS - len(rollout.tokens)) > 0:
            asked = TurnRequest(
                rollout=f"{seed}", tokens=rollout.tokens, max_tokens=room, temperature=1.0, stop_tokens=stop, seed=seed
            )
            turn = await self.engine.generate(asked)  # which computes new tokens alone: the KV cache stays
            rollout.append(turn.tokens.tolist(), turn.logprobs.tolist())  # as sampled: text is never encoded again
            rollout.turns.append(self.chat.decode([token for token in turn.tokens.tolist() if token not in stop]))
            calls = self.chat.calls(rollout.turns[-1]) if turn.finish == "stop" else ()
            if not calls or len(rollout.turns) == MAX_TURNS:
                break
            rollout.append(self.chat.response_tokens([await self.answer(call, rollout) for call in calls]))
        self.engine.release(f"{seed}")
        rollout.reward = float(final_answer(*rollout.turns) == rollout.problem.answer)

    # Tool executor. The real one is a pool of processes on any host. Calls have deadlines, and are made again
    # elsewhere if a process dies. There are more tools: notebooks, MCP servers, your own.
    async def answer(self, call: AnyCall, rollout: Rollout) -> str:
        """Run the Python of a call in an isolated child; return the last line of what it prints, or of its error."""
        if isinstance(call, MalformedCall):
            rollout.failed.append(True)
            return call.error
        output = await self.sandbox.execute(str(call.arguments.get("code", "")))
        rollout.failed.append(output.outcome != "success")
        shown = output.stderr if rollout.failed[-1] else output.stdout
        return cut_middle(harmless((shown.strip() or output.outcome).rpartition("\n")[2]), MAX_CHARACTERS)

    async def rollouts(self, problems: list[Problem]) -> list[Rollout]:
        """A rollout of each problem, all at once: the engine decodes together whatever is in flight."""
        rollouts = [Rollout(problem, self.engine.policy.version) for problem in problems]
        async with trio.open_nursery() as nursery:
            for rollout in rollouts:
                nursery.start_soon(self.write, rollout)
        return rollouts

    # KV-cache scheduler. The real one opens group by group, so that a slow rollout holds up no other. It chooses
    # engines by their free KV cache, moves the rollouts of lost ones, and bounds the staleness of each group.
    async def generate(self, batches: trio.MemorySendChannel[list[list[Rollout]]]) -> None:
        """Write a batch of groups for each step. ``send`` waits where the learner would fall too far behind."""
        async with batches:
            for step in range(STEPS):
                problems = [self.problems.problem(0, step * GROUPS + group) for group in range(GROUPS)]
                written = await self.rollouts([problem for problem in problems for _ in range(SAMPLES)])
                await batches.send([written[at : at + SAMPLES] for at in range(0, len(written), SAMPLES)])

    async def success(self) -> float:
        """The share of held-out problems that are solved, sampled once each."""
        written = await self.rollouts([self.problems.evaluation(number) for number in range(HELD_OUT)])
        return sum(rollout.reward for rollout in written) / HELD_OUT


# RoC filter. The real one writes each judgement and decision to a journal before anything is trained on it: after a
# failure the run goes on, and no rollout is lost or counted twice.
def selected(group: list[Rollout], rng: random.Random) -> list[tuple[Rollout, float]]:
    """The rollouts of a group to train, with their advantages. Of those with success, RoC prefers the clean ones."""
    if not has_signal([r.reward for r in group]):
        return []  # no rollout is better than another
    marks = [(len(r.turns), len(r.failed), sum(r.failed), format_penalty(r.turns)) for r in group]
    candidates = [Candidate(0, r.reward, *m, len(r.tokens), r.reward > 0) for r, m in zip(group, marks, strict=True)]
    kept = [group[place] for place in select_paper(candidates, rng, keep=KEEP)]
    rewards = torch.tensor([r.reward for r in kept])
    return list(zip(kept, ((rewards - rewards.mean()) / rewards.std(correction=0)).tolist(), strict=True))


def padded(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """Rows as one tensor, with zeros on the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


# Learner. The real one packs sequences without padding, computes shared prompts once, spreads large models over ranks,
# skips steps with numbers that are not finite, sends weights to engines on other hosts, and writes checkpoints.
class Learner:
    """The model in training. ``directory`` holds it, and the weights that it publishes."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.0)
        self.weights = directory / "model.safetensors"

    def logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probability of each token but the first, [rows, width - 1]."""
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)

    def update(self, loss: torch.Tensor, rate: float, done: float) -> None:
        """Change the weights. The rate rises at first, then falls in a cosine; ``done``: the share that is over."""
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.param_groups[0]["lr"] = rate * min(1.0, 20 * done + 0.05) * (1 + math.cos(math.pi * done)) / 2
        self.optimizer.step()

    def imitate(self, chat: ChatFormat, task: Arithmetic) -> None:
        """The supervised stage: mean cross-entropy of what the assistant writes in demonstrations."""
        shown = task.problems().demonstrations(random.Random(0))
        for step in range(FORMAT_STEPS):
            batch = [pair for each in islice(shown, DEMONSTRATIONS) for pair in demonstrated(chat, each)]
            tokens, mask = padded([tokens for tokens, _ in batch]), padded([mask for _, mask in batch])[:, 1:]
            loss = -(self.logprobs(tokens) * mask).sum() / mask.sum()
            self.update(loss, FORMAT_RATE, step / FORMAT_STEPS)
            if step % 100 == 99:
                print(f"format step {step + 1}/{FORMAT_STEPS}: loss {loss:.3f}")

    def reinforce(self, batch: list[tuple[Rollout, float]], done: float) -> None:
        """An RL step. The behaviour policy sampled, the proximal one begins the step, and the model's is updated."""
        tokens, mask = padded([r.tokens for r, _ in batch]), padded([r.mask for r, _ in batch])[:, 1:]
        behaviour = padded([r.logprobs for r, _ in batch])[:, 1:]
        with torch.no_grad():
            proximal = self.logprobs(tokens) * mask
        for rows in (slice(first, None, UPDATES) for first in range(UPDATES)):
            micro = MicroBatch(
                logprobs=self.logprobs(tokens[rows]) * mask[rows],
                proximal=proximal[rows],  # GRPO clips the ratio exp(logprobs - proximal)
                behaviour=behaviour[rows],  # a token counts by min(exp(proximal - behaviour), 2): it may be stale
                mask=mask[rows],
                turns=torch.zeros_like(tokens[rows, 1:]),  # which other losses need
                advantages=torch.tensor([[advantage] for _, advantage in batch[rows]]),
                rewards=torch.tensor([[rollout.reward] for rollout, _ in batch[rows]]),
                tokens=int(mask[rows].sum()),
                sequences=len(batch[rows]),
                max_response_tokens=MAX_TOKENS,
            )
            self.update(reduced(micro, grpo(micro, LossSettings()), LossSettings())[0], RATE, done)

    async def learn(self, batches: trio.MemoryReceiveChannel[list[list[Rollout]]], engine: TorchEngine) -> None:
        """Train on each batch while the next one is written, and give the engine the new weights."""
        rng, step, began = random.Random(0), 0, trio.current_time()
        async for groups in batches:
            trained = [pair for group in groups for pair in selected(group, rng)]
            if trained:
                await trio.to_thread.run_sync(self.reinforce, trained, step / STEPS)
            behind = step - min(rollout.version for group in groups for rollout in group)
            step += 1
            save_model(self.model, str(self.weights))
            await engine.load_weights(self.weights, PolicyVersion(0, step))  # its rollouts go on with the next token
            reward = sum(rollout.reward for group in groups for rollout in group) / (GROUPS * SAMPLES)
            seconds = trio.current_time() - began
            print(f"step {step}: reward {reward:.2f}, {len(trained)} trained, {behind} behind, {seconds:.0f} s")


# Supervisor. The real one starts each actor as a process, watches it, and starts it again when it dies.
async def main(folder: Path) -> None:
    """Both stages, with an evaluation before and after the second one."""
    torch.set_num_threads(1)  # the learner's; the engine computes in a thread of its own
    initialise_model(MODEL, folder, seed=0)
    task, learner = Arithmetic(seed=0, base=folder), Learner(folder)
    chat = ChatFormat(AutoTokenizer.from_pretrained(folder), {"": task})
    learner.imitate(chat, task)
    save_model(learner.model, str(learner.weights))
    engine = TorchEngine(folder, max_rollouts=256, kv_tokens=None, dtype="float32", initial_policy=PolicyVersion(0, 0))
    generator = Generator(engine, Sandbox(), chat, task)
    async with trio.open_nursery() as services:
        await services.start(engine.run)
        await services.start(generator.sandbox.run)
        print(f"success on held-out problems before: {await generator.success():.1%}")
        send, receive = trio.open_memory_channel[list[list[Rollout]]](MAX_STALENESS - 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generator.generate, send)
            nursery.start_soon(learner.learn, receive, engine)
        print(f"success on held-out problems after: {await generator.success():.1%}")
        services.cancel_scope.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        trio.run(main, Path(name))
