"""The torch engine's model: loaded from a Hugging Face directory; new weights replace all tensors in place, or none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from actors.engines.base import EngineError, ModelError
from actors.engines.torch.fused import FusedDecoder, can_fuse
from actors.engines.torch.kv_cache import ATTENTION, ForwardStep, KVCache
from actors.engines.weight_files import DTYPES, TensorSpec, check_file
from agent_rl.learning.linear import bound_caches, use_one_dnn
from agent_rl.learning.rates import compute_of
from agent_rl.learning.tensor_files import load_whole
from agent_rl.models.architectures import torch_fault, window
from agent_rl.models.model_files import ModelFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from actors.engines.weight_files import TensorSpecs
    from agent_rl.learning.rates import Type


class HostMemory:
    """Moves the content of tensors to host memory and back, in place.

    Storages are moved, not tensors: whatever views a storage, such as the parts of a fused product, stays valid. The
    host memory is kept from the first move on; for a GPU it is pinned.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """``tensors`` may share storages. Until they are put back, nobody may read or write them."""
        storages = [tensor.untyped_storage() for tensor in tensors]
        self._storages = list({storage.data_ptr(): storage for storage in storages}.values())
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._copies: list[Tensor] = []
        self.taken = False
        """Whether the content is in host memory alone."""

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return sum(self._sizes)

    def take(self) -> None:
        """Copy the content, and free the storages."""
        if self.taken:
            return
        if not self._copies:
            pinned = any(storage.device.type == "cuda" for storage in self._storages)
            self._copies = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for size in self._sizes]
        for storage, copy in zip(self._storages, self._copies, strict=True):
            copy.copy_(_bytes(storage))
            storage.resize_(0)
        self.taken = True

    def put_back(self) -> None:
        """Take memory for the storages, and copy the content back. Raises torch.OutOfMemoryError."""
        if not self.taken:
            return
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        for storage, copy in zip(self._storages, self._copies, strict=True):
            _bytes(storage).copy_(copy)
        self.taken = False


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    """The content of a storage, [bytes] uint8."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class CausalModel:
    """A decoder-only Hugging Face model whose attention reads this package's KV cache.

    A `FusedDecoder` computes Llama-like models. Other models are computed by their own modules.
    """

    def __init__(
        self, path: Path, *, dtype: Type, device: torch.device, compute: Literal["auto"] | Type = "auto"
    ) -> None:
        """``dtype``: of the weights that come; the model holds and computes them in ``compute``."""
        if fault := torch_fault(ModelFiles.read(path).config):
            raise ModelError(f'the torch engine cannot serve {path}: it {fault}; write engine = "vllm"')
        self.compute = compute_of(compute, dtype, path, device)
        self.dtype = self.compute.dtype
        try:
            model = load_whole(path, dtype=self.dtype, attention=ATTENTION)
            self._model = model.to(device).eval().requires_grad_(requires_grad=False)
        except (torch.OutOfMemoryError, MemoryError) as error:  # a process that has just died may still hold memory
            remedy = "serve a smaller model, or free memory on the device"
            raise EngineError(f"no memory on {device} for the model {path}: {error}; {remedy}") from error
        except Exception as error:  # transformers raises arbitrary errors for models it cannot load
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            remedy = "name a model that this transformers can load, or save it again"
            raise ModelError(f"cannot load a model from {path}: {reason}; {remedy}") from error
        one_dnn = device.type == "cpu" and _has_one_dnn(self.dtype)
        if one_dnn:
            bound_caches()
        config = model.config.get_text_config()
        self.device = device
        self.layers: int = config.num_hidden_layers
        self.vocabulary: int = config.vocab_size
        self._tokens = ModelFiles.read(path).tokens
        self.max_length: int = min(config.max_position_embeddings, window(config.to_dict()) or sys.maxsize)
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._fused: FusedDecoder | None = None
        if can_fuse(model):
            self._fused = FusedDecoder(
                model, kv_heads=self.kv_heads, head_dim=self.head_dim, max_length=self.max_length, one_dnn=one_dnn
            )
        elif one_dnn and self.dtype == torch.float32:
            use_one_dnn(model)
        on_device = (each for each in (*model.parameters(), *model.buffers()) if each.device.type != "cpu")
        self._away = HostMemory(on_device)
        self._tensors: dict[str, Tensor] = model.state_dict()
        names_at: dict[int, set[str]] = {}
        for name, tensor in self._tensors.items():
            names_at.setdefault(tensor.data_ptr(), set()).add(name)
        self.specs: TensorSpecs = {
            name: TensorSpec(
                tuple(tensor.shape),
                DTYPES[dtype] if tensor.is_floating_point() else str(tensor.dtype),
                frozenset(names_at[tensor.data_ptr()]),
            )
            for name, tensor in self._tensors.items()
        }

    def new_cache(self, rows: int) -> KVCache:
        """A cache for ``rows`` sequences of this model."""
        return KVCache(
            layers=self.layers,
            rows=rows,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_length=self.max_length,
            dtype=self.dtype,
            device=self.device,
        )

    def forward(self, tokens: Tensor, positions: Tensor, ends: Tensor, step: ForwardStep) -> Tensor:
        """Logits [w, vocabulary] after the tokens at ``ends`` [w]; ``tokens`` and ``positions`` [n], all int64.

        Tokens that the tokenizer does not know are never sampled: a vocabulary may be padded.
        """
        if self._fused is not None:
            logits: Tensor = self._fused.forward(tokens, positions, ends, step)
        else:
            output = self._model(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=ends, kv_step=step
            )
            logits = output.logits[0]
        if self._tokens is not None:
            logits[:, self._tokens :] = -torch.inf
        return logits

    def replace_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the result of ``read_weights`` into the model, in place."""
        for name, tensor in weights.items():
            held = self._tensors[name]  # to copy_ between devices and types at once is to convert on the processor
            held.copy_(tensor if tensor.dtype == held.dtype else tensor.to(held.device))
        if self._fused is not None:
            self._fused.refresh()

    def leave_device(self) -> None:
        """Move the weights to host memory, where those of a processor are already; nothing else may be called then."""
        self._away.take()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def return_to_device(self) -> None:
        """Move the weights back. Raises EngineError when the device's memory cannot be had."""
        try:
            self._away.put_back()
        except torch.OutOfMemoryError as error:
            remedy = "whoever shares the device must leave more of it"
            raise EngineError(f"no memory on {self.device} to wake: {error}; {remedy}") from error


def _has_one_dnn(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - as torch's compiler asks
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()


def read_weights(path: Path, specs: TensorSpecs) -> dict[str, Tensor]:
    """Read a safetensors file with exactly the tensors of ``specs``. Of tied names, one is enough.

    Raises EngineError with the file's name and the first faults when a tensor is missing, unknown, or of another shape
    or dtype, or when the file is incomplete.
    """
    check_file(path, specs)
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read weights from {path}: {error}") from error
    check_ties(weights, specs, str(path))
    return weights


def check_ties(weights: Mapping[str, Tensor], specs: TensorSpecs, source: str) -> None:
    """Raise EngineError when tied tensors differ."""
    for name, spec in specs.items():
        for alias in (spec.aliases - {name}) & weights.keys():
            if name in weights and not torch.equal(weights[name], weights[alias]):
                raise EngineError(f"{source} does not fit the model: {name} differs from {alias}, to which it is tied")
