"""The orders that rank 0 of a learner gives to its other ranks: one method of the trainer each.

::

    rank 0: LeadTrainer.rl_step(...) --order, as msgpack--> every other rank: trainer.rl_step(...)
            then its own rl_step     <====== collectives ======>

An order holds plain values, settings as JSON, and groups in the codec of the links; nothing is unpickled. What a method
raises on all ranks alike, as a step that is not finite, the other ranks let go of: rank 0 decides what follows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack

from actors.weights.kept import KeptShares
from agent_rl import messages
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import RlStage, SftStage
from agent_rl.figures import SupervisedFigures, TrainingFigures
from agent_rl.files.disk import DiskError
from agent_rl.learning.checkpoints import StagedCheckpoint
from agent_rl.learning.exporting import Shares
from agent_rl.learning.finite import NotFiniteError, TrainingStoppedError
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import TrainingGroup
from agent_rl.records.checkpoint_files import CheckpointError, Position
from transport import Registry, decode, encode

ALIKE = (NotFiniteError, TrainingStoppedError, CheckpointError, DiskError)
"""The errors that a method raises on all ranks, or on none."""
REGISTRY = Registry.of(messages)


class LeadTrainer(Trainer):
    """The trainer of rank 0, which tells the others each method before it runs the method itself."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """See `Trainer`."""
        self._later: list[list[Any]] = []
        """Work of the other ranks before their next order. It must not be a collective."""
        super().__init__(*given, **named)

    def sft_step(self, batch: Sequence[tuple[list[int], list[int]]], stage: SftStage, step: int) -> SupervisedFigures:
        """See `Trainer`."""
        self._tell("sft_step", batch=[list(pair) for pair in batch], stage=stage.model_dump_json(), step=step)
        return super().sft_step(batch, stage, step)

    def rl_step(self, groups: Sequence[TrainingGroup], stage: RlStage, stage_step: int) -> TrainingFigures:
        """See `Trainer`. Groups follow the order one by one: those of a large step take gigabytes."""
        self._tell("rl_step", groups=len(groups), stage=stage.model_dump_json(), step=stage_step)
        for group in groups:
            self.ranks.broadcast(msgpack.packb([bytes(frame) for frame in encode(group)]))
        return super().rl_step(groups, stage, stage_step)

    def enter(self, algorithm: Algorithm) -> None:
        """See `Trainer`. The others do it before their next order."""
        self._note("enter", algorithm=algorithm.model_dump_json())
        super().enter(algorithm)

    def reset_optimizer(self) -> None:
        """See `Trainer`. The others do it before their next order."""
        self._note("reset_optimizer")
        super().reset_optimizer()

    def give_memory_back(self) -> None:
        """See `Trainer`."""
        self._tell("give_memory_back")
        super().give_memory_back()

    def keep_reference(self, path: Path) -> None:
        """See `Trainer`."""
        self._tell("keep_reference", path=str(path))
        super().keep_reference(path)

    def load_reference(self, path: Path) -> None:
        """See `Trainer`."""
        self._tell("load_reference", path=str(path))
        super().load_reference(path)

    def share_weights(self, version: int, *, on_device: bool) -> Shares:
        """See `Trainer`. The others keep their shares, and send them when rank 0 calls."""
        self._tell("share_weights", version=version, on_device=on_device)
        return super().share_weights(version, on_device=on_device)

    def write_weights(self, version: int, path: Path) -> None:
        """See `Trainer`."""
        self._tell("write_weights", version=version, path=str(path))
        super().write_weights(version, path)

    def stage(self, directory: Path, position: Position, extra: Mapping[str, Any] | None = None) -> StagedCheckpoint:
        """See `Trainer`. The others begin to write at once, each in a thread of its own, and wait there for rank 0."""
        self._tell("stage", directory=str(directory), position=asdict(position))
        return super().stage(directory, position, extra)

    def restore(self, directory: Path) -> tuple[Position, dict[str, Any]]:
        """See `Trainer`."""
        self._tell("restore", directory=str(directory))
        return super().restore(directory)

    def stay_in_touch(self) -> None:
        """Let the other ranks wait on: they wait for an order only so long."""
        self._tell("nothing")

    def dismiss(self) -> None:
        """End the other ranks' processes; no method may be called after this."""
        self._tell("end")
        self.ranks.leave()

    def _note(self, method: str, **arguments: Any) -> None:
        self._later.append([method, arguments])

    def _tell(self, method: str, **arguments: Any) -> None:
        orders, self._later = [*self._later, [method, arguments]], []
        self.ranks.broadcast(msgpack.packb(orders))


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
        for method, arguments in msgpack.unpackb(trainer.ranks.broadcast(b"")):
            if method == "end":
                writing.finish()
                shares.finish()
                return
            try:
                _perform(trainer, writing, shares, method, arguments)
            except ALIKE:
                continue  # rank 0 has the same error, and decides


def _perform(trainer: Trainer, writing: Writing, shares: KeptShares, method: str, given: dict[str, Any]) -> None:
    match method:
        case "nothing":
            pass
        case "sft_step":
            batch = [(tokens, mask) for tokens, mask in given["batch"]]
            trainer.sft_step(batch, SftStage.model_validate_json(given["stage"]), given["step"])
        case "rl_step":
            told = (trainer.ranks.broadcast(b"") for _ in range(given["groups"]))
            groups = [decode(msgpack.unpackb(frames), REGISTRY) for frames in told]
            trainer.rl_step(groups, RlStage.model_validate_json(given["stage"]), given["step"])
        case "enter":
            trainer.enter(Algorithm.model_validate_json(given["algorithm"]))
        case "reset_optimizer":
            trainer.reset_optimizer()
        case "give_memory_back":
            trainer.give_memory_back()
        case "keep_reference":
            trainer.keep_reference(Path(given["path"]))
        case "load_reference":
            trainer.load_reference(Path(given["path"]))
        case "share_weights":
            shares.keep(given["version"], trainer.share_weights(given["version"], on_device=given["on_device"]))
        case "write_weights":
            trainer.write_weights(given["version"], Path(given["path"]))
        case "stage":
            writing.finish()  # one copy at a time
            writing.start(trainer.stage(Path(given["directory"]), Position(**given["position"])))
        case "restore":
            trainer.restore(Path(given["directory"]))
        case _:
            raise ValueError(f"no order is named {method!r}: {json.dumps(sorted(given))}")
