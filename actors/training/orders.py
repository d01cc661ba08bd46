"""The orders that rank 0 of a learner gives to its other ranks: one method of the trainer each.

::

    rank 0: LeadTrainer.rl_step(...) --order, as msgpack--> every other rank: trainer.rl_step(...)
            then its own rl_step     <====== collectives ======>

An order holds plain values, settings as JSON, and groups in the codec of the links; nothing is unpickled. What a method
raises on all ranks alike, as a step that is not finite, the other ranks let go of: rank 0 decides what follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack

from agent_rl import messages
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.topology import RlStage, SftStage
from agent_rl.figures import SupervisedFigures, TrainingFigures
from agent_rl.files.disk import DiskError
from agent_rl.learning.finite import NotFiniteError, TrainingStoppedError
from agent_rl.learning.trainer import Trainer
from agent_rl.messages import TrainingGroup
from agent_rl.records.checkpoint_files import CheckpointError, Position
from transport import Registry, decode, encode

ALIKE = (NotFiniteError, TrainingStoppedError, CheckpointError, DiskError)
"""What a method raises on all ranks, or on none."""
REGISTRY = Registry.of(messages)


class LeadTrainer(Trainer):
    """The trainer of rank 0, which tells the others each method before it runs the method itself."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """See `Trainer`."""
        self._later: list[list[Any]] = []
        """What the others do before their next order: nothing that the ranks do together."""
        super().__init__(*given, **named)

    def sft_step(self, batch: Sequence[tuple[list[int], list[int]]], stage: SftStage, step: int) -> SupervisedFigures:
        """See `Trainer`."""
        self._tell("sft_step", batch=[list(pair) for pair in batch], stage=stage.model_dump_json(), step=step)
        return super().sft_step(batch, stage, step)

    def rl_step(self, groups: Sequence[TrainingGroup], stage: RlStage, stage_step: int) -> TrainingFigures:
        """See `Trainer`."""
        frames = [[bytes(frame) for frame in encode(group)] for group in groups]
        self._tell("rl_step", groups=frames, stage=stage.model_dump_json(), step=stage_step)
        return super().rl_step(groups, stage, stage_step)

    def enter(self, algorithm: Algorithm) -> None:
        """See `Trainer`. The others do it before their next order."""
        self._note("enter", algorithm=algorithm.model_dump_json())
        super().enter(algorithm)

    def reset_optimizer(self) -> None:
        """See `Trainer`. The others do it before their next order."""
        self._note("reset_optimizer")
        super().reset_optimizer()

    def keep_reference(self, path: Path) -> None:
        """See `Trainer`."""
        self._tell("keep_reference", path=str(path))
        super().keep_reference(path)

    def load_reference(self, path: Path) -> None:
        """See `Trainer`."""
        self._tell("load_reference", path=str(path))
        super().load_reference(path)

    def copy_weights(self, version: int, device: str = "cpu") -> dict[str, Any]:
        """See `Trainer`."""
        self._tell("copy_weights", version=version)
        return super().copy_weights(version, device)

    def save(self, directory: Path, position: Position, extra: Mapping[str, Any] | None = None) -> None:
        """See `Trainer`."""
        self._tell("save", directory=str(directory), position=asdict(position))
        super().save(directory, position, extra)

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
        self.ranks.told(msgpack.packb(orders))


def follow(trainer: Trainer) -> None:
    """Carry out the orders of rank 0, until it says that this is the end. Raises RuntimeError when rank 0 is lost."""
    while True:
        for method, arguments in msgpack.unpackb(trainer.ranks.told(b"")):
            if method == "end":
                return
            try:
                _perform(trainer, method, arguments)
            except ALIKE:
                continue  # rank 0 has the same error, and decides


def _perform(trainer: Trainer, method: str, given: dict[str, Any]) -> None:
    match method:
        case "nothing":
            pass
        case "sft_step":
            batch = [(tokens, mask) for tokens, mask in given["batch"]]
            trainer.sft_step(batch, SftStage.model_validate_json(given["stage"]), given["step"])
        case "rl_step":
            groups = [decode(frames, REGISTRY) for frames in given["groups"]]
            trainer.rl_step(groups, RlStage.model_validate_json(given["stage"]), given["step"])
        case "enter":
            trainer.enter(Algorithm.model_validate_json(given["algorithm"]))
        case "reset_optimizer":
            trainer.reset_optimizer()
        case "keep_reference":
            trainer.keep_reference(Path(given["path"]))
        case "load_reference":
            trainer.load_reference(Path(given["path"]))
        case "copy_weights":
            trainer.copy_weights(given["version"])
        case "save":
            trainer.save(Path(given["directory"]), Position(**given["position"]))
        case "restore":
            trainer.restore(Path(given["directory"]))
        case _:
            raise ValueError(f"no order is named {method!r}: {json.dumps(sorted(given))}")
