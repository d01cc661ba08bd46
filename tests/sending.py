"""Weights that are sent into an engine: what each engine that takes them promises, and a learner's ranks as processes.

The processes send a model's weights by gloo, and one of them may be killed on its way.

``python -m tests.sending MODEL EPOCH VERSION SHARD WORKERS [KILLED BUCKETS]`` writes the offer as JSON, and ends
when the weights were sent, or couldn't be. Rank ``KILLED`` is killed before the bucket after ``BUCKETS``. With several
ranks each holds a part of the model, none has it whole, and they also write ``file.safetensors`` beside the model.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import structlog
import trio
from safetensors.torch import load_file

from actors.engines.base import EngineError
from actors.weights import transfer
from actors.weights.kept import KeptShares, KeptWeights
from actors.weights.transfer import TransferError
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.parallel import MeshSizes
from agent_rl.learning import ranks as joining
from agent_rl.learning import sharding
from agent_rl.learning.exporting import Shares
from agent_rl.messages import PolicyVersion, TransferOffer, TransferWanted
from agent_rl_contract.engine import FIRST_POLICY, Subject, random_prompt, save_other_weights, turn

BUCKET = 4096
"""Bytes: a tiny model goes in some twenty buckets."""
FILE = "file.safetensors"


class Senders(NamedTuple):
    """How a learner's ranks hold the model, and who of them is killed before the bucket after so many."""

    shard: int = 1
    killed: tuple[int, int] | None = None


ALONE = Senders()


@contextmanager
def sending(
    model: Path, policy: PolicyVersion, senders: Senders = ALONE, *, workers: int = 1
) -> Iterator[TransferOffer]:
    """What such processes offer; at the end they have ended by themselves, or one was killed as it was to be."""
    killed = () if senders.killed is None else senders.killed
    given = [policy.epoch, policy.version, senders.shard, workers, *killed]
    command = [sys.executable, "-W", "ignore", "-m", "tests.sending", str(model), *map(str, given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        offered: dict[str, Any] = json.loads(process.stdout.readline())
        names, shapes, dtypes = offered.pop("names"), offered.pop("shapes"), offered.pop("dtypes")
        yield TransferOffer(
            **offered, names=tuple(names), shapes=tuple(tuple(shape) for shape in shapes), dtypes=tuple(dtypes)
        )
        assert process.wait(60.0) == (0 if senders.killed is None else -signal.SIGKILL)


def kill_after(buckets: int) -> None:
    """Have this process die as a killed rank does, in the midst of a policy."""
    send, left = transfer._Group.send, iter(range(buckets))

    def counted(group: Any, content: Any, worker: int) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        send(group, content, worker)

    transfer._Group.send = counted


async def check_sent_weights(subject: Subject) -> None:
    """What is sent is served token for token; of a sender that dies, and of what does not fit, nothing is."""
    folder, prompt = subject.model_path.parent, random_prompt(0, 12)
    lost, sent = PolicyVersion(3, 1), PolicyVersion(3, 2)
    save_other_weights(subject, folder / "lost", seed=21)
    reference = save_other_weights(subject, folder / "sent", seed=22)
    with sending(folder / "lost", lost, Senders(killed=(0, 9))) as of_killed, sending(folder / "sent", sent) as offer:
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


async def check_weights_of_several_ranks(subject: Subject, *, workers: int = 1) -> None:
    """What ranks send that hold parts of the model is served; of ranks of which one dies midway, nothing is."""
    folder, prompt = subject.model_path.parent, random_prompt(0, 12)
    lost, sent = PolicyVersion(3, 1), PolicyVersion(3, 2)
    save_other_weights(subject, folder / "lost", seed=23)
    reference = save_other_weights(subject, folder / "sent", seed=24)
    with (
        sending(folder / "lost", lost, Senders(shard=2, killed=(1, 3)), workers=workers) as of_killed,
        sending(folder / "sent", sent, Senders(shard=2), workers=workers) as offer,
    ):
        async with subject.running() as engine:
            assert engine.ranks == workers
            with pytest.raises(TransferError, match="weights by gloo"):
                await engine.load_weights(of_killed, lost)
            assert engine.policy == FIRST_POLICY
            result = await engine.generate(turn("before", prompt, 8))
            assert result.tokens.tolist() == subject.reference.greedy(prompt, 8)
            assert offer.senders == 2
            await engine.load_weights(offer, sent)
            result = await engine.generate(turn("after", prompt, 8))
            assert result.tokens.tolist() == reference.greedy(prompt, 8)


def share(
    model: Path, sizes: MeshSizes, place: socket.socket | joining.Place, rank: int
) -> tuple[joining.JoinedRanks, Shares]:
    """The shares of one of several ranks, copied as a learner copies them; and the same in a file."""
    from agent_rl.learning.trainer import Trainer

    ranks = joining.joined(rank, sizes, place=place, device="cpu", seconds=120.0, meeting_seconds=120.0)
    options = {"dtype": "float32", "device": "cpu", "threads": 1, "seed": 0, "algorithm": Algorithm()}
    trainer = Trainer(model, ranks=ranks, tokenizer=object(), **options)
    sharding.gathered = refused
    shares = trainer.share_weights(1, on_device=False)
    trainer.write_weights(1, model / FILE)
    own = sum(make().untyped_storage().nbytes() for _, make in shares.parts.values())
    whole = sum(shape.numel() * dtype.itemsize for shape, dtype in shares.layout.values())
    assert own < 0.6 * whole, f"rank {rank} keeps {own} of {whole} bytes"
    return ranks, shares


def refused(tensor: Any) -> Any:
    raise AssertionError(f"a whole tensor of {list(tensor.shape)} is gathered")


def main(model: Path, policy: PolicyVersion, sizes: MeshSizes, workers: int, killed: tuple[int, ...]) -> None:
    """Be the first rank of a learner; start the other one, share, offer, send."""
    place = joining.meeting_place() if sizes.ranks > 1 else None
    other = os.fork() if place is not None else -1
    if killed and killed[0] == (1 if other == 0 else 0):
        kill_after(killed[1])
    if place is None:
        trio.run(offering, policy, workers, Shares.whole(load_file(model / "model.safetensors")), None)
        return
    if other == 0:
        where = place.getsockname()[:2]
        place.close()
        ranks, shares = share(model, sizes, where, 1)
        sent = KeptShares(ranks, "cpu", lambda error: os._exit(1))
        sent.keep(policy.version, shares)
        ranks.broadcast(b"")  # rank 0 has sent its shares, or could not
        sent.finish()
        os._exit(0)
    ranks, shares = share(model, sizes, place, 0)
    trio.run(offering, policy, workers, shares, ranks)
    if not killed:
        ranks.broadcast(b"end")
    _, status = os.waitpid(other, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.WEXITSTATUS(status))


async def offering(policy: PolicyVersion, workers: int, shares: Shares, ranks: joining.JoinedRanks | None) -> None:
    """Keep, offer, send."""
    async with trio.open_nursery() as nursery:
        context: Any = SimpleNamespace(nursery=nursery, in_thread=trio.to_thread.run_sync, now=trio.current_time)
        log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        kept = KeptWeights(context, "gloo", "127.0.0.1", "cpu", log)
        if ranks is not None:
            kept.join(ranks, "cpu")
        kept.keep(policy, shares)
        sys.stdout.write(json.dumps(asdict(kept.offer(TransferWanted(policy, workers)))) + "\n")
        sys.stdout.flush()
    kept.dismiss()


if __name__ == "__main__":
    transfer.SECONDS = 300.0  # an engine may take long to start on a busy machine
    transfer.ROUND_BYTES = transfer.LEAST_BUCKET = BUCKET
    numbers = [int(number) for number in sys.argv[2:]]
    main(
        Path(sys.argv[1]),
        PolicyVersion(numbers[0], numbers[1]),
        MeshSizes(shard=numbers[2], replicate=1),
        numbers[3],
        tuple(numbers[4:]),
    )
