"""How the processes of a learner share one model: the table ``[model.parallel]``, and the mesh of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import PositiveInt

from agent_rl.config.processes import Part


class Parallel(Part):
    """How the ranks of a learner (``actors.learner.ranks``) share the model, and what saves memory."""

    shard: PositiveInt | None = None
    """Ranks that hold one copy of weights, gradients and moments together (FSDP). None: as many as there are."""
    replicate: PositiveInt = 1
    """Copies of the sharded model, each trained on other sequences."""
    checkpoint_activations: bool = False
    """Compute activations again for the backward pass: a third more work, far less memory."""
    offload: bool = False
    """Keep weights, gradients and moments of several ranks in host memory, and update them there."""
    compile: bool = False
    """Use torch.compile, on one rank only; the first steps take minutes."""


@dataclass(frozen=True, slots=True)
class MeshSizes:
    """The ranks of a learner as a mesh: rank = replica * shard + place in the copy."""

    replicate: int = 1
    shard: int = 1

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.replicate * self.shard


def mesh_sizes(ranks: int, parallel: Parallel) -> MeshSizes:
    """The mesh of so many ranks. Raises ValueError, with the remedy, when the sizes do not make that many."""
    if parallel.compile and ranks > 1:
        raise ValueError(f"model.parallel.compile is for one rank, and there are {ranks}; leave it out")
    if parallel.shard is None:
        if ranks % parallel.replicate:
            raise ValueError(
                f"{ranks} ranks cannot be shared by model.parallel.replicate = {parallel.replicate}; write a multiple "
                f"of {parallel.replicate}"
            )
        return MeshSizes(parallel.replicate, ranks // parallel.replicate)
    product = parallel.shard * parallel.replicate
    if product != ranks:
        raise ValueError(
            f"{ranks} ranks are not model.parallel's shard = {parallel.shard} times replicate = {parallel.replicate}, "
            f"which is {product}; write ranks = {product}, or leave shard out"
        )
    return MeshSizes(parallel.replicate, parallel.shard)
