"""The model being trained: load from a Hugging Face directory, log-probabilities of packed sequences, save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from agent_rl.learning.device import usable_device
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.linear import use_one_dnn
from agent_rl.learning.logprobs import chunked_logprobs
from agent_rl.learning.packing import ATTENTION, Packed, pack

if TYPE_CHECKING:
    from agent_rl.config.topology import Lora

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAYERS = frozenset({"full_attention", "sliding_attention"})
ADAPTER = "default"
"""peft's name for the only adapter there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How the model is computed. No option changes the results beyond rounding."""

    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and recompute the rest: a third more work, far less memory."""
    compile: bool = False
    """Compile the decoder with torch.compile; the first steps take minutes."""
    logits_mib: int = 128
    """Memory for the logits of one piece; the peak is three times as much."""


class PolicyModel:
    """A decoder-only Hugging Face model whose sequences are packed (see `agent_rl.learning.packing`).

    Raises TrainingStoppedError for models that cannot be trained this way.
    """

    def __init__(
        self, path: Path, *, dtype: str, device: str, options: ModelOptions, lora: Lora | None = None, seed: int = 0
    ) -> None:
        try:
            self.device = usable_device(device)
            loaded = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype], attn_implementation=ATTENTION)
            self.module: Any = loaded.to(self.device)
        except Exception as error:  # transformers raises exceptions of many types
            raise TrainingStoppedError(
                f"{path} cannot be loaded for training: {' '.join(str(error).split())[:500]}"
            ) from error
        self.module.config.use_cache = False
        config = self.module.config.get_text_config()
        self._refuse_other_kinds(path, config)
        self.max_length = int(config.max_position_embeddings)
        self.adapted = lora is not None
        """Whether adapters alone are trained."""
        if lora is not None:
            _add_adapters(self.module, lora, seed)
        if self.device.type == "cpu" and dtype == "float32" and not options.compile:
            use_one_dnn(self.module)
        if options.activation_checkpointing:
            # renamed in transformers 5.20; checkpoints only what is in training mode
            renamed = getattr(self.module, "activation_checkpointing_enable", None)
            (renamed or self.module.gradient_checkpointing_enable)({"use_reentrant": False})
            self.module.train()
        head = self.module.get_output_embeddings()
        self._tokens_at_once = max(16, options.logits_mib * 2**20 // (4 * head.weight.shape[0]))
        self._decode = self.module.base_model
        if options.compile:
            self._decode = torch.compile(self._decode, dynamic=True)

    def _refuse_other_kinds(self, path: Path, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        head = self.module.get_output_embeddings()
        fault = ""
        if kinds - LAYERS:
            fault = f"has layers of the kinds {sorted(kinds - LAYERS)}; sequences can only be packed for attention"
        elif not isinstance(head, nn.Linear):
            fault = f"has a {type(head).__name__} as output layer, and the learner needs a plain linear one"
        elif any(getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")):
            fault = "scales or caps its logits, which the learner does not"
        if fault:
            raise TrainingStoppedError(f"{path} cannot be trained: it {fault}; Llama, Qwen2, Qwen3 and their like can")

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained parameters: all, or the adapters."""
        return ((name, p) for name, p in self.module.named_parameters() if p.requires_grad)

    def logprobs(
        self,
        sequences: Sequence[Tensor],
        wanted: Sequence[Tensor],
        *,
        temperature: float,
        with_entropy: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of the m wanted tokens of a micro-batch, in order, both [m] float32.

        ``sequences`` are tokens [length] int64. ``wanted`` [length] bool marks the wanted tokens, never a sequence's
        first. Without ``with_entropy`` the entropies are 0.
        """
        packed = pack(sequences, self.device)
        places = torch.cat(list(wanted)).nonzero().squeeze(-1).to(self.device)
        hidden = self._hidden(packed)[0, places - 1]
        head = self.module.get_output_embeddings()
        targets = packed.tokens[0, places]
        return chunked_logprobs(
            hidden,
            head.weight,
            head.bias,
            targets,
            temperature=temperature,
            tokens_at_once=self._tokens_at_once,
            with_entropy=with_entropy,
        )

    def _hidden(self, packed: Packed) -> Tensor:
        """Hidden states [1, n, d] after the last normalisation."""
        output = self._decode(
            input_ids=packed.tokens, position_ids=packed.positions, use_cache=False, packed=packed
        ).last_hidden_state
        hidden: Tensor = output
        return hidden

    # Weights ----------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors as engines load them: adapters merged, and only the first of tied tensors."""
        tied = set(getattr(self.module, "all_tied_weights_keys", {}) or {})
        state = {name: tensor.detach() for name, tensor in self.module.state_dict().items() if name not in tied}
        return merged(self.module, state) if self.adapted else state

    def trained(self) -> dict[str, Tensor]:
        """The tensors that training changes."""
        return {name: p.detach() for name, p in self.named_parameters()}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load `trained` tensors. Raises ValueError when they belong to another model."""
        own = self.trained()
        wrong = sorted(weights.keys() ^ own.keys()) or [n for n in own if own[n].shape != weights[n].shape]
        if wrong:
            raise ValueError(f"its weights are not this model's ({wrong[:3]} ...)")
        for name, tensor in own.items():
            tensor.copy_(weights[name])

    @contextmanager
    def with_weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Compute with other values of the `trained` tensors. Tensors on the same device are not copied."""
        own = dict(self.named_parameters())
        before = {name: own[name].data for name in weights}
        try:
            for name, tensor in weights.items():
                own[name].data = tensor.to(self.device)
            yield
        finally:
            for name, tensor in before.items():
                own[name].data = tensor

    def save(self, directory: Path) -> None:
        """Write a directory that `from_pretrained` loads, adapters merged; large models in several files."""
        self.module.save_pretrained(directory, state_dict=self.weights() if self.adapted else None)


def _add_adapters(module: Any, lora: Lora, seed: int) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer
    except ImportError:
        raise TrainingStoppedError("model.lora needs peft: pip install 'agent-rl[lora]'") from None
    targets: Any = "all-linear" if lora.targets == ("all-linear",) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=targets, bias="none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # every learner of a run begins with the same adapters
        config.task_type = "CAUSAL_LM"
        head = module.get_output_embeddings()
        fitting = {
            name: each for name, each in module.named_modules() if isinstance(each, nn.Linear) and each is not head
        }
        try:
            inject_adapter_in_model(config, module, adapter_name=ADAPTER)
            strange = {n for n, each in module.named_modules() if isinstance(each, LoraLayer)} - fitting.keys()
            fault = f"names {', '.join(sorted(strange))}, which cannot be adapted here" if strange else ""
        except ValueError:
            fault = f"{list(lora.targets)} fits no layer of the model"
    if fault:
        names = ", ".join(sorted({name.rpartition(".")[2] for name in fitting}))
        raise TrainingStoppedError(f"model.lora.targets: {fault}; choose among {names}")


def merged(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state with each adapter added to its weight, under the names of the model without adapters."""
    from peft.tuners.lora import LoraLayer

    layers: Iterable[tuple[str, Any]] = [(n, m) for n, m in module.named_modules() if isinstance(m, LoraLayer)]
    plain = {name.replace(".base_layer.", "."): t for name, t in state.items() if ".lora_" not in name}
    with torch.no_grad():
        for name, layer in layers:
            weight = plain[f"{name}.weight"]
            plain[f"{name}.weight"] = weight + layer.get_delta_weight(ADAPTER).to(weight.dtype)
    return plain
