"""Weights sent to the ranks of an engine: all have everything or nobody has anything, and no rank of another transfer
is let in.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import torch
import trio
from structlog.testing import capture_logs

from actors.engines.base import EngineRefusedError
from actors.learner import Learner
from actors.learner.model import refuse_unavailable
from actors.rollout_generator import RolloutGenerator
from actors.weights import kept as keeping
from actors.weights import transfer
from actors.weights.kept import KeptShares, KeptWeights
from actors.weights.resharding import ALIGNED
from actors.weights.transfer import TransferError, decline, is_transfer, receive, send
from agent_rl.learning.exporting import Shares
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import PolicyPublished, PolicyVersion, TransferOffer, TransferWanted
from tests.actors.topologies import micro

WEIGHTS = {
    "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.linspace(-1, 1, 7).to(torch.bfloat16),
    "scalar": torch.tensor(5, dtype=torch.int64),
    "nothing": torch.zeros(0, 3),
    "turned": torch.arange(6, dtype=torch.float64).reshape(2, 3).t(),
}


STORE = object()
BUCKET = 40
"""Bytes: less than the matrix, so that tensors come in pieces."""
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def offered(senders: int, workers: int, address: str = "127.0.0.1") -> tuple[socket.socket, TransferOffer]:
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    return listener, TransferOffer(
        backend="gloo",
        address=address,
        port=listener.getsockname()[1],
        key="key",
        senders=senders,
        ranks=workers,
        bucket_bytes=BUCKET,
        names=tuple(WEIGHTS),
        shapes=tuple(tuple(tensor.shape) for tensor in WEIGHTS.values()),
        dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in WEIGHTS.values()),
    )


def an_offer(senders: int, workers: int) -> TransferOffer:
    """One at which nobody listens."""
    listener, offer = offered(senders, workers)
    listener.close()
    return offer


def shares(rank: int, senders: int) -> Shares:
    """The parts of a rank of so many: rows of some tensors, columns of the turned one, the scalar whole."""
    whole, parts = Shares.whole(WEIGHTS), {}
    for name, tensor in WEIGHTS.items():
        part = [slice(0, size) for size in tensor.shape]
        if part:
            dimension = len(part) - 1 if name == "turned" else 0
            size = -(-tensor.shape[dimension] // senders)
            start, end = (min(tensor.shape[dimension], number * size) for number in (rank, rank + 1))
            part[dimension] = slice(start, end)
        parts[name] = tuple(part), tensor[tuple(part)].clone().detach
    return Shares(whole.layout, parts)


def join(
    threads: ThreadPoolExecutor, listener: socket.socket, offer: TransferOffer, *numbers: int
) -> list[Future[Any]]:
    """These processes of a transfer: the ranks of the learner, and after them the workers."""
    made: list[Future[Any]] = []
    for number in numbers:
        if number < offer.senders:
            own, at = shares(number, offer.senders), None if number else listener
            made.append(threads.submit(send, offer, own, "cpu", rank=number, listener=at))
        else:
            made.append(threads.submit(receive, offer, number - offer.senders, "cpu"))
    return made


def all_fail(futures: list[Future[Any]], said: str = r"weights by gloo, at 127\.0\.0\.1:") -> None:
    for future in futures:
        with pytest.raises(TransferError, match=said):
            future.result()


@pytest.mark.parametrize(
    ("senders", "workers", "address"),
    [(1, 2, "127.0.0.1"), (1, 1, "localhost"), (1, 2, "::1"), (2, 1, "127.0.0.1"), (3, 2, "127.0.0.1")],
)
def test_every_worker_has_every_tensor_bit_for_bit_and_each_value_leaves_the_learner_once(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, senders: int, workers: int, address: str
) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    sizes: list[int] = []
    one_send = transfer._Group.send

    def counted(group: Any, content: torch.Tensor, worker: int) -> None:
        sizes.append(content.nbytes)
        one_send(group, content, worker)

    monkeypatch.setattr(transfer._Group, "send", counted)
    listener, offer = offered(senders, workers, address)
    processes = join(threads, listener, offer, *range(senders + workers))
    for future in processes[senders:]:
        received = future.result()
        assert list(received) == list(WEIGHTS)
        for name, tensor in WEIGHTS.items():
            assert received[name].dtype == tensor.dtype
            assert torch.equal(received[name], tensor)
    for future in processes[:senders]:
        future.result()
    content = sum(tensor.nbytes for tensor in WEIGHTS.values())
    assert content <= sum(sizes) < content + ALIGNED * senders * len(WEIGHTS) + ALIGNED * len(sizes)
    assert max(sizes) <= BUCKET


@pytest.mark.parametrize("gone", [1, 3])
def test_nobody_has_anything_when_a_process_leaves_before_the_end(threads: ThreadPoolExecutor, gone: int) -> None:
    """A rank of the learner, or a worker."""

    def leaves(offer: TransferOffer) -> None:
        held = [transfer._box(part) for part, _ in shares(1, 2).parts.values()]
        says = json.dumps(held) if gone < offer.senders else transfer.HERE
        with transfer._joined(offer, gone, torch.device("cpu"), says) as group:
            if gone < offer.senders:
                group.send(torch.empty(1, dtype=torch.uint8), 1)
            else:
                group.expect(torch.empty(BUCKET, dtype=torch.uint8), 1)

    listener, offer = offered(2, 2)
    others = join(threads, listener, offer, *({0, 1, 2, 3} - {gone}))
    threads.submit(leaves, offer).result()
    all_fail(others)


def test_a_rank_that_no_longer_has_the_policy_is_not_waited_for(threads: ThreadPoolExecutor) -> None:
    listener, offer = offered(2, 1)
    others = join(threads, listener, offer, 0, 2)
    threads.submit(decline, offer, 1).result()
    all_fail(others, "rank 1 of the learner no longer has the policy")


def test_ranks_that_do_not_hold_each_value_once_send_nothing(threads: ThreadPoolExecutor) -> None:
    listener, offer = offered(2, 1)
    others = join(threads, listener, offer, 0, 2)
    all_fail([*others, threads.submit(send, offer, shares(2, 3), "cpu", rank=1)], r"do not hold half \[7\] once")


@pytest.mark.parametrize("late", [lambda offer: None, lambda offer: receive(replace(offer, key="another"), 1, "cpu")])
def test_who_does_not_come_or_is_of_another_transfer_is_not_waited_for_for_ever(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, late: Callable[[TransferOffer], Any]
) -> None:
    monkeypatch.setattr(transfer, "SECONDS", 1.0)
    listener, offer = offered(1, 2)
    others = join(threads, listener, offer, 0, 1)
    other = threads.submit(late, offer)
    all_fail(others)
    if other.exception() is not None:
        all_fail([other])


async def test_the_newest_policy_alone_is_kept_and_offered_once_to_each_who_asks() -> None:
    sent: list[Any] = []

    async def in_thread(*_: Any, **__: Any) -> None:
        sent.append(trio.current_time())

    log: Any = structlog.get_logger()
    async with trio.open_nursery() as nursery:
        context: Any = SimpleNamespace(nursery=nursery, in_thread=in_thread, now=trio.current_time)
        kept = KeptWeights(context, "gloo", "127.0.0.1", "cpu", log)
        older, newer = PolicyVersion(1, 1), PolicyVersion(2, 0)
        assert kept.offer(TransferWanted(older, 1)).port == 0
        for policy in (older, newer):
            announced = PolicyPublished(policy, *kept.keep(policy, Shares.whole(WEIGHTS))[:1], 0, 0)
            assert is_transfer(announced)
            assert not is_transfer(replace(announced, uri=f"file:///{announced.uri}"))
        assert kept.offer(TransferWanted(older, 1)).port == 0
        first, second = (kept.offer(TransferWanted(newer, ranks)) for ranks in (1, 4))
        assert (first.ranks, second.ranks) == (1, 4)
        assert min(first.port, second.port) > 0
        assert first.key != second.key
        assert dict(zip(first.names, first.shapes, strict=True))["turned"] == (3, 2)
        kept.remove()
        assert kept.offer(TransferWanted(newer, 1)).port == 0
    assert len(sent) == 2


@pytest.mark.parametrize(("kept", "done"), [(None, "decline"), (1, "decline"), (2, "send"), (3, "decline")])
def test_a_rank_sends_the_version_that_rank_0_calls_for_and_no_other(
    monkeypatch: pytest.MonkeyPatch, kept: int | None, done: str
) -> None:
    did: list[Any] = []
    monkeypatch.setattr(keeping, "SECONDS", 0.01)
    monkeypatch.setattr(keeping, "send", lambda offer, shares, device, rank: did.append(("send", shares, rank)))
    monkeypatch.setattr(keeping, "decline", lambda offer, rank: did.append(("decline", None, rank)))
    ranks: Any = SimpleNamespace(rank=1)
    shares = KeptShares(ranks, "cpu", did.append)
    shares._kept = None if kept is None else (kept, "shares")  # type: ignore[assignment]
    shares._send(2, an_offer(1, 1))
    assert did == [(done, "shares" if done == "send" else None, 1)]


def test_other_ranks_hear_every_call_in_its_order_and_old_ones_leave_the_store() -> None:
    store: dict[str, bytes] = {}
    made: Any = SimpleNamespace(
        set=lambda key, text: store.update({key: text.encode()}),
        get=store.__getitem__,
        delete_key=lambda key: store.pop(key, None),
        wait=lambda keys, timeout: None,
    )
    ranks: Any = SimpleNamespace(another_store=lambda: made)
    calls, heard = keeping._Calls(ranks), keeping._Calls(ranks)
    offer = an_offer(2, 1)
    for version in range(2 * keeping.OLD_CALLS):
        calls.call(version, replace(offer, port=version))
        called = heard.next()
        assert called is not None
        assert (called[0], called[1].port, called[1].names) == (version, version, [])
    assert len(store) == keeping.OLD_CALLS
    calls.end()
    assert heard.next() is None


@pytest.mark.parametrize("came", [1, 4, 5, 6])
def test_only_when_all_processes_came_to_the_end_is_a_policy_there(came: int) -> None:
    group = transfer._Group(an_offer(2, 3), [], torch.device("cpu"))
    group._together = SimpleNamespace(allreduce=lambda here: SimpleNamespace(wait=lambda: here.fill_(came)))
    with nullcontext() if came == 5 else pytest.raises(RuntimeError, match=f"{came} of 5 processes came to the end"):
        group.end()


def test_many_ranks_share_the_room_of_a_round() -> None:
    assert [transfer.bucket_bytes(senders) >> 20 for senders in (1, 4, 64, 65, 1000)] == [64, 16, 1, 1, 1]


def test_without_a_port_to_listen_at_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptWeights(SimpleNamespace(), "gloo", "127.0.0.1", "cpu", structlog.get_logger())  # type: ignore[arg-type]
    kept.keep(PolicyVersion(1, 1), Shares.whole(WEIGHTS))

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "create_server", full)
    assert kept.offer(TransferWanted(PolicyVersion(1, 1), 1)).port == 0


def test_a_group_by_nccl_has_a_deadline_and_its_failure_is_no_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How torch is called for it, against a stand-in: its own reads these variables when it is made."""
    made: list[tuple[int, int, float, dict[str, str | None]]] = []

    class Group:
        Options = SimpleNamespace

        def __init__(self, store: object, rank: int, size: int, options: SimpleNamespace) -> None:
            assert store is STORE
            seen = {name: os.environ.get(name) for name in transfer.NCCL_ENVIRONMENT}
            made.append((rank, size, options._timeout.total_seconds(), seen))

    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "0")
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    offer = TransferOffer("nccl", "127.0.0.1", 1, "key", 1, 2, 1, (), (), ())
    transfer._process_group(offer, 1, 3, STORE)
    assert made == [(1, 3, transfer.SECONDS, transfer.NCCL_ENVIRONMENT)]
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "0"
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ


def test_what_came_stays_on_the_gpu_only_where_all_of_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = TransferOffer(
        "nccl", "127.0.0.1", 1, "key", 1, 1, 1, ("a", "b"), ((1 << 20, 3), ()), ("bfloat16", "float32")
    )
    size = 2 * 3 * (1 << 20) + 4
    for free, room in ((size + transfer.ROOM_LEFT + 1, True), (size + transfer.ROOM_LEFT, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 1 << 40))
        assert transfer._has_room(offer, torch.device("cuda", 1)) == room
    assert transfer._has_room(offer, torch.device("cpu"))


def on_trial(cls: Any, role: str, folder: Path, way: str, **settings: Any) -> Any:
    topology = micro(folder, learner={"weights_in": way}, rollout_generator=settings)
    return cls.on_trial(topology, cls.Settings(**topology.actors[role].settings))


@pytest.mark.parametrize(
    ("way", "engine", "told"),
    [
        ("gloo", "agent_rl_contract.scripted:ScriptedEngine", "ScriptedEngine only takes weights from files"),
        pytest.param("nccl", "actors.engines.torch:TorchEngine", "torch finds no GPU here", marks=no_gpu),
    ],
)
def test_a_generator_says_at_start_that_it_cannot_be_sent_weights(
    tmp_path: Path, way: str, engine: str, told: str
) -> None:
    generator = on_trial(RolloutGenerator, "rollout_generator", tmp_path, way, engine=engine)
    said = f'weights_in = "{way}": .*{told}; remove the cause, or choose another'
    with pytest.raises(EngineRefusedError, match=said):
        generator._make_engine(tmp_path, generator.context.settings)


@no_gpu
def test_a_learner_says_at_start_that_it_cannot_send_weights(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingStoppedError, match='weights_in = "nccl": torch finds no GPU here; choose another weights_in'
    ):
        refuse_unavailable(on_trial(Learner, "learner", tmp_path, "nccl").context)


@pytest.mark.parametrize(("way", "warned"), [("gloo", False), ("run_directory", False), ("nccl", True)])
def test_what_no_gpu_has_run_is_called_untested_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, warned: bool
) -> None:
    monkeypatch.setattr(transfer, "unavailable", lambda _: "")
    with capture_logs() as logs:
        refuse_unavailable(on_trial(Learner, "learner", tmp_path, way).context)
    assert [(line["log_level"], line["event"]) for line in logs] == (
        [("warning", "this transfer method has not been tested on a GPU")] if warned else []
    )


@no_gpu
def test_nccl_without_a_gpu_is_refused_before_anything_is_waited_for() -> None:
    listener, offer = offered(1, 1)
    with listener, pytest.raises(TransferError, match="weights cannot be transferred by nccl: torch finds no GPU here"):
        receive(replace(offer, backend="nccl"), 0, "cuda")
