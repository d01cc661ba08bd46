"""A small engine, an update of its weights and a step of the learner on one device: ``agent-rl doctor`` runs it.

The last line says what the device reaches, or, with exit code 1, what went wrong.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import trio

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import InitialiseModel, SftStage
from agent_rl.messages import PolicyVersion

TOKENS = list(range(5, 21))


def try_device(device: str, folder: Path) -> None:
    """Raises whatever the device, torch or the engine raises."""
    from agent_rl.learning.tiny import initialise_model
    from agent_rl.learning.trainer import Trainer, write_weights

    model = folder / "model"
    initialise_model(InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=64), model, 0)
    trainer = Trainer(model, dtype="float32", device=device, algorithm=Algorithm(), threads=1, seed=0)
    stage = SftStage(kind="sft", steps=2, batch=2, warmup_steps=0)
    trainer.sft_step([(TOKENS, [1] * len(TOKENS))] * 2, stage, 0)
    write_weights(trainer.copy_weights(1), folder / "policy.safetensors")
    trio.run(_serve, device, model, folder / "policy.safetensors")


async def _serve(device: str, model: Path, weights: Path) -> None:
    from actors.engines.base import TurnRequest
    from actors.engines.torch.engine import TorchEngine

    engine = TorchEngine(
        model, max_rollouts=2, kv_tokens=256, device=device, dtype="float32", initial_policy=PolicyVersion(0, 0)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for version in (0, 1):
            request = TurnRequest(
                rollout=f"trial-{version}",
                tokens=TOKENS,
                max_tokens=4,
                temperature=1.0,
                seed=version,
                stop_tokens=frozenset(),
            )
            await engine.generate(request)
            engine.release(request.rollout)
            await engine.load_weights(weights, PolicyVersion(0, 1))
        nursery.cancel_scope.cancel()


def _rates(device: str) -> str:
    import torch

    from agent_rl.learning.rates import rates_text

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return rates_text(torch.device(device))


def main() -> int:
    """Try the device that the command line names."""
    with tempfile.TemporaryDirectory(prefix="agent-rl-doctor-") as folder:
        try:
            try_device(sys.argv[1], Path(folder))
            sys.stdout.write(_rates(sys.argv[1]))
        except Exception as raised:  # noqa: BLE001 - whatever fails on a machine is what its user wants to know
            fault: BaseException = raised
            while isinstance(fault, BaseExceptionGroup):
                fault = fault.exceptions[0]
            sys.stdout.write(f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:500])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
