"""What one rank of the learner holds at the peak of a step, with the arithmetic. No torch.

::

    state:   weights, gradients, moments                         always
    kept:    activations, gathered embeddings                    from the forward pass on
    peak:    logits, or one layer's backward pass                the larger one: logits are gone when layers begin

`docs/decisions/studies.md` compares the sum with what ranks took. Left out: what a GPU's allocator holds in reserve,
and what the libraries take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent_rl.models.shapes import Shape

MIB = 1 << 20
PIECE = 8 * MIB
"""Of the logits that a processor computes at once (`agent_rl.learning.logprobs`)."""
PRODUCTS = 16 * MIB
"""Of the compiled matrix products that oneDNN keeps (`agent_rl.learning.linear`), half a MiB each."""

BETWEEN_STEPS = frozenset({"weights", "weights, float32", "float32 copies", "moments"})
"""The rows of the state that a learner which shares its device holds between two steps: it frees the gradients."""


@dataclass(frozen=True, slots=True)
class Need:
    """One row of the plan."""

    where: str
    what: str
    size: int
    """Bytes."""
    how: str
    """The arithmetic."""


@dataclass(frozen=True, slots=True)
class Training:
    """What the learner's memory depends on, besides the model."""

    width: int
    """Bytes of a weight as it is served."""
    ranks: int
    shard: int
    tokens: int
    """Of a micro-batch, or of the longest sequence where that is longer."""
    checkpointed: bool
    logits_mib: int
    on_gpu: bool
    tensor: int = 1

    @property
    def parts(self) -> int:
        """Into how many parts the weights are divided."""
        return self.shard * self.tensor


def learner_needs(shape: Shape, training: Training, where: str) -> Iterator[Need]:
    """The rows of one rank of the learner, all weights trained."""
    yield from _state(shape, training, where)
    width, tokens, tensor = training.width, training.tokens, training.tensor
    layer = shape.layer_activation_bytes(width, repeated=not training.on_gpu, ranks=tensor)
    outer = shape.outer_activation_bytes(width)
    kept = width * shape.hidden if training.checkpointed else layer
    how = f"{tokens:,} tokens x ({shape.layers} layers x {kept:,} bytes, {outer:,})"
    yield Need(where, "activations", tokens * (shape.layers * kept + outer), how)
    embeddings = (1 if shape.tied else 2) * shape.embedding // tensor
    if training.parts > 1:
        how = f"{embeddings:,} weights of embeddings x {width} bytes, whole during a step"
        yield Need(where, "embeddings gathered", width * embeddings, how)
    if not training.on_gpu and width == 4:
        yield Need(where, "compiled products", PRODUCTS, "those that oneDNN keeps")
    logits, backward = _logits(shape, training, where), _backward(shape, training, where, layer, embeddings)
    larger, smaller = (logits, backward) if logits.size >= backward.size else (backward, logits)
    beside = f"; later {smaller.what}" if larger is logits else f"; before, {smaller.what}"
    yield Need(where, larger.what, larger.size, f"{larger.how}{beside}: {smaller.size / MIB:,.0f} MiB")


def _state(shape: Shape, training: Training, where: str) -> Iterator[Need]:
    count, width = shape.weights, training.width
    if training.parts > 1:
        part = f"{count:,} weights / {training.parts} ranks"
        yield Need(where, "weights, float32", 4 * count // training.parts, f"{part} x 4 bytes")
        yield Need(where, "gradients", 4 * count // training.parts, f"{part} x 4 bytes")
        yield Need(where, "moments", 8 * count // training.parts, f"{part} x 8 bytes")
        return
    yield Need(where, "weights", width * count, f"{count:,} weights x {width} bytes")
    if width == 2:
        yield Need(where, "float32 copies", 4 * count, f"{count:,} weights x 4 bytes")
    yield Need(where, "gradients", 4 * count, f"{count:,} weights x 4 bytes")
    yield Need(where, "moments", 8 * count, f"{count:,} weights x 8 bytes")


def _logits(shape: Shape, training: Training, where: str) -> Need:
    """The logits of a micro-batch and the gradient of the output layer, which is summed in float32 and then rounded."""
    whole = 4 * training.tokens * shape.vocabulary // training.tensor
    bound = training.logits_mib * MIB
    if training.on_gpu:
        size, how = min(3 * bound, 3 * whole), f"at most 3 x logits_mib {training.logits_mib}"
    else:
        kept = whole if whole <= bound else 0
        size, how = kept + 2 * min(PIECE, whole), f"{kept / MIB:,.0f} MiB kept, 2 pieces of {PIECE // MIB} MiB"
    each = 4 if training.width == 4 else 4 + training.width
    weights = shape.embedding // training.tensor
    return Need(where, "logits", size + each * weights, f"{how}, gradient {weights:,} x {each} bytes")


def _backward(shape: Shape, training: Training, where: str, layer: int, embeddings: int) -> Need:
    """One layer's backward pass: gradients of its activations, and of several ranks what they gather and sum."""
    width, tensor = training.width, training.tensor
    each = width * (3 * shape.mlp // tensor + 3 * shape.hidden) + (layer if training.checkpointed else 0)
    size, how = training.tokens * each, f"{training.tokens:,} tokens x {each:,} bytes"
    if training.parts > 1:
        # Gathered are the layer and the next one, whose parts also lie side by side before they are put in place.
        # Gradients are copied to float32, to be summed. Those of the embeddings wait for the end of the pass.
        of_layer, weights = 4 * width + 4, shape.layer_weights // tensor
        size += of_layer * weights + width * embeddings
        how += f", {weights:,} weights x {of_layer} bytes, {embeddings:,} x {width}"
    else:
        size += width * shape.hidden * shape.mlp
        how += f", gradient {shape.hidden * shape.mlp:,} x {width} bytes"
    return Need(where, "a layer's backward pass", size, how)
