"""The model being trained: load from a Hugging Face directory, log-probabilities of packed sequences, save."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from agent_rl.learning import sharding
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.linear import use_one_dnn
from agent_rl.learning.logprobs import chunked_logprobs
from agent_rl.learning.packing import ATTENTION, Packed, pack
from agent_rl.learning.prefixes import Prefixes
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.rates import TYPES, Compute, Type, compute_of
from agent_rl.learning.tensor_files import load_whole
from agent_rl.models import architectures
from agent_rl.models.devices import REMEDY
from agent_rl.models.model_files import ModelFiles

if TYPE_CHECKING:
    from agent_rl.config.topology import Lora


def usable_device(name: str) -> torch.device:
    """The device, after a trial. Raises ValueError with the remedy when this machine has no such device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device: torch has no {name!r} here ({reason}); {REMEDY}") from error
    return torch.device(name)


DIFFERENT = 0.05
"""Nats a token between packed rows and transformers' own attention that bfloat16 does not explain."""
BLOCK, SEGMENT_WEIGHTS = 16, 2**21
"""A further segment of a packed row costs a layer about as much time as this many products of a weight and a token.
Prefixes are shared in blocks of as many tokens as are worth a segment, and of at most `BLOCK`.
"""
SHAKE = 2.0**-9
"""The spread of what embeddings are off by in `PolicyModel.shaken`: half the distance of numbers in bfloat16."""
ADAPTER = "default"
"""peft's name for the only adapter there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How the model is computed. No option changes the results beyond rounding."""

    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and recompute the rest: a third more work, far less memory."""
    compile: bool = False
    """Compile the decoder with torch.compile; the first steps take minutes."""
    offload: bool = False
    """Keep the parts of a sharded model in host memory."""
    logits_mib: int = 128
    """Memory for the logits of one piece; the peak is three times as much."""


class PolicyModel:
    """A decoder-only Hugging Face model whose sequences are packed (see `agent_rl.learning.packing`).

    Of several ``ranks``, each holds a part of it (`agent_rl.learning.sharding`), and all call the methods that compute
    or gather together. Raises TrainingStoppedError for models that cannot be trained this way.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: Type,
        device: str,
        options: ModelOptions,
        compute: Literal["auto"] | Type = "auto",
        lora: Lora | None = None,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.dtype = TYPES[dtype]
        """The type of what is served and saved."""
        sharded = self.ranks.size > 1
        try:
            self.device = usable_device(device)
            self.compute = Compute(dtype, "several ranks") if sharded else compute_of(compute, dtype, path, self.device)
            held = self.dtype if sharded else TYPES[held_in(dtype, self.compute.type)]
            if sharded:
                self.module: Any = sharding.unloaded(path, ATTENTION)
            else:
                self.module = load_whole(path, dtype=held, attention=ATTENTION).to(self.device)
        except Exception as error:  # transformers raises exceptions of many types
            raise TrainingStoppedError(
                f"{path} cannot be loaded for training: {' '.join(str(error).split())[:500]}"
            ) from error
        self.module.config.use_cache = False
        self.module.config.dtype = self.dtype
        config = self.module.config.get_text_config()
        told = config.to_dict()
        self._refuse(path, architectures.fault(told) or self._fault_of_head())
        self.logit_scale = architectures.logit_scale(told)
        self.max_length = min(int(config.max_position_embeddings), architectures.window(told) or sys.maxsize)
        """Tokens of the longest sequence: within the window that layers attend to."""
        self.tokens = ModelFiles.read(path).tokens
        """The tokens before this number are sampled; None: all."""
        self.adapted = lora is not None
        """Whether adapters alone are trained."""
        self._merges: dict[str, tuple[float, float]] = {}
        """Of each adapted weight as last merged into bfloat16: <published - base, change> and <change, change>."""
        if lora is not None:
            _add_adapters(self.module, lora, on_meta=sharded)
        self.block = self._block(config) if self.device.type == "cpu" and not options.compile else 0
        """Prefixes that sequences share are computed once, in multiples of so many tokens; 0: with each sequence."""
        if self.device.type == "cpu" and self.compute.type == "float32" and not options.compile:
            use_one_dnn(self.module)
        if options.activation_checkpointing:
            # renamed in transformers 5.20; checkpoints only what is in training mode
            renamed = getattr(self.module, "activation_checkpointing_enable", None)
            (renamed or self.module.gradient_checkpointing_enable)({"use_reentrant": False})
        self._drops, self._whole_block = False, 0
        self._checkpointed = [each for each in self.module.modules() if getattr(each, "gradient_checkpointing", False)]
        self._rates = [
            (each, name, value)
            for each in self._checkpointed
            for name, value in vars(each).items()
            if "drop" in name and isinstance(value, float)
        ]
        self.dropout(on=False)
        head = self.module.get_output_embeddings()
        self._tokens_at_once = max(16, options.logits_mib * 2**20 // (4 * head.weight.shape[0]))
        self._decode = self.module.base_model
        if options.compile:
            self._decode = torch.compile(self._decode, dynamic=True)
        self.cast = None if sharded or held == self.compute.dtype else self.compute.dtype
        """The type that products are computed in, where weights are held in another."""
        self._score: Callable[..., tuple[Tensor, Tensor]] = partial(
            _packed_logprobs, self.module, cast=self.cast, tokens=self.tokens
        )
        if sharded:
            self._shard(path, options)
        elif told["model_type"] not in architectures.EXACT:
            self._refuse(path, self._difference())
        if lora is not None:
            sharding.initialise_adapters(self.module, seed)

    def _block(self, config: Any) -> int:
        if getattr(config, "v_head_dim", None):
            return 0  # the attention of a tree has none
        embedding = self.module.get_input_embeddings().weight.numel()
        weights = sum(p.numel() for p in self.module.base_model.parameters()) - embedding
        return min(BLOCK, max(1, SEGMENT_WEIGHTS * int(config.num_hidden_layers) // int(weights)))

    def dropout(self, *, on: bool) -> None:
        """Switch the dropout that the model's configuration asks for, and other noise of training mode.

        Off, log-probabilities are those of the policy that engines serve. On, sequences share no prefix, since each
        draws noise of its own.
        """
        self.module.train(on)
        if on != self._drops:  # on, nothing else may set it
            self.block, self._whole_block = (0, self.block) if on else (self._whole_block, 0)
        self._drops = on
        for layer in self._checkpointed:  # transformers checkpoints only layers in training mode
            layer.training = True
        for layer, name, value in self._rates:  # what such a layer drops by itself
            setattr(layer, name, value if on else 0.0)

    def _shard(self, path: Path, options: ModelOptions) -> None:
        self.module.packed_logprobs = MethodType(_packed_logprobs, self.module)
        dtype, method = self.dtype, "packed_logprobs"
        sharding.shard(self.module, self.ranks, method=method, dtype=dtype, offload=options.offload)
        sharding.load(self.module, path, torch.device("cpu") if options.offload else self.device)
        self._score = partial(self.module.packed_logprobs, tokens=self.tokens)
        with torch.no_grad():
            self.keep_pace()  # torch settles where its parts lie at the first forward pass

    def _refuse(self, path: Path, fault: str) -> None:
        if fault:
            raise TrainingStoppedError(f"{path} cannot be trained: it {fault}; Llama, Qwen2, Qwen3 and their like can")

    def _fault_of_head(self) -> str:
        head = self.module.get_output_embeddings()
        if isinstance(head, nn.Linear):
            return ""
        return f"has a {type(head).__name__} as output layer, and the learner needs a plain linear one"

    @torch.no_grad()
    def _difference(self) -> str:
        """How log-probabilities of a packed row differ from those of transformers' own attention; empty if not.

        For types of models that nobody has compared.
        """
        known = torch.arange(self.tokens or len(self.module.get_output_embeddings().weight))
        sequences = [known[:: max(1, len(known) // length)][:length] for length in (9, 14)]
        sequences = [torch.cat([sequences[0], each]) for each in sequences]  # they share a prefix
        config = self.module.config.get_text_config()
        try:
            ours = self.logprobs(sequences, [torch.arange(len(each)) > 0 for each in sequences], temperature=1.0)[0]
            kept, config._attn_implementation = config._attn_implementation, "eager"  # noqa: SLF001 - read at each call
            try:
                whole = [self.module(input_ids=each[None].to(self.device), use_cache=False) for each in sequences]
            finally:
                config._attn_implementation = kept  # noqa: SLF001 - as above
        except Exception as error:  # noqa: BLE001 - of many types
            return f"cannot be computed in packed rows ({' '.join(f'{type(error).__name__}: {error}'.split())[:300]})"
        theirs = [
            given.logits[0, :-1, : len(known)].float().log_softmax(-1).gather(-1, each[1:, None].to(self.device))[:, 0]
            for given, each in zip(whole, sequences, strict=True)
        ]
        gap = float((torch.cat(theirs) - ours).abs().mean())
        return "" if gap < DIFFERENT else f"is not computed as transformers computes it: {gap:.2g} nats a token apart"

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained parameters: all, or the adapters."""
        return ((name, p) for name, p in self.module.named_parameters() if p.requires_grad)

    def microbatches(
        self, sequences: Sequence[Tensor], *, max_tokens: int, beside: Sequence[int] | None = None
    ) -> list[list[int]]:
        """Split sequences of tokens into packed rows of at most ``max_tokens``; returns indices. See `Ranks`.

        ``beside``: of each, the tokens of its branches, which stand in the same row.
        """
        prefixes = Prefixes.of([sequence.numpy() for sequence in sequences], self.block) if self.block else None
        lengths = [len(own) + more for own, more in zip(sequences, beside or [0] * len(sequences), strict=True)]
        return self.ranks.microbatches(lengths, max_tokens=max_tokens, prefixes=prefixes)

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
        first. Without ``with_entropy`` the entropies are 0. With several ranks each has sequences of its own, perhaps
        none, and all call this together.
        """
        if not sequences:
            sequences, wanted = [torch.zeros(1, dtype=torch.int64)], [torch.zeros(1, dtype=torch.bool)]
        packed = pack(sequences, self.device, block=self.block)
        places = torch.cat(list(wanted)).nonzero().squeeze(-1).to(self.device)
        before = places - 1 if packed.places is None else packed.places[places - 1]
        places = places if packed.places is None else packed.places[places]
        scored = self._score(
            packed,
            before,
            packed.tokens[0, places],
            self._decode,
            temperature / self.logit_scale,
            tokens_at_once=self._tokens_at_once,
            with_entropy=with_entropy,
        )
        if self.ranks.size > 1 and not torch.is_grad_enabled():
            self.module.reshard()  # the next pass must see weights that were changed in place
        return scored

    @contextmanager
    def shaken(self) -> Iterator[None]:
        """Embeddings are off by a rounding in bfloat16, the same each time: all roundings after them are others."""

        def shake(_: nn.Module, __: Any, embedded: Tensor) -> Tensor:
            drawn = torch.Generator(embedded.device).manual_seed(0)
            noise = torch.randn(embedded.shape, generator=drawn, device=embedded.device, dtype=torch.float32)
            return (embedded * (1.0 + SHAKE * noise)).to(embedded.dtype)

        handle = self.module.get_input_embeddings().register_forward_hook(shake)
        try:
            yield
        finally:
            handle.remove()

    def keep_pace(self) -> None:
        """Compute no sequence, while other ranks compute some: forward, and with gradients backward."""
        logprobs, _ = self.logprobs([], [], temperature=1.0, with_entropy=False)
        if torch.is_grad_enabled():
            logprobs.sum().backward()

    # Weights ----------------------------------------------------------------------------------------------------------

    def served(self) -> Iterator[tuple[str, Tensor]]:
        """The model's tensors as engines load them, whole, adapters merged, and only the first of tied tensors.

        They come one at a time: with several ranks each is gathered when it is asked for, and all ranks ask together.
        """
        adapters = _adapted_layers(self.module) if self.adapted else {}
        layout = self.served_layout()
        for name, kept in self._kept():
            plain = name.replace(".base_layer.", ".")
            tensor = sharding.gathered(kept)
            if plain in adapters:
                every = tuple(map(slice, tensor.shape))
                yield plain, self._merged(plain, tensor, every, *_factors(adapters[plain]), layout[plain][1])
            else:
                yield plain, tensor.to(layout[plain][1])

    def served_parts(self, copies: Mapping[str, Tensor]) -> dict[str, tuple[tuple[slice, ...], Callable[[], Tensor]]]:
        """The parts of what `served` gives that this rank has: where each lies, and what makes it in its type there.

        ``copies`` of `trained` tensors are taken in place of the present ones. All ranks call this; what makes a part
        may be called at any time, in any thread.
        """
        adapters = _adapted_layers(self.module) if self.adapted else {}
        layout = self.served_layout()
        found: dict[str, tuple[tuple[slice, ...], Callable[[], Tensor]]] = {}
        for name, kept in self._kept():
            plain = name.replace(".base_layer.", ".")
            values, part, dtype = copies.get(name, sharding.local(kept)), sharding.own_part(kept), layout[plain][1]
            if plain in adapters:
                make = partial(self._merged, plain, values, part, *_factors(adapters[plain]), dtype)
            else:
                make = partial(values.to, dtype)
            found[plain] = part, make
        return found

    def _merged(
        self,
        name: str,
        base: Tensor,
        part: tuple[slice, ...],
        down: Tensor,
        up: Tensor,
        scale: float,
        dtype: torch.dtype,
    ) -> Tensor:
        """A part of a weight with what its adapters add; the sum is that of whole weights, bit for bit."""
        change = (up @ down).mul_(scale)
        if dtype != torch.bfloat16:
            return (base + change[part].to(base.dtype)).to(dtype)
        start = base.to(dtype).float()
        merged = _dithered(start + change[part], name, change.shape, part)
        kept, change = merged.float() - start, change[part]
        self._merges[name] = float((kept * change).sum()), float(change.square().sum())
        return merged

    def delta_kept(self) -> float | None:
        """See `TrainingFigures.lora_delta_kept`. All ranks call this."""
        if not self.adapted or self.dtype != torch.bfloat16:
            return None
        made = list(self._merges.values())
        kept, change = self.ranks.total([sum(each[0] for each in made), sum(each[1] for each in made)])
        return kept / change if change else None

    def served_layout(self) -> dict[str, tuple[Sequence[int], torch.dtype]]:
        """The shapes and types of what `served` gives, by name."""
        return {
            name.replace(".base_layer.", "."): (
                tensor.shape,
                self.dtype if tensor.is_floating_point() else tensor.dtype,
            )
            for name, tensor in self._kept()
        }

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        tied = set(getattr(self.module, "all_tied_weights_keys", {}) or {})
        for name, tensor in self.module.state_dict().items():
            if name not in tied and ".lora_" not in name:
                yield name, tensor.detach()

    def trained(self) -> dict[str, Tensor]:
        """The tensors that training changes; of sharded ones, the parts of this rank."""
        return {name: sharding.local(p.detach()) for name, p in self.named_parameters()}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load `trained` tensors, or parts. Raises ValueError when they belong to another model."""
        own = self.trained()
        wrong = sorted(weights.keys() ^ own.keys()) or [n for n in own if own[n].shape != weights[n].shape]
        if wrong:
            raise ValueError(f"its weights are not this model's ({wrong[:3]} ...)")
        for name, tensor in own.items():
            tensor.copy_(weights[name])

    @contextmanager
    def with_weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Compute with other values of the `trained` tensors. Tensors on the same device are not copied."""
        if self.ranks.size > 1:  # torch gathers from the memory of the parts, so that their values change in place
            before = {name: tensor.clone() for name, tensor in self.trained().items() if name in weights}
            try:
                self._put(weights)
                yield
            finally:
                self._put(before)
            return
        own = dict(self.named_parameters())
        before = {name: own[name].data for name in weights}
        try:
            for name, tensor in weights.items():
                own[name].data = tensor.to(self.device, own[name].dtype)
            yield
        finally:
            for name, tensor in before.items():
                own[name].data = tensor

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self.trained().items():
                if name in weights:
                    tensor.copy_(weights[name])

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a directory that `from_pretrained` loads, with these `served` tensors; large models in several files.

        For one rank. See `agent_rl.learning.exporting` for several.
        """
        self.module.save_pretrained(directory, state_dict=dict(weights))


def held_in(dtype: Type, compute: Type) -> Type:
    """The type that one rank holds weights in: bfloat16 where they are served and computed in it."""
    return "bfloat16" if dtype == compute == "bfloat16" else "float32"


def _packed_logprobs(
    module: Any,
    packed: Packed,
    before: Tensor,
    targets: Tensor,
    decode: Callable[..., Any],
    temperature: float,
    *,
    tokens_at_once: int,
    with_entropy: bool,
    cast: torch.dtype | None = None,
    tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of m ``targets``, by the states at ``before`` [m] of a row, both [m] float32.

    ``cast``: the type of products, where it is not that of the weights. ``tokens``: those before are sampled.
    """
    with torch.autocast(packed.tokens.device.type, dtype=cast, enabled=cast is not None):
        states = decode(input_ids=packed.tokens, position_ids=packed.positions, use_cache=False, packed=packed)
    head = module.get_output_embeddings()
    weight, bias = head.weight, head.bias
    hidden = states.last_hidden_state[0, before]
    if cast is not None:
        hidden, weight, bias = hidden.to(cast), weight.to(cast), None if bias is None else bias.to(cast)
    return chunked_logprobs(
        hidden,
        weight,
        bias,
        targets,
        temperature=temperature,
        tokens_at_once=tokens_at_once,
        with_entropy=with_entropy,
        tokens=tokens,
    )


def _add_adapters(module: Any, lora: Lora, *, on_meta: bool) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer
    except ImportError:
        raise TrainingStoppedError("model.lora needs peft: pip install 'agent-rl[lora]'") from None
    targets: Any = "all-linear" if lora.targets == ("all-linear",) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules=targets, bias="none")
    with torch.random.fork_rng(devices=[]):
        config.task_type = "CAUSAL_LM"
        head = module.get_output_embeddings()
        fitting = {
            name: each for name, each in module.named_modules() if isinstance(each, nn.Linear) and each is not head
        }
        try:
            inject_adapter_in_model(config, module, adapter_name=ADAPTER, low_cpu_mem_usage=on_meta)
            strange = {n for n, each in module.named_modules() if isinstance(each, LoraLayer)} - fitting.keys()
            fault = f"names {', '.join(sorted(strange))}, which cannot be adapted here" if strange else ""
        except ValueError:
            fault = f"{list(lora.targets)} fits no layer of the model"
    if fault:
        names = ", ".join(sorted({name.rpartition(".")[2] for name in fitting}))
        raise TrainingStoppedError(f"model.lora.targets: {fault}; choose among {names}")


def _adapted_layers(module: nn.Module) -> dict[str, Any]:
    """The layers with adapters, by the names of their weights in the model without adapters."""
    from peft.tuners.lora import LoraLayer

    return {f"{name}.weight": layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}


def _factors(layer: Any) -> tuple[Tensor, Tensor, float]:
    """Copies of a layer's adapters A and B, whole and in float32, and alpha / rank."""
    down, up = (sharding.gathered(each[ADAPTER].weight.detach()).float() for each in (layer.lora_A, layer.lora_B))
    return down.clone(), up.clone(), layer.scaling[ADAPTER]


def _dithered(values: Tensor, name: str, shape: torch.Size, part: tuple[slice, ...]) -> Tensor:
    """Round float32 ``values``, this part of a weight [shape], to bfloat16: each up or down at a threshold of its own.

    The change by adapters is mostly smaller than half a step of bfloat16, and to round to the nearest value gives the
    weight without it: engines would serve the policy of the beginning. With thresholds that are drawn evenly, a tenth
    of a step moves a tenth of the elements by a step, so that products see the change (stochastic rounding, Gupta et
    al., arXiv 1502.02551). Thresholds are drawn by name, once: equal changes give equal bits on all ranks.
    """
    drawn = torch.Generator(values.device).manual_seed(zlib.crc32(name.encode()))
    thresholds = torch.randint(2**16, shape, generator=drawn, dtype=torch.int32, device=values.device)
    return ((values.view(torch.int32) + thresholds[part]) & -(2**16)).view(torch.float32).bfloat16()
