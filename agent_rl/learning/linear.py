"""Linear layers in float32 on CPU by oneDNN, with gradients.

torch computes matrix products with MKL, which leaves half of an AMD processor's vector width unused. oneDNN takes half
the time there. Results differ only by rounding.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Variables of oneDNN and of ideep (a layer between torch and oneDNN): how many compiled products to keep."""
PRODUCTS = "32"
"""Compiled products that a process keeps: more than the layers of a micro-batch or of an engine's step need.

A compiled product is for one shape and takes about half a megabyte. Rows rarely have the same length twice, and by
default each library keeps 1,024 products, a gigabyte with the heap's fragmentation.
"""


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Inputs [..., in_features] times weight [out_features, in_features] transposed, without a gradient."""
    if inputs.device.type == "cpu" and inputs.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        linear = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - torch's own compiler calls it too
        output: Tensor = linear(inputs, weight, bias, "none", [], "")
        return output
    return functional.linear(inputs, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        (gradient,) = gradients
        rows = gradient.reshape(-1, gradient.shape[-1])
        inputs_needed, weight_needed, bias_needed = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if inputs_needed else None,
            product(rows.t(), inputs.reshape(-1, inputs.shape[-1]).t()) if weight_needed else None,
            rows.sum(0) if bias_needed else None,
        )


class OneDnnLinear(nn.Linear):
    """A linear layer whose products, forward and backward, are `product`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name of the base class
        """[..., in_features] -> [..., out_features]."""
        if not torch.is_grad_enabled():
            return product(input, self.weight, self.bias)
        output: Tensor = _Linear.apply(input, self.weight, self.bias)
        return output


def bound_caches() -> None:
    """Bound oneDNN's caches for the whole process, unless the user has set the environment variables.

    oneDNN reads the variables at its first product.
    """
    for name in CACHES:
        os.environ.setdefault(name, PRODUCTS)


def use_one_dnn(model: nn.Module) -> None:
    """Let oneDNN compute the plain linear layers; parameters and their names stay the same. Its caches are bounded."""
    bound_caches()
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear
