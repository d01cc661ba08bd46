"""Sends weights from a learner's ranks into an engine's processes: by NCCL (RCCL on ROCm) between GPUs, else by gloo.

::

    generator --TransferWanted (call)--> learner: listens at a port, answers with the port and the list of tensors
              <--TransferOffer----------
    learner's ranks 0 .. s-1, each in a thread of its own ==its parts, in buckets==> engine's processes s .. s+w-1
                                                                                     that pass them on to each other

Each transfer has its own process groups, made for one policy and one engine. A process that dies or does not come costs
this one transfer only. `actors.weights.resharding` says who sends what to whom. A receiver gets a policy completely or
not at all: the last operation tells the receiver that everything has come to all, and only then it may load the policy.
The tests use gloo; on GPUs only the library differs.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from actors.weights.resharding import Box, Round, Whole, plan
from agent_rl.messages import PolicyPublished, TransferOffer

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.config.topology import Topology
    from agent_rl.learning.exporting import Shares

LINK = "transfer"
"""The generator's link to the learner, where the topology has one."""
BACKENDS = ("nccl", "gloo")
"""The values of ``weights_in`` that mean a transfer. They are torch's names of the libraries."""
SECONDS = 30.0
"""Seconds that one end waits for the other: first for the connection, then for each bucket."""
ROUND_BYTES = 64 << 20
"""The most bytes that all ranks of the learner together send at once: buffers beside the weights are as large."""
LEAST_BUCKET = 1 << 20
"""Bytes that each of many ranks may send at once all the same."""
ROOM_LEFT = 1 << 30
"""Bytes that stay free on a GPU that holds received tensors until all have come."""
NCCL_ENVIRONMENT = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""With these variables a lost peer raises an error in the waiting call. By default torch ends the whole process."""
HERE, GONE = "here", "gone"
"""The message of a process that holds no tensors, at the meeting place: a worker, and a rank that lacks the policy."""


class TransferError(Exception):
    """The weights have not come. The engine keeps its policy, and may ask again."""


def is_transfer(published: PolicyPublished) -> bool:
    """Whether the policy is sent over a process group rather than read from a file."""
    return urlsplit(published.uri).scheme in BACKENDS


def way_of(topology: Topology) -> str:
    """The library with which the topology's learner sends weights; empty when the learner publishes files."""
    ways = (str(entry.settings.get("weights_in")) for entry in topology.actors.values())
    return next((way for way in ways if way in BACKENDS), "")


def unavailable(backend: str) -> str:
    """Why this library cannot be used on this host; empty when it can."""
    import torch
    from torch import distributed

    if backend == "nccl" and not torch.cuda.is_available():
        return "torch finds no GPU here"
    return "" if distributed.is_backend_available(backend) else f"torch was built without {backend}"


def send(
    offer: TransferOffer, shares: Shares, device: str, *, rank: int = 0, listener: socket.socket | None = None
) -> int:
    """Send a rank's shares to all workers of an offer, in a thread; returns the bytes that this rank has sent.

    The tensors must not change meanwhile.
    ``device`` is that of the tensors; rank 0 has the ``listener``. Raises TransferError when a process does not come,
    or leaves before the end.
    """
    import torch

    tensors = [Whole(name, tuple(shape), dtype.itemsize) for name, (shape, dtype) in shares.layout.items()]
    held = [_box(shares.parts[each.name][0]) for each in tensors]
    with _joined(offer, rank, _device_of(offer, device), json.dumps(held), listener) as group:
        buffer = torch.empty(offer.bucket_bytes, dtype=torch.uint8, device=group.device)
        for bucket in (bucket for each in group.plan(tensors) for bucket in each if bucket.sender == rank):
            for piece in bucket.pieces:
                part, make = shares.parts[piece.name]
                within = (
                    slice(start - own.start, end - own.start) for (start, end), own in zip(piece.box, part, strict=True)
                )
                values = make()[tuple(within)]
                buffer[piece.start : piece.end].view(values.dtype).view(values.shape).copy_(values)
            group.send(buffer[: bucket.size], bucket.worker)
        group.end()
        return group.sent


def decline(offer: TransferOffer, rank: int) -> None:
    """Say as a rank that it no longer has the policy of an offer: then nobody waits for it. Raises TransferError."""
    with _faults(offer):
        _store(offer).set(_key(rank), GONE)


def receive(offer: TransferOffer, worker: int, device: str) -> dict[str, Tensor]:
    """Receive the tensors of an offer by name, in a thread on ``device``, as one of its workers (from 0).

    The tensors stay on the GPU if it has room for all, else they go to host memory. Raises TransferError when not all
    have come; then nothing is returned.
    """
    import torch

    types = [getattr(torch, dtype) for dtype in offer.dtypes]
    tensors = [
        Whole(name, shape, dtype.itemsize) for name, shape, dtype in zip(offer.names, offer.shapes, types, strict=True)
    ]
    with _joined(offer, offer.senders + worker, _device_of(offer, device), HERE) as group:
        kept_on = group.device if _has_room(offer, group.device) else torch.device("cpu")
        found = {
            name: torch.empty(shape, dtype=dtype, device=kept_on)
            for (name, shape, _), dtype in zip(tensors, types, strict=True)
        }
        size = -(-offer.senders // offer.ranks) + 1, offer.bucket_bytes
        buffers = torch.empty(size, dtype=torch.uint8, device=group.device)
        for each in group.plan(tensors):
            own = [bucket.sender for bucket in each if bucket.worker == worker]
            places = {sender: buffers[number] for number, sender in enumerate(own, 1)}
            for bucket in (bucket for bucket in each if bucket.worker == worker):
                group.expect(places[bucket.sender][: bucket.size], bucket.sender)
            group.wait()
            for bucket in each:
                content = places.get(bucket.sender, buffers[0])[: bucket.size]
                group.pass_on(content, bucket.worker)
                for piece in bucket.pieces:
                    part = found[piece.name][tuple(slice(*bounds) for bounds in piece.box)]
                    part.copy_(content[piece.start : piece.end].view(part.dtype).view(part.shape))
        group.end()
    return found


def bucket_bytes(senders: int) -> int:
    """The most bytes that each of so many ranks sends at once."""
    return max(LEAST_BUCKET, ROUND_BYTES // senders)


def _box(part: Sequence[slice]) -> Box:
    return tuple((each.start, each.stop) for each in part)


def _device_of(offer: TransferOffer, device: str) -> Any:
    import torch

    fault = unavailable(offer.backend)
    if fault:
        raise TransferError(f"weights cannot be transferred by {offer.backend}: {fault}")
    return torch.device(device if offer.backend == "nccl" else "cpu")


def _has_room(offer: TransferOffer, device: Any) -> bool:
    import torch

    if device.type == "cpu":
        return True
    tensors = zip(offer.shapes, offer.dtypes, strict=True)
    size = sum(math.prod(shape) * getattr(torch, dtype).itemsize for shape, dtype in tensors)
    return bool(torch.cuda.mem_get_info(device)[0] - size > ROOM_LEFT)


class _Group:
    """The processes of one transfer: the learner's ranks, then the engine's workers."""

    def __init__(self, offer: TransferOffer, held: list[list[Box]], device: Any) -> None:
        """``held``: of each of the learner's ranks, its box of each tensor."""
        self._offer = offer
        self._held = held
        self._together: Any = None
        self._workers: Any = None
        """A group of the engine's processes alone; None in others, and where there is only one."""
        self._expected: list[Any] = []
        self.device = device
        self.sent = 0
        """Bytes."""

    def connect(self, rank: int, store: Any) -> None:
        """Reach the other processes as the one of this number."""
        senders, workers = self._offer.senders, self._offer.ranks
        self._together = _process_group(self._offer, rank, senders + workers, store)
        if rank >= senders and workers > 1:
            self._workers = _process_group(self._offer, rank - senders, workers, _within(store, "workers"))

    def plan(self, tensors: Sequence[Whole]) -> list[Round]:
        """The rounds of the transfer. The same in all processes."""
        try:
            return plan(tensors, self._held, self._offer.ranks, self._offer.bucket_bytes)
        except ValueError as error:
            raise TransferError(f"weights by {self._offer.backend}: {error}") from error

    def send(self, content: Tensor, worker: int) -> None:
        """Send bytes to a worker; returns when done."""
        self._together.send([content], self._offer.senders + worker, 0).wait()
        self.sent += content.nbytes

    def expect(self, content: Tensor, sender: int) -> None:
        """Overwrite bytes with those of a rank of the learner, until `wait` has returned."""
        self._expected.append(self._together.recv([content], sender, 0))

    def wait(self) -> None:
        """Wait until all that is expected has come."""
        while self._expected:
            self._expected.pop(0).wait()

    def pass_on(self, content: Tensor, worker: int) -> None:
        """Send a worker's bytes to all other workers; each of them calls this."""
        if self._workers is not None:
            self._workers.broadcast(content, worker).wait()

    def end(self) -> None:
        """Wait until every process has sent or received everything. Only then may a worker load the weights."""
        import torch

        here = torch.ones(1, dtype=torch.int32, device=self.device)
        self._together.allreduce(here).wait()
        if int(here) != (size := self._offer.senders + self._offer.ranks):  # an aborted operation may not raise
            raise RuntimeError(f"{int(here)} of {size} processes came to the end")

    def leave(self) -> None:
        """Close the connections, so that the others notice. The traceback of an exception would keep them open."""
        if self.device.type == "cuda":  # without abort, NCCL waits for pending operations
            for group in (self._together, self._workers):
                if group is not None:
                    group.abort()
        self._expected.clear()
        self._together = self._workers = None


@contextmanager
def _joined(
    offer: TransferOffer, rank: int, device: Any, says: str, listener: socket.socket | None = None
) -> Iterator[_Group]:
    """Join an offer as a process, which ``says`` what it holds, or `HERE`. Raises errors of torch as TransferError."""
    from torch import cuda

    with _faults(offer), ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(cuda.device(device))
            if rank < offer.senders:  # on its own stream, parallel to training
                stack.enter_context(cuda.stream(cuda.Stream(device)))  # type: ignore[no-untyped-call]
        store = _store(offer, listener)
        held = _meet(offer, store, rank, says)
        group = _Group(offer, held, device)
        stack.callback(group.leave)
        group.connect(rank, store)
        yield group


@contextmanager
def _faults(offer: TransferOffer) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        fault = str(error).partition("\n")[0]
        raise TransferError(f"weights by {offer.backend}, at {offer.address}:{offer.port}: {fault}") from error


def _store(offer: TransferOffer, listener: socket.socket | None = None) -> Any:
    """The store where the processes of an offer meet. The prefix, the offer's key, keeps those of others out."""
    from torch import distributed

    torch: Any = distributed
    served = {} if listener is None else {"master_listen_fd": listener.detach()}
    size, timeout, serves = offer.senders + offer.ranks, timedelta(seconds=SECONDS), listener is not None
    server = torch.TCPStore(offer.address, offer.port, size, serves, timeout, wait_for_workers=False, **served)
    return _within(server, offer.key)


def _within(store: Any, prefix: str) -> Any:
    from torch import distributed

    torch: Any = distributed
    return torch.PrefixStore(prefix, store)


def _meet(offer: TransferOffer, store: Any, rank: int, says: str) -> list[list[Box]]:
    """Wait until all processes have come; returns what each rank of the learner holds of each tensor."""
    store.set(_key(rank), says)
    store.wait([_key(each) for each in range(offer.senders + offer.ranks)], timedelta(seconds=SECONDS))
    said = [store.get(_key(each)).decode() for each in range(offer.senders)]
    if GONE in said:
        raise TransferError(f"rank {said.index(GONE)} of the learner no longer has the policy")
    return [[tuple((start, end) for start, end in box) for box in json.loads(each)] for each in said]


def _key(rank: int) -> str:
    return f"process {rank}"


def _process_group(offer: TransferOffer, rank: int, size: int, store: Any) -> Any:
    from torch import distributed

    torch: Any = distributed
    timeout = timedelta(seconds=SECONDS)
    if offer.backend == "gloo":
        options = torch.ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to say by which address it is reached
        options._devices = [torch.ProcessGroupGloo.create_device(hostname=_own_address(offer))]  # noqa: SLF001
        options._timeout = timeout  # noqa: SLF001
        return torch.ProcessGroupGloo(store, rank, size, options)
    options = torch.ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001
    with _environment(NCCL_ENVIRONMENT):
        return torch.ProcessGroupNCCL(store, rank, size, options)


def _own_address(offer: TransferOffer) -> str:
    """The address of this host on the route to the learner."""
    to: Any
    family, kind, protocol, _, to = socket.getaddrinfo(offer.address, offer.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as towards:
        towards.connect(to)  # sends nothing
        return str(towards.getsockname()[0])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
