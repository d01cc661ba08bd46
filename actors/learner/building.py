"""Make the trainer that a topology names: the same on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from actors.weights.files import model_directory, named_directory
from agent_rl.config.algorithm import STAGE_START
from agent_rl.rollout.chat_templates import load_tokenizer

if TYPE_CHECKING:
    from actors.weights.settings import LearnerSettings
    from agent_rl.config.processes import ActorEntry
    from agent_rl.config.topology import Topology
    from agent_rl.learning.ranks import Ranks
    from agent_rl.learning.trainer import Trainer


def build(
    kind: type[Trainer],
    topology: Topology,
    settings: LearnerSettings,
    *,
    device: str,
    directory: Path,
    base: Path,
    ranks: Ranks,
) -> Trainer:
    """A trainer of this ``kind``. ``directory`` is the run's, ``base`` the topology file's folder.

    Raises TrainingStoppedError, and ContractError for a loss that does not fit.
    """
    from agent_rl.learning.losses.trial import try_loss
    from agent_rl.learning.policy_model import ModelOptions

    model, kl, parallel = model_directory(topology, directory), topology.algorithm.kl, topology.model.parallel
    try_loss(topology.algorithm)
    return kind(
        model,
        dtype=topology.model.dtype,
        device=device,
        algorithm=topology.algorithm,
        threads=settings.threads,
        seed=topology.run.seed,
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
