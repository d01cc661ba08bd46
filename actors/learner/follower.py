"""A rank of a learner other than rank 0: a process that an actor of its host starts, and that cannot outlive it.

``lifeline.py PARENT actors.learner.follower PIPE`` reads one message from its standard input (`Beginning`), makes the
trainer that the topology names, and carries out rank 0's orders. It gives signs of life through the pipe to the
actor: rank 0's on rank 0's host, a keeper on others (`actors.learner.keeper`).
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from actors.learner.signs import SignGiver
from actors.weights.files import model_directory, named_directory
from agent_rl.config.algorithm import STAGE_START
from agent_rl.config.placement import threads_of
from agent_rl.config.topology import Topology
from agent_rl.learning.heap import share_one_heap
from agent_rl.messages import pipes
from agent_rl.messages.pipes import Beginning, LastWords
from agent_rl.models.model_files import weight_count
from agent_rl.rollout.prompts import load_tokenizer
from transport import Registry
from transport.stream import Unpacker

if TYPE_CHECKING:
    from actors.weights.settings import LearnerSettings
    from agent_rl.config.processes import ActorEntry
    from agent_rl.learning.ranks import Ranks
    from agent_rl.learning.trainer import Trainer


def build(
    kind: type[Trainer],
    topology: Topology,
    settings: LearnerSettings,
    *,
    role: str,
    device: str,
    directory: Path,
    base: Path,
    ranks: Ranks,
) -> Trainer:
    """A trainer of this ``kind``. ``directory`` is the run's, ``base`` the topology file's folder.

    Raises TrainingStoppedError, and ContractError for a loss that does not fit.
    """
    from agent_rl.learning.losses.check_loss import check_loss
    from agent_rl.learning.policy_model import ModelOptions

    model, kl, parallel = model_directory(topology, directory), topology.algorithm.kl, topology.model.parallel
    check_loss(topology.algorithm)
    threads = settings.threads
    if threads == "auto":
        cores = len(os.sched_getaffinity(0))
        threads = threads_of(topology, f"{role}.0", weights=weight_count(model) or 0, cores=cores)
    return kind(
        model,
        dtype=topology.model.dtype,
        device=device,
        algorithm=topology.algorithm,
        threads=threads,
        seed=topology.run.seed,
        compute=topology.model.compute,
        options=ModelOptions(
            activation_checkpointing=parallel.checkpoint_activations,
            compile=parallel.compile,
            offload=parallel.offload,
            logits_mib=settings.logits_mib,
        ),
        lora=topology.model.lora,
        mismatch_tokens=settings.mismatch_tokens,
        tokenizer=load_tokenizer(model, topology, base),
        reference=named_directory(kl.reference) if kl is not None and kl.reference != STAGE_START else None,
        ranks=ranks,
    )


def device_of(device: str, rank: int, entry: ActorEntry) -> str:
    """The device of a rank: of several, each has the GPU of its number among the ranks of its host."""
    return f"cuda:{rank % entry.ranks_per_host}" if entry.ranks > 1 and device == "cuda" else device


def main() -> None:
    """Entry point. Exits with an error when it cannot go on, or rank 0 is lost; rank 0 hears why."""
    share_one_heap()
    unpacker = Unpacker(Registry.of(pipes))
    unpacker.feed(sys.stdin.buffer.read())
    beginning = next(iter(unpacker), None)
    if not isinstance(beginning, Beginning):
        raise SystemExit("the actor that started this rank is gone")
    signs = SignGiver(int(sys.argv[1]), beginning.silent_seconds)
    from agent_rl.config.plugins import ContractError
    from agent_rl.files.disk import DiskError
    from agent_rl.learning.finite import TrainingStoppedError

    try:
        _train(beginning, lambda error: signs.last_words(_last_words(error)))
    except (TrainingStoppedError, ContractError, DiskError) as error:
        signs.last_words(LastWords(str(error), "mistake"))
        raise SystemExit(1) from error  # rank 0 tells the user
    except Exception as error:
        signs.last_words(_last_words(error))
        raise


def _last_words(error: Exception) -> LastWords:
    return LastWords(f"{type(error).__name__}: {error}", "torch" if isinstance(error, RuntimeError) else "error")


def _train(beginning: Beginning, failed: Callable[[Exception], None]) -> None:
    from actors.learner.orders import Writing, follow
    from actors.weights.files import model_directory
    from actors.weights.kept import KeptShares
    from agent_rl.config.parallel import mesh_sizes
    from agent_rl.config.plugins import resolve
    from agent_rl.learning.ranks import joined
    from agent_rl.learning.trainer import Trainer

    topology = Topology.model_validate(tomllib.loads(beginning.topology))
    entry = topology.actors[beginning.role]
    settings = resolve("actor", entry.class_path).Settings.model_validate(entry.settings)
    device = device_of(settings.device, beginning.rank, entry)
    directory, base = Path(beginning.directory), Path(beginning.base)
    model_directory(topology, directory)  # before ranks meet: among several, transformers saves a model on rank 0 alone
    ranks = joined(
        beginning.rank,
        mesh_sizes(entry.ranks, topology.model.parallel),
        place=(beginning.meeting, beginning.port),
        address=beginning.address,
        device=device,
        seconds=settings.rank_timeout_seconds,
        meeting_seconds=settings.rank_meeting_seconds,
    )
    trainer = build(
        Trainer, topology, settings, role=beginning.role, device=device, directory=directory, base=base, ranks=ranks
    )
    follow(trainer, Writing(failed), KeptShares(ranks, str(trainer.device), failed))
    ranks.leave()


if __name__ == "__main__":
    main()
