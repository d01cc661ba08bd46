"""Weights that are sent into an engine: what each engine that takes them promises, and a learner's end as a process of
its own.

The process sends a file's weights by gloo, and may be killed on its way.

``python -m tests.sending FILE EPOCH VERSION [TENSORS]`` writes the offer as JSON, and ends when the weights were sent,
or couldn't be; it is killed before the tensor after ``TENSORS``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
from safetensors.torch import load_file

from actors.engines.base import EngineError
from actors.engines.testing import FIRST_POLICY, Subject, random_prompt, save_other_weights, turn
from actors.weights import transfer
from actors.weights.transfer import KeptWeights, TransferError
from agent_rl.messages import Policy, TransferOffer, TransferWanted


@contextmanager
def sending(path: Path, policy: Policy, *, killed_after: int | None = None) -> Iterator[TransferOffer]:
    """What such a process offers; at the end it has ended by itself, or was killed as it was to be."""
    given = [str(policy.epoch), str(policy.version), *([] if killed_after is None else [str(killed_after)])]
    command = [sys.executable, "-W", "ignore", "-m", "tests.sending", str(path), *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        offered: dict[str, Any] = json.loads(process.stdout.readline())
        names, shapes, dtypes = offered.pop("names"), offered.pop("shapes"), offered.pop("dtypes")
        yield TransferOffer(
            **offered, names=tuple(names), shapes=tuple(tuple(shape) for shape in shapes), dtypes=tuple(dtypes)
        )
        assert process.wait(60.0) == (0 if killed_after is None else -signal.SIGKILL)


def kill_after(tensors: int) -> None:
    """Have this process die as a killed learner does, in the midst of a policy."""
    broadcast, left = transfer._Group.broadcast, iter(range(tensors))

    def counted(group: Any, tensor: Any) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        broadcast(group, tensor)

    transfer._Group.broadcast = counted  # type: ignore[method-assign]


async def check_sent_weights(subject: Subject) -> None:
    """What is sent is served token for token; of a sender that dies, and of what does not fit, nothing is."""
    folder, prompt = subject.model_path.parent, random_prompt(0, 12)
    lost, sent = Policy(3, 1), Policy(3, 2)
    save_other_weights(subject, folder / "lost", seed=21)
    reference = save_other_weights(subject, folder / "sent", seed=22)
    with (
        sending(folder / "lost" / "model.safetensors", lost, killed_after=9) as of_killed,
        sending(folder / "sent" / "model.safetensors", sent) as offer,
    ):
        async with subject.running() as engine:
            assert engine.ranks == 1
            name, shape = offer.names[5], offer.shapes[5]
            faulty = {
                name: replace(offer, shapes=(*offer.shapes[:5], (*shape, 1), *offer.shapes[6:])),
                offer.names[0]: replace(offer, dtypes=("float16", *offer.dtypes[1:])),
                f"{offer.names[-1]} is missing": replace(
                    offer, names=offer.names[:-1], shapes=offer.shapes[:-1], dtypes=offer.dtypes[:-1]
                ),
            }
            for word, each in faulty.items():
                with pytest.raises(EngineError, match=re.escape(word)):
                    await engine.load_weights(each, lost)
            with pytest.raises(TransferError, match="weights by gloo"):
                await engine.load_weights(of_killed, lost)
            assert engine.policy == FIRST_POLICY
            result = await engine.generate(turn("before", prompt, 8))
            assert result.tokens.tolist() == subject.reference.greedy(prompt, 8)
            await engine.load_weights(offer, sent)
            assert engine.policy == sent
            result = await engine.generate(turn("after", prompt, 8))
            assert result.tokens.tolist() == reference.greedy(prompt, 8)
            assert result.policies.tolist() == [[sent.epoch, sent.version]] * 8


async def main(path: str, epoch: str, version: str, *tensors: str) -> None:
    """Keep, offer, send."""
    transfer.SECONDS = 300.0  # an engine may take long to start on a busy machine
    for count in tensors:
        kill_after(int(count))
    policy = Policy(int(epoch), int(version))
    async with trio.open_nursery() as nursery:
        context: Any = SimpleNamespace(nursery=nursery, in_thread=trio.to_thread.run_sync, now=trio.current_time)
        log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        kept = KeptWeights(context, "gloo", "127.0.0.1", "cpu", log)
        kept.keep(policy, load_file(path))
        sys.stdout.write(json.dumps(asdict(kept.offer(TransferWanted(policy, 1)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
