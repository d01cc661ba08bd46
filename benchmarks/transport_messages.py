"""What `agent-rl bench transport` sends: trajectories of three sizes, everything in them random, and short calls."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

import numpy as np

from agent_rl.messages import Problem, Tokens, ToolCall, ToolCallRecord, ToolResult, Trajectory, Transcript
from transport import Registry, encode
from transport.codec import size_of

VARIANTS = 8
"""Different messages of each size, sent in turn."""


@dataclass(frozen=True, slots=True)
class Enquiry:
    """Asks the receiver what it has handled since the last enquiry."""


@dataclass(frozen=True, slots=True)
class Handled:
    """So many pushes; ``latencies`` [n], float64, in seconds from before `send` to the start of `handle`."""

    messages: int
    latencies: np.ndarray[tuple[int], np.dtype[np.float64]]


REGISTRY = Registry(Trajectory, ToolCall, ToolResult, Enquiry, Handled)


@dataclass(frozen=True)
class Size:
    """A message size, and how many messages may be under way: some hundreds, or what memory bears."""

    label: str
    bytes: int
    window: int
    bare_window: int


SIZES = {
    "1k": Size("1 KiB", 1 << 10, 256, 1000),
    "8k": Size("8 KiB", 8 << 10, 256, 1000),
    "1m": Size("1 MiB", 1 << 20, 64, 64),
}
COPY_BELOW = 64 << 10
"""Smaller messages are copied by pyzmq rather than shared with it: what is faster."""


def random_text(rng: random.Random, length: int) -> str:
    """Letters and digits."""
    return "".join(rng.choices(string.ascii_letters + string.digits, k=length))


def trajectory(seed: int, tokens: int) -> Trajectory:
    """A finished rollout of ``tokens`` response tokens, nearly everything in it random."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    code, shown = {"code": random_text(rng, tokens // 2)}, random_text(rng, tokens // 2)
    body = Tokens(
        prompt_tokens=numbers.integers(0, 1 << 31, max(8, tokens // 8), np.int32),
        tokens=numbers.integers(0, 1 << 31, tokens, np.int32),
        loss_mask=numbers.integers(0, 256, tokens, np.uint8),  # does not shrink, so that sizes are exact
        logprobs=-numbers.random(tokens, np.float32),
        policies=numbers.integers(0, 1 << 30, (tokens, 2), np.int32),
    )
    return Trajectory(
        rollout=f"stage2/{seed}/3/0",
        group=f"stage2/{seed}",
        stage=2,
        sample=3,
        attempt=0,
        purpose="train",
        transcript=Transcript(
            (random_text(rng, tokens), random_text(rng, tokens)),
            (ToolCallRecord(1, "python", "success", rng.random(), rng.random(), arguments=code, response=shown),),
        ),
        reason="",
        generator="rollout_generator.0",
        seconds=rng.random(),
        prompt_length=len(body.prompt_tokens),
        response_length=tokens,
        oldest=0,
        newest=1 << 30,
        body=body.pack(),
    )


def trajectories(size: Size) -> list[Trajectory]:
    """Different trajectories that are as near to the size as whole tokens allow, encoded."""
    empty, some = size_of(encode(trajectory(0, 0))), size_of(encode(trajectory(0, 1000)))
    guess = round((size.bytes - empty) / (some - empty) * 1000)  # small arrays take a little less than large ones
    tokens = min(
        range(max(1, guess - 4), guess + 5),
        key=lambda count: abs(size_of(encode(trajectory(0, count))) - size.bytes),
    )
    return [trajectory(seed, tokens) for seed in range(VARIANTS)]


def question(seed: int) -> ToolCall:
    """A tool call with a few lines of code."""
    rng = random.Random(seed)
    problem = Problem(f"p{seed}", random_text(rng, 200), "42")
    return ToolCall(f"{seed}/0", f"stage2/{seed}/3/0", "python", {"code": random_text(rng, 200)}, problem, seed)
