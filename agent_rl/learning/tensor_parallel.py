"""Layers that several ranks compute together: tensor parallelism by torch's DTensor (`parallelize_module`).

transformers names the layers (``base_model_tp_plan`` of a model's configuration), and torch's styles split them::

    q, k, v, gate, up ("colwise")      by outputs: each rank computes its own heads and its own part of the MLP
    o, down ("rowwise")                by inputs: the ranks' results are summed, and every rank has the sum
    embedding, output layer            by tokens of the vocabulary (`agent_rl.learning.logprobs` has the latter)

Every rank computes the norms and the residual stream alike. An adapter is split as its layer is: of "colwise" layers
the second matrix, of "rowwise" layers the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import Tensor, nn

from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.logprobs import Vocabulary

COLUMNS, ROWS, NORM = "colwise", "rowwise", "replicated_with_grad_allreduce"
HEADS = 2
"""The dimension of the heads in what a norm of queries or keys is given: [1, tokens, heads, head_dim]."""


def split_layers(module: Any, mesh: Any) -> None:
    """Split the layers of a model without memory over the ranks of a mesh of one dimension.

    Adapters are in the model already. Raises TrainingStoppedError for a model whose layers cannot be split.
    """
    from torch.distributed.tensor import Replicate, distribute_module
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    _refuse(module.config, mesh.size())
    styles: dict[str, Any] = {}
    parents: dict[str, nn.Module] = {}
    for name, layer, kind in _planned(module):
        adapted = hasattr(layer, "base_layer")
        own = f"{name}.base_layer" if adapted else name
        if kind == COLUMNS:
            styles[own] = ColwiseParallel()
            above = name.rpartition(".")[0]
            parents[above] = module.get_submodule(above)
            if adapted:
                styles |= {f"{name}.lora_B.{key}": ColwiseParallel() for key in layer.lora_B}
                for each in layer.lora_A.values():
                    distribute_module(each, mesh)
        elif kind == ROWS:
            styles[own] = RowwiseParallel()
            if adapted:
                styles |= {f"{name}.lora_A.{key}": RowwiseParallel() for key in layer.lora_A}
        else:
            styles[own] = SequenceParallel(sequence_dim=HEADS, use_local_output=True)
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    tied = module.get_output_embeddings().weight is module.get_input_embeddings().weight
    parallelize_module(module, mesh, styles, src_data_rank=None)
    parallelize_module(
        module.get_input_embeddings(), mesh, RowwiseParallel(input_layouts=Replicate()), src_data_rank=None
    )
    if tied:
        module.get_output_embeddings().weight = module.get_input_embeddings().weight
    else:
        parallelize_module(module.get_output_embeddings(), mesh, ColwiseParallel(), src_data_rank=None)
    for name in frozen:  # torch's styles do not keep this of norms
        module.get_parameter(name).requires_grad_(requires_grad=False)
    for parent in parents.values():
        parent.register_forward_pre_hook(partial(_shared_input, mesh), with_kwargs=True)


def _refuse(whole_config: Any, ranks: int) -> None:
    config = whole_config.get_text_config()
    plan = _plan(config)
    strange = sorted({kind for kind in plan.values() if kind not in (COLUMNS, ROWS, NORM)})
    fault = ""
    if not plan:
        fault = f"transformers has no plan for splitting the layers of {config.model_type} models"
    elif strange:
        fault = f"the layers of {config.model_type} models are split as {', '.join(strange)}, which is not built"
    sizes = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    if whole := [f"{name} {getattr(config, name)}" for name in sizes if getattr(config, name) % ranks]:
        fault = fault or f"it does not divide the model's {', '.join(whole)}"
    if fault:
        raise TrainingStoppedError(f"model.parallel.tensor is {ranks}, and {fault}; write shard in its place")


def _plan(config: Any) -> dict[str, str]:
    """The styles of the layers. transformers before 5.20 adds a tied embedding, which `split_layers` sees to itself."""
    plan = getattr(config, "base_model_tp_plan", None) or {}
    return {name: kind for name, kind in plan.items() if name != "embed_tokens"}


def _planned(module: Any) -> Iterator[tuple[str, Any, str]]:
    """The layers that the plan names: the name in the whole model, the layer, the style."""
    plan = _plan(module.config.get_text_config())
    prefix = f"{module.base_model_prefix}."
    for name, layer in module.named_modules():
        for pattern, kind in plan.items():
            if fnmatchcase(name, prefix + pattern) and name.count(".") == pattern.count(".") + 1:
                yield name, layer, kind


def _shared_input(mesh: Any, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Give the layers of a module one DTensor as input: its gradient is summed over the ranks once, not by layer."""
    from torch.distributed.tensor import DTensor, Replicate

    del module

    def shared(tensor: Any) -> Any:
        return DTensor.from_local(tensor, mesh, (Replicate(),), run_check=False)

    if given:
        return (shared(given[0]), *given[1:]), named
    return given, {**named, "hidden_states": shared(named["hidden_states"])}


def output_layer(head: Any) -> tuple[Tensor, Tensor | None, Vocabulary | None]:
    """Weight and bias of the output layer to compute with; where it is split, this rank's rows and which they are."""
    if not hasattr(head.weight, "to_local"):
        return head.weight, head.bias, None
    mesh = head.weight.device_mesh
    most = -(-len(head.weight) // mesh.size())
    vocabulary = Vocabulary(mesh.get_local_rank() * most, most, mesh.get_group())
    return head.weight.to_local(), None if head.bias is None else head.bias.to_local(), vocabulary
