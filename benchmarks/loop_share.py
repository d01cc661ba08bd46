"""What the generator's Python costs beside its engine, in rounds that somebody asks for: a process a source tree, so that two trees alternate.

::

    PYTHONPATH=TREE python benchmarks/loop_share.py ROLLOUTS     a line on standard input --> a round --> the share, on standard output

Run by its path, it imports `actors`, `agent_rl` and the other benchmarks of the tree that PYTHONPATH names: nothing here may need more of
them than both trees have.
"""

from __future__ import annotations

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
"""Mean letters of a turn, and how likely it ends in a tool call: 2.2 turns of 25 tokens."""


def asked() -> bool:
    """Whether another round is asked for."""
    return bool(sys.stdin.readline())


async def main(rollouts: int, folder: Path) -> None:
    """Serve rounds until standard input ends; the first one warms up and prints nothing."""
    model = folder / "writer"
    save_writer(model, quickstart_model(), thinking=LETTERS, calling=CALLING)
    engine = TorchEngine(
        model, max_rollouts=AT_ONCE, kv_tokens=None, threads=1, dtype="float32", initial_policy=Policy(0, 0)
    )
    async with generator(model, folder, 1) as stage, trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        number = 0
        while number == 0 or await trio.to_thread.run_sync(asked):
            began = time.process_time()
            sampled = await sample(stage, requests(rollouts, number))
            between = time.process_time()
            await replay(engine, sampled, model)
            alone = time.process_time() - between
            if number:
                print(1 - alone / (between - began), flush=True)
            number += 1
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(main, int(sys.argv[1]), Path(temporary))
