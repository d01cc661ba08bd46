"""The type that matrix products are computed in, and what a device reaches: products and memory, in each type.

Weights are kept and published in `model.dtype`. Products may be faster in the other type: a processor with avx512_bf16
multiplies bfloat16 five times as fast as float32, and one with AVX2 alone a tenth as fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from agent_rl.learning.linear import product
from agent_rl.models.model_files import weight_count
from agent_rl.models.shapes import LEAST_WEIGHTS

Type: TypeAlias = Literal["float32", "bfloat16"]
TYPES: dict[Type, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FASTER = 1.5
"""The other type is taken where it is so many times as fast: it costs copies, and differs from what is published."""
UPDATE_SHARE = 0.5
"""The share of the measured rate that an update reaches, about."""
ROWS, INPUTS, OUTPUTS = 512, 576, 1536
"""Of the product that is measured: the MLP of a model of 135M weights, with a short micro-batch."""
SECONDS = 0.04
"""Of a measurement, at least."""
BYTES = 1 << 28
"""Of the tensor that is read to measure the memory: more than a processor's cache."""


@dataclass(frozen=True, slots=True)
class Compute:
    """The type of matrix products, and why it was taken."""

    type: Type
    why: str
    rates: Mapping[Type, float] = field(default_factory=dict)
    """FLOP/s in each type, where they were measured."""

    @property
    def dtype(self) -> torch.dtype:
        """As torch has it."""
        return TYPES[self.type]

    @property
    def bits(self) -> int:
        """Of a value."""
        return 8 * self.dtype.itemsize

    def row(self) -> dict[str, str | int]:
        """For the log."""
        rates = {f"{name}_gflops": round(rate / 1e9) for name, rate in self.rates.items()}
        return {"computed_in": self.type, "why": self.why, **rates}

    def update_seconds(self, weights: int, tokens: int) -> float | None:
        """About how long an update on so many tokens takes; None where no rate was measured."""
        rate = self.rates.get(self.type)
        return None if rate is None else 6 * weights * tokens / (UPDATE_SHARE * rate)


def compute_of(wanted: Literal["auto"] | Type, kept: Type, model: Path, device: torch.device) -> Compute:
    """The type of products of the model in this directory, on a device; with "auto" by a measurement of 0.1 s.

    torch's threads are those that compute later. A measurement that fails leaves the type that weights are kept in.
    """
    if wanted != "auto":
        return Compute(wanted, "[model] compute")
    if (weight_count(model) or 0) < LEAST_WEIGHTS:
        return Compute(kept, f"below {LEAST_WEIGHTS:,} weights")
    try:
        rates = {name: product_rate(device, dtype) for name, dtype in TYPES.items()}
    except RuntimeError as error:  # a type that the device lacks, or no memory
        return Compute(kept, f"the measurement failed: {str(error).splitlines()[0]}")
    return Compute(faster(kept, rates), "measured", rates)


def faster(kept: Type, rates: Mapping[Type, float]) -> Type:
    """The type to compute in, where weights are kept in ``kept``."""
    other: Type = "bfloat16" if kept == "float32" else "float32"
    return other if rates[other] > FASTER * rates[kept] else kept


def product_rate(
    device: torch.device, dtype: torch.dtype, rows: int = ROWS, inputs: int = INPUTS, outputs: int = OUTPUTS
) -> float:
    """FLOP/s of a linear layer's product on torch's threads."""
    values, weight = (torch.randn(each, inputs, device=device).to(dtype) for each in (rows, outputs))
    return 2 * rows * inputs * outputs / _seconds(lambda: product(values, weight), device)


def rates_text(device: torch.device) -> str:
    """What a device reaches, in words."""
    products = ", ".join(f"{name} {product_rate(device, dtype) / 1e9:,.0f}" for name, dtype in TYPES.items())
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"products in GFLOP/s: {products}; memory {memory_rate(device) / 1e9:,.0f} GB/s{threads}"


def memory_rate(device: torch.device) -> float:
    """Bytes/s that are read: the sum of a large tensor."""
    values = torch.ones(BYTES // 4, device=device)
    return BYTES / _seconds(values.sum, device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one call, the least of several."""

    def once() -> float:
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    with torch.inference_mode():
        once()  # loads and compiles
        spent = [once()]
        while sum(spent) < SECONDS:
            spent.append(once())
    return min(spent)
