"""The orders that rank 0 of a learner gives to its other ranks: one method of the trainer each.

::

    rank 0: LeadTrainer.rl_step(...) --order, as msgpack--> every other rank: trainer.rl_step(...)
            then its own rl_step     <====== collectives ======>

An order holds plain values, settings as JSON, and groups in the codec of the links; nothing is unpickled. What a method
raises on all ranks alike, as a step that is not finite, the other ranks let go of: rank 0 decides what follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import msgpack
from pydantic import BaseModel

from actors.weights.kept import KeptShares
from agent_rl import messages
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import RlStage, SftStage
from agent_rl.files.disk import DiskError
from agent_rl.learning.checkpoints import StagedCheckpoint
from agent_rl.learning.finite import NotFiniteError, TrainingStoppedError
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.trainer import Trainer
from agent_rl.records.checkpoint_files import CheckpointError, Position
from transport import Registry, decode, encode

ALIKE = (NotFiniteError, TrainingStoppedError, CheckpointError, DiskError)
"""The errors that a method raises on all ranks, or on none."""
REGISTRY = Registry.of(messages)


Kind: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""How arguments of one kind are written into an order, and read from it."""
PLAIN: Kind = (lambda value: value, lambda value: value)
PATH: Kind = (str, Path)
PAIRS: Kind = (lambda pairs: [list(pair) for pair in pairs], lambda pairs: [tuple(pair) for pair in pairs])
POSITION: Kind = (asdict, lambda fields: Position(**fields))
GROUPS: Kind = (len, lambda count: count)
"""Groups follow the order one by one: those of a large step take gigabytes."""


def _settings(model: type[BaseModel]) -> Kind:
    return lambda value: value.model_dump_json(), model.model_validate_json


ORDERS: Mapping[str, Mapping[str, Kind]] = {
    "sft_step": {"batch": PAIRS, "stage": _settings(SftStage), "step": PLAIN},
    "rl_step": {"groups": GROUPS, "stage": _settings(RlStage), "stage_step": PLAIN},
    "enter": {"algorithm": _settings(Algorithm)},
    "reset_optimizer": {},
    "give_memory_back": {},
    "keep_reference": {"path": PATH},
    "load_reference": {"path": PATH},
    "share_weights": {"version": PLAIN, "on_device": PLAIN},
    "write_weights": {"version": PLAIN, "path": PATH},
    "stage": {"directory": PATH, "position": POSITION},
    "restore": {"directory": PATH},
    "stay_in_touch": {},
    "dismiss": {},
}
"""The methods that the other ranks carry out, and the arguments that they need. They carry out no others."""
LATER = {"enter", "reset_optimizer"}
"""Methods that the other ranks carry out before their next order. They are no collectives."""


class LeadTrainer(Trainer):
    """The trainer of rank 0, which tells the others each method of `ORDERS` before it runs the method itself."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """See `Trainer`."""
        self._later: list[list[Any]] = []
        super().__init__(*given, **named)

    def stay_in_touch(self) -> None:
        """Let the other ranks wait on: they wait for an order only so long."""

    def dismiss(self) -> None:
        """End the other ranks' loops; no method may be called after this."""
        self.ranks.leave()

    def tell(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Give the other ranks an order."""
        given = {name: write(arguments[name]) for name, (write, _) in ORDERS[method].items()}
        self._later.append([method, given])
        if method not in LATER:
            orders, self._later = self._later, []
            self.ranks.broadcast(msgpack.packb(orders))
            for group in arguments.get("groups", ()):
                self.ranks.broadcast(msgpack.packb([bytes(frame) for frame in encode(group)]))


def _led(method: str) -> Callable[..., Any]:
    """The method of `LeadTrainer`."""
    own = LeadTrainer.__dict__.get(method)

    def lead(self: LeadTrainer, *given: Any, **named: Any) -> Any:
        self.tell(method, dict(zip(ORDERS[method], given, strict=False)) | named)
        return own(self) if own is not None else getattr(Trainer, method)(self, *given, **named)

    return lead


for _method in ORDERS:
    setattr(LeadTrainer, _method, _led(_method))


class Writing:
    """The thread in which a rank writes its part of a checkpoint, one at a time, while it trains."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """``failed`` is told, in the thread, of an error that the other ranks do not have."""
        self._failed = failed
        self._thread: threading.Thread | None = None

    def start(self, staged: StagedCheckpoint) -> None:
        """Write beside what follows."""
        self._thread = threading.Thread(target=self._write, args=(staged,), daemon=True, name="checkpoint")
        self._thread.start()

    def _write(self, staged: StagedCheckpoint) -> None:
        try:
            staged.write()
        except ALIKE:
            return  # rank 0 has the same error, and decides
        except Exception as error:  # noqa: BLE001 - the thread has no caller; rank 0 hears of it, and ends all ranks
            self._failed(error)

    def finish(self) -> None:
        """Wait until what was started is written. Its own collectives have a deadline."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def follow(trainer: Trainer, writing: Writing, shares: KeptShares) -> None:
    """Carry out the orders of rank 0, until it says that this is the end. Raises RuntimeError when rank 0 is lost."""
    while True:
        for method, given in msgpack.unpackb(trainer.ranks.broadcast(b"")):
            if method not in ORDERS:
                raise ValueError(f"no order is named {method!r}: {sorted(given)}")
            arguments = {name: read(given[name]) for name, (_, read) in ORDERS[method].items()}
            match method:
                case "dismiss":
                    writing.finish()
                    shares.finish()
                    return
                case "stay_in_touch":
                    continue
                case "rl_step":
                    arguments["groups"] = _groups(trainer.ranks, arguments["groups"])
                case "stage":
                    writing.finish()  # one copy at a time
            try:
                result = getattr(trainer, method)(**arguments)
            except ALIKE:
                continue  # rank 0 has the same error, and decides
            if method == "share_weights":
                shares.keep(arguments["version"], result)
            elif method == "stage":
                writing.start(result)


def _groups(ranks: Ranks, count: int) -> list[Any]:
    return [decode(msgpack.unpackb(ranks.broadcast(b"")), REGISTRY) for _ in range(count)]
