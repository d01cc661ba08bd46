"""Bare vLLM for bench_rollout: `LLM.generate` in a process of its own, on given token sequences and lengths.

Run as a program it is that process: its first argument is what to start vLLM with (JSON), each line of standard input a
batch ``{"prompts": [[int]], "lengths": [int], "seed": int}``, each line of standard output the seconds it took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from actors.engines.vllm.engine import VllmEngine
from agent_rl.messages import PolicyVersion
from benchmarks.rollout_sides import AT_ONCE

ENGINE = "actors.engines.vllm:VllmEngine"
MEASURED = "seconds "
OURS = ("worker_extension_cls", "scheduler_cls")
"""Engine arguments that bring code of ours into vLLM."""
START_SECONDS = 300.0
BATCH_SECONDS = 600.0


class BareVllm:
    """The process, with the same engine arguments and environment as the generator's vLLM has."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._stdin, self._stdout = process.stdin, process.stdout
        self._left = b""

    async def seconds(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int], seed: int) -> float:
        """All prompts handed over at once, each written on for exactly its own length, at temperature 1."""
        batch = {"prompts": [list(prompt) for prompt in prompts], "lengths": list(lengths), "seed": seed}
        with trio.fail_after(BATCH_SECONDS):
            await self._stdin.send_all(json.dumps(batch).encode() + b"\n")
            return await self._answer()

    async def _answer(self) -> float:
        while True:
            line, newline, self._left = self._left.partition(b"\n")
            if newline and line.startswith(MEASURED.encode()):
                return float(line[len(MEASURED) :])
            if not newline:
                more = await self._stdout.receive_some()
                if not more:
                    raise RuntimeError("bare vLLM ended; what it said is above")
                self._left = line + more


@asynccontextmanager
async def bare_vllm(model: Path) -> AsyncIterator[BareVllm]:
    """Start it, wait until it has loaded the model, and end it afterwards."""
    start = VllmEngine(
        model,
        max_rollouts=AT_ONCE,
        kv_tokens=None,
        threads=1,
        device="cpu",
        dtype="float32",
        initial_policy=PolicyVersion(0, 0),
    ).start
    command = [sys.executable, "-m", "benchmarks.rollout_vllm", json.dumps(start.arguments())]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                check=False,
                env=start.environment() | os.environ,
            )
        )
        bare = BareVllm(process)
        with trio.fail_after(START_SECONDS):
            await bare.seconds([[1, 2, 3]], [2], 0)
        yield bare
        nursery.cancel_scope.cancel()


def main() -> None:
    """Be the process."""
    from vllm import LLM, SamplingParams

    arguments: Mapping[str, Any] = json.loads(sys.argv[1])
    llm = LLM(**{name: value for name, value in arguments.items() if name not in OURS})
    for line in sys.stdin:
        batch = json.loads(line)
        parameters = [
            SamplingParams(
                temperature=1.0,
                seed=1000 * batch["seed"] + index,
                max_tokens=length,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
            )
            for index, length in enumerate(batch["lengths"])
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in batch["prompts"]]
        began = time.perf_counter()
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert [len(output.outputs[0].token_ids) for output in outputs] == batch["lengths"]
        print(f"\n{MEASURED}{seconds}", flush=True)


if __name__ == "__main__":
    main()
