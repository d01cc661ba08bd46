"""Sends weights from the learner's device into engine processes: NCCL (RCCL on ROCm) between GPUs, gloo between CPUs.

::

    generator --TransferWanted (call)--> learner: listens at a port, answers with the port and the list of tensors
              <--TransferOffer----------
    engine's processes, ranks 1..n <==== broadcast, tensor after tensor ==== learner, rank 0, in a thread of its own

Each transfer has its own process group, made for one policy and one engine. A process that dies or does not come costs
this one transfer only. A receiver gets a policy completely or not at all: the last operation tells the receiver that
everything has come, and only then it may load the policy. The tests use gloo; on GPUs only the library differs.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trio

from actors.weights.files import weights_name
from agent_rl.learning.finite import refuse_not_finite
from agent_rl.messages import Policy, PolicyPublished, TransferOffer, TransferWanted

if TYPE_CHECKING:
    from torch import Tensor

    from actors.base import ActorContext
    from agent_rl.config.topology import Topology

LINK = "transfer"
"""The generator's link to the learner, where the topology has one."""
BACKENDS = ("nccl", "gloo")
"""The values of ``weights_in`` that mean a transfer. They are torch's names of the libraries."""
SECONDS = 30.0
"""Seconds that one end waits for the other: first for the connection, then for each tensor."""
ROOM_LEFT = 1 << 30
"""Bytes that stay free on a GPU that holds received tensors until all have come."""
NCCL_ENVIRONMENT = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""With these variables a lost peer raises an error in the waiting call. By default torch ends the whole process."""


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


class KeptWeights:
    """The learner's end: holds the newest published policy, and sends it to every engine that asks."""

    def __init__(self, context: ActorContext, backend: str, address: str, device: str, log: Any) -> None:
        """``address`` is the address at which engines reach this host; kept tensors are on ``device``."""
        self._context = context
        self._backend = backend
        self._address = address
        self._device = device
        self._log = log
        self._kept: tuple[Policy, Mapping[str, Tensor]] | None = None

    def keep(self, policy: Policy, weights: Mapping[str, Tensor]) -> tuple[str, int, int]:
        """Replace the kept weights; returns what to announce. Raises TrainingStoppedError for weights not finite."""
        refuse_not_finite(weights, weights_name(policy))
        self._kept = policy, weights
        return f"{self._backend}:{weights_name(policy)}", 0, 0

    def clean(self, oldest: Policy) -> None:
        """Nothing to do: only one policy is kept."""

    def gone(self, generator: str) -> None:
        """Nothing to do: a lost generator asks again."""

    def remove(self) -> None:
        """The run is over: drop the weights."""
        self._kept = None

    def offer(self, wanted: TransferWanted) -> TransferOffer:
        """Listen for the engine's processes and say where. Port 0: a newer policy took its place, or none exists."""
        nothing = TransferOffer(self._backend, self._address, 0, "", wanted.ranks, (), (), ())
        if self._kept is None or self._kept[0] != wanted.policy:
            return nothing
        weights = self._kept[1]
        try:
            family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
            listener = socket.create_server((self._address, 0), family=family)
        except OSError as error:  # no file descriptor or no port is free
            self._log.warning(
                "policy not offered", version=wanted.policy.version, address=self._address, error=str(error)
            )
            return nothing
        offer = TransferOffer(
            self._backend,
            self._address,
            listener.getsockname()[1],
            secrets.token_hex(16),
            wanted.ranks,
            tuple(weights),
            tuple(tuple(tensor.shape) for tensor in weights.values()),
            tuple(str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()),
        )
        self._context.nursery.start_soon(self._send, wanted.policy, listener, offer, weights)
        return offer

    async def _send(
        self, policy: Policy, listener: socket.socket, offer: TransferOffer, weights: Mapping[str, Tensor]
    ) -> None:
        began = self._context.now()
        try:
            with listener:
                await self._context.in_thread(
                    lambda: send(listener, offer, weights, self._device),
                    limiter=trio.CapacityLimiter(1),
                    abandon_on_cancel=True,
                )
        except TransferError as error:  # the generator asks again, if it still lives
            self._log.warning("policy not sent", version=policy.version, epoch=policy.epoch, error=str(error))
        else:
            seconds = self._context.now() - began
            self._log.info("policy sent", version=policy.version, epoch=policy.epoch, seconds=seconds)


def send(listener: socket.socket, offer: TransferOffer, weights: Mapping[str, Tensor], device: str) -> None:
    """Send tensors to all ranks of an offer, in a thread. The tensors are on ``device`` and must not change meanwhile.

    Raises TransferError when a rank does not come, or leaves before the end.
    """
    with _joined(offer, 0, _device_of(offer, device), listener) as group:
        for tensor in weights.values():
            group.broadcast(tensor.to(group.device).contiguous())
        group.end()


def receive(offer: TransferOffer, rank: int, device: str) -> dict[str, Tensor]:
    """Receive the tensors of an offer by name, in a thread on ``device``, as one of its ranks (from 1).

    The tensors stay on the GPU if it has room for all, else they go to host memory. Raises TransferError when not all
    have come; then nothing is returned.
    """
    import torch

    with _joined(offer, rank, _device_of(offer, device)) as group:
        found: dict[str, Tensor] = {}
        kept_on = group.device if _has_room(offer, group.device) else torch.device("cpu")
        for name, shape, dtype in zip(offer.names, offer.shapes, offer.dtypes, strict=True):
            tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=group.device)
            group.broadcast(tensor)
            found[name] = tensor.to(kept_on)
        group.end()
    return found


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
    """A process group for one transfer."""

    def __init__(self, group: Any, size: int, device: Any) -> None:
        self._group = group
        self._size = size
        self.device = device

    def broadcast(self, tensor: Tensor) -> None:
        """Send a tensor, or overwrite it with the sender's; returns when done. Every library supports bytes."""
        import torch

        if tensor.numel():
            self._group.broadcast(tensor.view(-1).view(torch.uint8), 0).wait()

    def end(self) -> None:
        """Wait until every rank has everything. Only then may a receiver load the weights."""
        import torch

        ranks = torch.ones(1, dtype=torch.int32, device=self.device)
        self._group.allreduce(ranks).wait()
        if int(ranks) != self._size:  # an aborted operation may return without raising
            raise RuntimeError(f"{int(ranks)} of {self._size} processes came to the end")

    def leave(self) -> None:
        """Close the connections, so that the other ranks notice. The traceback of an exception would keep them open."""
        if self.device.type == "cuda":  # without abort, NCCL waits for pending operations
            self._group.abort()
        self._group = None


@contextmanager
def _joined(offer: TransferOffer, rank: int, device: Any, listener: socket.socket | None = None) -> Iterator[_Group]:
    """Join an offer as a rank. Errors of torch are raised as TransferError."""
    from torch import cuda

    try:
        with ExitStack() as stack:
            if device.type == "cuda":
                stack.enter_context(cuda.device(device))
                if rank == 0:  # on its own stream, parallel to training
                    stack.enter_context(cuda.stream(cuda.Stream(device)))  # type: ignore[no-untyped-call]
            group = _Group(_process_group(offer, rank, _store(offer, rank, listener)), 1 + offer.ranks, device)
            stack.callback(group.leave)
            yield group
    except (RuntimeError, OSError) as error:
        fault = str(error).partition("\n")[0]
        raise TransferError(f"weights by {offer.backend}, at {offer.address}:{offer.port}: {fault}") from error


def _store(offer: TransferOffer, rank: int, listener: socket.socket | None) -> Any:
    """The store where the ranks of an offer meet. The prefix, the offer's key, keeps other offers' ranks out."""
    from torch import distributed

    torch: Any = distributed
    size, timeout = 1 + offer.ranks, timedelta(seconds=SECONDS)
    served = {} if listener is None else {"master_listen_fd": listener.detach()}
    server = torch.TCPStore(offer.address, offer.port, size, rank == 0, timeout, wait_for_workers=False, **served)
    store = torch.PrefixStore(offer.key, server)
    store.set(f"rank {rank}", "here")
    store.wait([f"rank {each}" for each in range(size)], timeout)
    return store


def _process_group(offer: TransferOffer, rank: int, store: Any) -> Any:
    from torch import distributed

    torch: Any = distributed
    size, timeout = 1 + offer.ranks, timedelta(seconds=SECONDS)
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
