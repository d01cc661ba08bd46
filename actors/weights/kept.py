"""The learner's end of transfers: the newest policy, kept on all ranks, and sent to every engine that asks.

::

    generator --TransferWanted--> KeptWeights of rank 0 --call N, by the store of the ranks--> KeptShares of the others
                                  `--its shares--> engine <--their shares, in a thread for each transfer--`

Each rank keeps its own parts of the policy alone, and sends them while it trains.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import trio

from actors.weights.files import weights_name
from actors.weights.transfer import SECONDS, TransferError, bucket_bytes, decline, send
from agent_rl.messages import PolicyVersion, TransferOffer, TransferWanted

if TYPE_CHECKING:
    from actors.base import ActorContext
    from agent_rl.learning.exporting import Shares
    from agent_rl.learning.ranks import JoinedRanks, Ranks

CALL_SECONDS = 600.0
"""Seconds that a thread of another rank waits for a call, before it begins to wait again."""
OLD_CALLS = 100
"""Calls that stay in the store: another rank reads each within the deadlines of its transfer."""
END_SECONDS = 5.0
"""Seconds that the threads of a rank have to end in when the learner ends."""
END = "end"


class KeptWeights:
    """Holds rank 0's shares of the newest published policy, and has all ranks send theirs to every engine that asks."""

    def __init__(self, context: ActorContext, backend: str, address: str, device: str, log: Any) -> None:
        """``address`` is the address at which engines reach this host; kept tensors are on ``device``."""
        self._context = context
        self._backend = backend
        self._address = address
        self._device = device
        self._log = log
        self._kept: tuple[PolicyVersion, Shares] | None = None
        self._senders = 1
        self._calls: _Calls | None = None

    def join(self, ranks: Ranks, device: str) -> None:
        """All ``ranks`` send from now on, this one from ``device``. Called in a thread."""
        from agent_rl.learning.ranks import JoinedRanks

        self._senders, self._device = ranks.size, device
        self._calls = _Calls(ranks) if isinstance(ranks, JoinedRanks) else None

    def keep(self, policy: PolicyVersion, weights: Shares) -> tuple[str, int, int]:
        """Replace the kept weights; returns what to announce."""
        self._kept = policy, weights
        return f"{self._backend}:{weights_name(policy)}", 0, 0

    def clean(self, oldest: PolicyVersion) -> None:
        """Nothing to do: only one policy is kept."""

    def gone(self, generator: str) -> None:
        """Nothing to do: a lost generator asks again."""

    def dismiss(self) -> None:
        """The other ranks end: their threads hear of it. Called in a thread."""
        if self._calls is not None:
            self._calls.end()
            self._calls = None

    def remove(self) -> None:
        """The run is over: drop the weights."""
        self._kept = None

    def offer(self, wanted: TransferWanted) -> TransferOffer:
        """Listen for the engine's processes and say where. Port 0: a newer policy took its place, or none exists."""
        nothing = TransferOffer(
            backend=self._backend,
            address=self._address,
            port=0,
            key="",
            senders=self._senders,
            ranks=wanted.ranks,
            bucket_bytes=bucket_bytes(self._senders),
            names=(),
            shapes=(),
            dtypes=(),
        )
        if self._kept is None or self._kept[0] != wanted.policy:
            return nothing
        shares = self._kept[1]
        try:
            family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
            listener = socket.create_server((self._address, 0), family=family)
        except OSError as error:  # no file descriptor or no port is free
            self._log.warning(
                "policy not offered", version=wanted.policy.version, address=self._address, error=str(error)
            )
            return nothing
        offer = replace(
            nothing,
            port=listener.getsockname()[1],
            key=secrets.token_hex(16),
            names=tuple(shares.layout),
            shapes=tuple(tuple(shape) for shape, _ in shares.layout.values()),
            dtypes=tuple(str(dtype).removeprefix("torch.") for _, dtype in shares.layout.values()),
        )
        self._context.nursery.start_soon(self._send, wanted.policy, listener, offer, shares)
        return offer

    async def _send(self, policy: PolicyVersion, listener: socket.socket, offer: TransferOffer, shares: Shares) -> None:
        def work() -> int:
            if self._calls is not None:
                self._calls.call(policy.version, offer)
            return send(offer, shares, self._device, listener=listener)

        began = self._context.now()
        try:
            with listener:
                sent = await self._context.in_thread(work, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)
        except TransferError as error:  # the generator asks again, if it still lives
            self._log.warning("policy not sent", version=policy.version, epoch=policy.epoch, error=str(error))
        else:
            seconds = self._context.now() - began
            self._log.info("policy sent", version=policy.version, epoch=policy.epoch, seconds=seconds, bytes=sent)


class KeptShares:
    """Holds another rank's shares of the newest policy, and sends them when rank 0 calls, while this rank trains."""

    def __init__(self, ranks: JoinedRanks, device: str, failed: Callable[[Exception], None]) -> None:
        """Kept tensors are on ``device``. ``failed`` is told of an error that the other ranks do not have."""
        self._ranks = ranks
        self._device = device
        self._failed = failed
        self._kept: tuple[int, Shares] | None = None
        """The policy's version."""
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def keep(self, version: int, shares: Shares) -> None:
        """Replace the kept shares. The first ones let the thread begin that listens to rank 0."""
        if self._kept is None:
            self._start(lambda: self._listen(_Calls(self._ranks)))
        with self._changed:
            self._kept = version, shares
            self._changed.notify_all()

    def finish(self) -> None:
        """Rank 0 has called for the last time: wait for what is being sent, but not long."""
        until = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _listen(self, calls: _Calls) -> None:
        while (called := calls.next()) is not None:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._start(lambda called=called: self._send(*called))  # type: ignore[misc]

    def _send(self, version: int, offer: TransferOffer) -> None:
        rank = self._ranks.rank
        with self._changed:  # rank 0 may have copied the version before this rank has
            self._changed.wait_for(lambda: self._kept is not None and self._kept[0] >= version, SECONDS)
            kept = self._kept
        try:
            if kept is None or kept[0] != version:
                decline(offer, rank)
            else:
                send(offer, kept[1], self._device, rank=rank)
        except TransferError as error:  # rank 0 has lost this transfer too, and logs that
            sys.stderr.write(f"rank {rank} of the learner has not sent version {version}: {error}\n")

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the thread has no caller; rank 0 hears of it and ends all ranks
                self._failed(error)

        thread = threading.Thread(target=run, daemon=True, name="weights")
        self._threads.append(thread)
        thread.start()


class _Calls:
    """Messages from rank 0 to threads of the other ranks, at any time: numbered entries of the store where the ranks
    met.
    """

    def __init__(self, ranks: JoinedRanks) -> None:
        self._store: Any = ranks.another_store()
        self._number = 0
        self._lock = threading.Lock()

    def call(self, version: int, offer: TransferOffer) -> None:
        """Have all other ranks send a version to the processes of an offer. The ranks know its tensors."""
        self._tell(json.dumps([version, asdict(replace(offer, names=(), shapes=(), dtypes=()))]))

    def end(self) -> None:
        """There are no more calls."""
        self._tell(END)

    def _tell(self, text: str) -> None:
        with self._lock:
            self._store.set(_key(self._number), text)
            self._store.delete_key(_key(self._number - OLD_CALLS))
            self._number += 1

    def next(self) -> tuple[int, TransferOffer] | None:
        """The next call; None: there are no more. Raises RuntimeError when rank 0 is lost."""
        from torch import distributed

        key = _key(self._number)
        while True:
            with suppress(distributed.DistStoreError):  # nothing was called within these seconds
                self._store.wait([key], timedelta(seconds=CALL_SECONDS))
                break
        self._number += 1
        text = self._store.get(key).decode()
        if text == END:
            return None
        version, offer = json.loads(text)
        return version, TransferOffer(**offer)


def _key(number: int) -> str:
    return f"transfer {number}"
