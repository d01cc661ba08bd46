"""A model of which every rank holds a part: FSDP2 of torch (`fully_shard`), built without ever existing whole.

::

    meta tensors --fully_shard--> parts without memory --to_empty--> parts
    files of the model --own_part of each tensor--> parts

Weights are kept, and updated, in float32. Each layer is gathered in the model's type for its forward and its backward
pass, and dropped afterwards. Gradients are summed over ranks in float32: the loss of each rank already has its share.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.tensor_files import TensorFiles, model_files_of


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, sharing its memory; the tensor itself where it is whole."""
    if not hasattr(tensor, "to_local"):
        return tensor
    part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor. A collective for one that is sharded: all ranks call it."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    given: Any = tensor.detach()
    whole: Tensor = given.full_tensor()
    return whole


def own_part(tensor: Tensor) -> tuple[slice, ...]:
    """Where this rank's part of a tensor lies in the whole: a slice of each dimension.

    All but the last parts have the same size, rounded up.
    """
    bounds = [(0, size) for size in tensor.shape]
    if hasattr(tensor, "device_mesh"):
        mesh: Any = tensor.device_mesh
        placements: Any = tensor.placements  # type: ignore[attr-defined]
        for dimension, placement in enumerate(placements):
            if not placement.is_replicate():
                start, end = bounds[placement.dim]
                size = -(-(end - start) // mesh.size(dimension))
                first = min(end, start + mesh.get_local_rank(dimension) * size)
                bounds[placement.dim] = first, min(end, first + size)
    return tuple(slice(*each) for each in bounds)


def unloaded(path: Path, attention: str) -> Any:
    """A model whose tensors have shapes and no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config, trust_remote_code=False, dtype=torch.float32, attn_implementation=attention
        )


def shard(module: Any, ranks: Ranks, *, method: str, dtype: torch.dtype, offload: bool) -> None:
    """Shard an `unloaded` module over the ranks, layer by layer. ``method`` is what computes with the whole module.

    Gradients are then sums over ranks, and computation is in ``dtype``.
    """
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    options: dict[str, Any] = {
        "mesh": ranks.mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy(),
    }
    kinds = set(module._no_split_modules)  # noqa: SLF001 - transformers' list of the layers that are computed whole
    for layer in [each for each in module.modules() if type(each).__name__ in kinds]:
        fully_shard(layer, **options)
    fully_shard(module, **options)
    register_fsdp_forward_method(module, method)
    for each in module.modules():
        if isinstance(each, FSDPModule):
            each.set_force_sum_reduction_for_comms(True)
            each.set_gradient_divide_factor(1.0)


def load(module: Any, path: Path, device: torch.device) -> None:
    """Give a sharded module memory, and read this rank's parts from the files of a model directory.

    Raises TrainingStoppedError when the files hold other tensors than the model has.
    """
    module.to_empty(device=device)
    with torch.no_grad(), TensorFiles(model_files_of(path)) as files:
        found, own = files.names(), dict(_loaded(module))
        missing = sorted(own.keys() - found)
        shapes = [name for name in own.keys() & found if files.shape(name) != tuple(own[name].shape)]
        if missing or shapes:
            fault = f"lacks {missing[:3]}" if missing else f"has other shapes of {sorted(shapes)[:3]}"
            raise TrainingStoppedError(
                f"{path} {fault}: several ranks read a model's own safetensors files; save it with this version of "
                "transformers, or write actors.learner.ranks = 1"
            )
        for name, parameter in own.items():
            local(parameter).copy_(files.part(name, own_part(parameter)))
        for each in module.modules():
            if any(name not in each._non_persistent_buffers_set for name, _ in each.named_buffers(recurse=False)):  # noqa: SLF001
                raise TrainingStoppedError(f"{path} has buffers besides its weights; write actors.learner.ranks = 1")
            if each._non_persistent_buffers_set:  # noqa: SLF001 - made from the configuration, as of rotary embeddings
                module._init_weights(each)  # noqa: SLF001


def _loaded(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters that files hold, by the names there: all but adapters."""
    for name, parameter in module.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter


def initialise_adapters(module: nn.Module, seed: int) -> None:
    """Give adapters the values that a run begins with: peft's distribution, by seed and name, whatever the ranks."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".lora_A." in name:
                generator = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))
                whole = torch.empty(parameter.shape)
                nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
                local(parameter).copy_(whole[own_part(parameter)])
            elif ".lora_B." in name:
                local(parameter).zero_()
