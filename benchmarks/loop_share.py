"""Measure what the generator's agent loop costs beside its engine, in rounds that another process asks for.

::

    PYTHONPATH=TREE python benchmarks/loop_share.py ROLLOUTS

Each line on standard input starts a round; the share is printed on standard output. One process measures one source
tree, so that the rounds of two trees alternate. The file is run by its path and imports `actors`, `agent_rl` and the
other benchmarks from the tree that PYTHONPATH names. It may only use what both trees have.
"""

from __future__ import annotations

import gc
import logging
import sys
import tempfile
import time
from pathlib import Path

import structlog
import trio

from actors.engines.torch import TorchEngine
from agent_rl.messages import Policy
from benchmarks.rollout_loop import AT_ONCE, generator, replay, requests, sample
from benchmarks.rollout_models import quickstart_model, save_writer

LETTERS, CALLING = 16.0, 0.6
"""Mean letters of a turn, and the probability that it ends in a tool call: 2.2 turns of 25 tokens."""


async def main(rollouts: int, folder: Path) -> None:
    """Serve rounds until standard input ends. The first round warms up and prints nothing.

    The agent loop has trio's thread, and the engine computes in a thread of its own. The loop's cost is the processor
    time of trio's thread while the generator samples, less that while the engine alone writes the same turns. Both are
    times of one thread, so the engine's own fluctuations do not enter the difference.
    """
    model = folder / "writer"
    save_writer(model, quickstart_model(), thinking=LETTERS, calling=CALLING)
    engine = TorchEngine(
        model, max_rollouts=AT_ONCE, kv_tokens=None, threads=1, dtype="float32", initial_policy=Policy(0, 0)
    )
    async with generator(model, folder, 1) as stage, trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        number = 0
        while number == 0 or bool(await trio.to_thread.run_sync(sys.stdin.readline)):
            gc.collect()
            gc.freeze()  # a full collection over transformers' objects takes a fifth of a round, in either thread
            whole, loop = time.process_time(), time.thread_time()
            sampled = await sample(stage, requests(rollouts, number))
            whole, loop = time.process_time() - whole, time.thread_time() - loop
            without_loop = time.thread_time()
            await replay(engine, sampled, model)
            without_loop = time.thread_time() - without_loop
            if number:
                print((loop - without_loop) / whole, flush=True)
            number += 1
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(main, int(sys.argv[1]), Path(temporary))
