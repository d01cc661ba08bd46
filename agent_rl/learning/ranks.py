"""The processes that train one model together, as the trainer sees them.

Every rank runs the same methods of the same trainer with the same arguments, in the same order. Each computes its own
micro-batches and holds its own part of weights, gradients and moments; what concerns all is agreed on here::

    lengths --deterministic--> microbatches of each rank      nothing is sent: every rank knows what the others compute
    sums, faults ------------> total, agreed                  one small reduction

`Ranks` is one process alone, without a process group. `joined` makes the ranks of a mesh by torch's process groups:
gloo for tensors in host memory, and NCCL (RCCL on ROCm) for those on GPUs. NCCL and RCCL have not been run.

How they meet, before anything else::

    rank i: version of torch --> store of rank 0 --all are there, of one version--> every rank: the process groups
                                    `--(a rank is missing at the deadline, or another version)--> an error, on all
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import math
import os
import socket
import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch import Tensor

from agent_rl.config.parallel import MeshSizes
from agent_rl.learning.batching import microbatches
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.prefixes import Prefixes

LOOPBACK = "127.0.0.1"
"""Where ranks of one host meet."""
BESIDE_SECONDS = 3600.0
"""How long the thread beside waits for other ranks, which write files. A rank that is dead is noticed before."""
SIOCGIFADDR = 0x8915
"""Asks for the IPv4 address of an interface (linux/sockios.h); bytes 20 to 24 of the answer hold it."""
HEARD = timedelta(seconds=5.0)
"""How long rank 0 waits until the others have heard why they cannot train together."""
VERDICT = "verdict"
"""The key under which rank 0 says why the ranks cannot train together; empty when they can."""


class RanksApartError(Exception):
    """Not all ranks have met in time. The message names those that are missing."""


class Ranks:
    """One process that trains alone."""

    rank = 0
    size = 1
    shard = 0
    """Which part of the model this rank holds."""
    shards = 1
    """How many parts a copy of the model has."""
    saves = True
    """Whether this rank writes its part: ranks of other copies hold the same."""
    mesh: Any = None
    """torch's mesh of the ranks that share one model; None for one process alone."""

    @property
    def beside(self) -> Ranks:
        """The same ranks for another thread, which agrees and tells while this one computes."""
        return self

    def microbatches(
        self, lengths: Sequence[int], *, max_tokens: int, prefixes: Prefixes | None = None
    ) -> list[list[int]]:
        """The micro-batches of this rank, as many as of every other, some perhaps empty: `batching.microbatches`."""
        return microbatches(lengths, max_tokens=max_tokens, ranks=self.size, prefixes=prefixes)[self.rank]

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks, in float64."""
        return list(values)

    def greatest(self, value: float) -> float:
        """The greatest value of any rank."""
        return value

    def agreed(self, fault: str) -> str:
        """The fault of the first rank that has one; empty when no rank has one. All ranks wait for each other."""
        return fault

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor in host memory over all ranks, in place."""
        return tensor

    def norm(self, norm: Tensor) -> Tensor:
        """The norm of the whole gradient from the norm of this rank's part."""
        return norm

    def broadcast(self, message: bytes) -> bytes:
        """Rank 0's message; others give an empty one."""
        return message

    def gather(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, in their order."""
        return [message]

    def leave(self) -> None:
        """Close the connections to the other ranks."""


class JoinedRanks(Ranks):
    """One of several processes, after all have met. Every method is a collective: all ranks call it, in one order."""

    def __init__(self, rank: int, sizes: MeshSizes, device: str, *, beside: str = "gloo", store: Any = None) -> None:
        """The process group of torch exists already. ``beside``: what sends between threads that save.

        ``store``: torch's store at which the ranks have met.
        """
        from torch import distributed
        from torch.distributed.device_mesh import init_device_mesh

        self.rank, self.size = rank, sizes.ranks
        self.shards = sizes.shard
        self.shard = rank % self.shards
        self.saves = rank < self.shards
        self._sizes = sizes
        self._store = store
        self.group: Any = None
        """None: torch's default group."""
        self._beside = copy.copy(self)
        self._beside.group = distributed.new_group(backend=beside, timeout=timedelta(seconds=BESIDE_SECONDS))
        dimensions = {"replicate": sizes.replicate, "shard": sizes.shard}
        names = tuple(name for name, size in dimensions.items() if size > 1 or name == "shard")
        shape = tuple(dimensions[name] for name in names)
        self.mesh = init_device_mesh(torch.device(device).type, shape, mesh_dim_names=names)

    @property
    def beside(self) -> JoinedRanks:
        """The same ranks for another thread, which agrees and tells while this one computes."""
        return self._beside

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks, in float64."""
        sums: list[float] = self.summed(torch.tensor(values, dtype=torch.float64)).tolist()
        return sums

    def greatest(self, value: float) -> float:
        """The greatest value of any rank."""
        found = torch.tensor([value], dtype=torch.float64)
        self._reduce(found, "MAX")
        return float(found)

    def agreed(self, fault: str) -> str:
        """The fault of the first rank that has one; empty when no rank has one. All ranks wait for each other."""
        first = self.size - int(self.greatest(self.size - self.rank if fault else 0))
        return self._from(first, fault.encode()).decode() if first < self.size else ""

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor in host memory over all ranks, in place."""
        self._reduce(tensor, "SUM")
        return tensor

    def norm(self, norm: Tensor) -> Tensor:
        """The norm of the whole gradient from the norm of this rank's part."""
        square = norm.detach().to("cpu", torch.float64).square().reshape(1)
        self._reduce(square, "SUM")
        return torch.tensor(math.sqrt(float(square) / self._sizes.replicate), device=norm.device)

    def broadcast(self, message: bytes) -> bytes:
        """Rank 0's message; others give an empty one."""
        return self._from(0, message)

    def gather(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, in their order."""
        return [self._from(rank, message if rank == self.rank else b"") for rank in range(self.size)]

    def _reduce(self, tensor: Tensor, operation: str) -> None:
        from torch import distributed

        distributed.all_reduce(tensor, getattr(distributed.ReduceOp, operation), group=self.group)

    def _from(self, rank: int, message: bytes) -> bytes:
        from torch import distributed

        size = torch.tensor([len(message)])
        distributed.broadcast(size, rank, group=self.group)
        content = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == rank:
            content = torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else content
        if len(content):
            distributed.broadcast(content, rank, group=self.group)
        return content.numpy().tobytes()

    def another_store(self) -> Any:
        """A connection of another thread's own to the store at which the ranks have met."""
        from torch import distributed

        torch_distributed: Any = distributed
        return torch_distributed.TCPStore(
            self._store.host, self._store.port, self.size, False, self._store.timeout, wait_for_workers=False
        )

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        from torch import distributed

        distributed.destroy_process_group()


MeetingPoint: TypeAlias = tuple[str, int]
"""The address of rank 0's host, and the port at which ranks meet there."""


def meeting_place(address: str = LOOPBACK) -> socket.socket:
    """A socket of this host at which `joined` lets ranks meet: rank 0 gives it, the others its `MeetingPoint`.

    It listens at ``address`` alone. Raises OSError where this host does not have the address.
    """
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, 0), family=family)


def joined(
    rank: int,
    sizes: MeshSizes,
    *,
    place: socket.socket | MeetingPoint,
    device: str,
    seconds: float,
    meeting_seconds: float,
    address: str = LOOPBACK,
    version: str = torch.__version__,
) -> JoinedRanks:
    """Meet the other ranks and return what they share. Each operation waits at most ``seconds`` for the others.

    ``place`` is `meeting_place` for rank 0, and where that is for the others. ``address`` is that of this rank's host:
    with `LOOPBACK` all ranks are on one host. Nothing that ranks send is encrypted, by torch as by NCCL. Raises
    RanksApartError when not all come within ``meeting_seconds``, and TrainingStoppedError when they have different
    ``version``s of torch.
    """
    from torch import distributed

    torch_distributed: Any = distributed
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)  # NCCL takes the current device of each process
    if address != LOOPBACK:
        _talk_over(address)
    served = {} if isinstance(place, tuple) else {"master_listen_fd": place.dup().detach()}
    host, port = place if isinstance(place, tuple) else place.getsockname()[:2]
    meeting = timedelta(seconds=meeting_seconds)
    apart = f"{host}:{port} within {meeting_seconds:g} s"
    try:
        store = torch_distributed.TCPStore(
            host, port, sizes.ranks, rank == 0, meeting, wait_for_workers=False, **served
        )
    except RuntimeError as error:  # torch.distributed's own errors are of this type
        raise RanksApartError(f"rank {rank} of the learner did not reach rank 0 at {apart}") from error
    _meet(store, rank, sizes.ranks, version, meeting, apart)
    timeout = timedelta(seconds=seconds)
    store.set_timeout(timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
    torch_distributed.init_process_group(backend, store=store, rank=rank, world_size=sizes.ranks, timeout=timeout)
    return JoinedRanks(rank, sizes, device, store=store)


def _talk_over(address: str) -> None:
    """Have gloo and NCCL use the network interface of this host that has this address, unless the user named one.

    Without it gloo takes the interface of the host's own name, which other hosts may not reach.
    """
    if found := interface_of(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", found)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={found}")  # the interface of exactly this name


def interface_of(address: str) -> str:
    """The network interface of this host with this IPv4 address or name; empty where none is found (Linux only)."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        wanted = socket.inet_aton(socket.gethostbyname(address))
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                found = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if found[20:24] == wanted:
                    return name
    return ""


def _meet(store: Any, rank: int, size: int, version: str, within: timedelta, apart: str) -> None:
    """Wait until all ranks have given their version of torch, and rank 0 its verdict. Raises as `joined` does."""
    keys = [f"torch of rank {each}" for each in range(size)]
    store.set(keys[rank], version)
    if rank == 0:
        try:
            store.wait(keys, within)
        except RuntimeError as error:
            missing = [number for number, key in enumerate(keys) if not store.check([key])]
            names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
            raise RanksApartError(f"{names} of the learner did not reach rank 0 at {apart}") from error
        versions = [store.get(key).decode() for key in keys]
        others = [f"rank {number} has {each}" for number, each in enumerate(versions) if each != version]
        text = f"rank 0 of the learner has torch {version}, and {', '.join(others)}; install one version for all"
        fault = text if others else ""
        store.set(VERDICT, fault)
        if fault:
            with contextlib.suppress(RuntimeError):  # the store ends with this process, and the others would not know
                store.wait([f"heard by rank {each}" for each in range(1, size)], HEARD)
    else:
        try:
            store.wait([VERDICT], within)
            fault = store.get(VERDICT).decode()
            store.set(f"heard by rank {rank}", "")
        except RuntimeError as error:
            raise RanksApartError(f"rank {rank} of the learner heard no verdict of rank 0 at {apart}") from error
    if fault:
        raise TrainingStoppedError(fault)
