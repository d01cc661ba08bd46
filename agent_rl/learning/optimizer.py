"""Fused AdamW, with float32 master weights when the model's weights are in half precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agent_rl.learning.finite import NotFiniteError, named, not_finite
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.sharding import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BETAS = (0.9, 0.999)


class Optimizer:
    """The trained weights of a model, their gradients and moments.

    In half precision each weight has a float32 copy, which takes the updates and whose gradient is the sum over
    micro-batches. The model's weight is the rounded copy. Without the copy, an update of a bfloat16 weight by less than
    1/256 would be lost. A parameter then takes 2 + 16 bytes (weight; copy, gradient, two moments), and 16 bytes in
    float32.

    A sharded weight is updated in place, in this rank's part of it, which is float32. It is its own master copy.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        weight_decay: float,
        ranks: Ranks | None = None,
        half: bool = False,
    ) -> None:
        """``half``: the weights are served in half precision, so that a `state` needs the master copies too."""
        trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        self._ranks = ranks or Ranks()
        self._masters = {name: self._master(p) for name, p in trained}
        self._sharded = [(p, self._masters[name]) for name, p in trained if local(p) is not p]
        self._halves = [(p, self._masters[name]) for name, p in trained if p.dtype != torch.float32]
        self._give_back: Callable[[], None] | None = None
        self._keeps_masters = half or bool(self._halves)
        self._adam = torch.optim.AdamW(
            self._masters.values(), lr=0.0, betas=BETAS, weight_decay=weight_decay, fused=True
        )

    @staticmethod
    def _master(parameter: nn.Parameter) -> nn.Parameter:
        if local(parameter) is not parameter:
            return nn.Parameter(local(parameter))
        return parameter if parameter.dtype == torch.float32 else _Master(parameter).weight

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter, _ in self._sharded:
            parameter.grad = None
        self._adam.zero_grad(set_to_none=True)

    def step(self, rate: float, clip: float) -> float:
        """Clip and apply the gradient; return its norm.

        The norm is that of all ranks together. Raises NotFiniteError, with nothing changed, for a norm not finite.
        """
        for parameter, master in self._sharded:
            master.grad = None if parameter.grad is None else local(parameter.grad)
        gradients = [(name, p.grad) for name, p in self._masters.items() if p.grad is not None]
        norm = self._ranks.norm(torch.nn.utils.get_total_norm([gradient for _, gradient in gradients]))
        if not math.isfinite(norm):
            where = not_finite(gradients)
            self.zero_grad()
            raise NotFiniteError(f"the gradient's norm is {float(norm)}" + (f": see {named(where)}" if where else ""))
        self._take()
        torch.nn.utils.clip_grads_with_norm_(self._masters.values(), clip, norm)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self._round()
        return float(norm)

    @torch.no_grad()
    def take_back(self, share: float) -> None:
        """Take back a share of the last `step`, up to rounding; its moments stay. No copy of the weights is needed."""
        for group in self._adam.param_groups:
            rate, decay, epsilon = group["lr"], group["weight_decay"], group["eps"]
            for weight in group["params"]:
                if weight.grad is None or not (state := self._adam.state.get(weight)):
                    continue
                (first, second), step = BETAS, float(state["step"])
                size = (state["exp_avg_sq"] / (1.0 - second**step)).sqrt_().add_(epsilon)
                moved = (state["exp_avg"] / size).mul_(rate / (1.0 - first**step)).add_(weight, alpha=rate * decay)
                weight.add_(moved, alpha=share / (1.0 - rate * decay))
        self._round()

    def reset(self) -> None:
        """Forget the moments, as a stage may ask."""
        self._adam.state.clear()

    def snapshot(self) -> Callable[[], None]:
        """Copy weights and moments to host memory; returns a function that restores them, bit for bit."""
        weights = {name: weight.detach().to("cpu", copy=True) for name, weight in self._masters.items()}
        tensors, steps = self.state(copy=True)

        def put_back() -> None:
            self._take()
            for name, weight in self._masters.items():
                weight.data.copy_(weights[name])
            self.load(tensors, steps)

        return put_back

    def lend(self, give_back: Callable[[], None]) -> None:
        """Let another thread read weights and moments: what changes them calls ``give_back`` before, once."""
        self._give_back = give_back

    def _take(self) -> None:
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    def state(self, *, copy: bool = False) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Moments and master weights as named tensors on the host, and step counts as numbers: no pickle on disk.

        Of sharded weights, the parts of this rank. Tensors that are on the host already share their memory, unless a
        ``copy`` is asked for.
        """
        tensors: dict[str, Tensor] = {}
        steps: dict[str, float] = {}
        for name, weight in self._masters.items():
            for key, value in self._adam.state.get(weight, {}).items():
                if key == "step":
                    steps[name] = float(value)
                else:
                    tensors[f"{name}.{key}"] = value.detach().to("cpu", copy=copy).contiguous()
        if self._keeps_masters:
            for name, weight in self._masters.items():
                tensors[f"{name}.master"] = weight.detach().to("cpu", copy=copy).contiguous()
        return tensors, steps

    def load(self, tensors: dict[str, Tensor], steps: dict[str, float]) -> None:
        """Restore a `state`. Raises KeyError when the state belongs to other weights."""
        self._take()
        self._adam.state.clear()
        state: dict[int, dict[str, Any]] = {}
        for index, (name, weight) in enumerate(self._masters.items()):
            if self._keeps_masters:
                weight.data.copy_(tensors[f"{name}.master"])
            if name in steps:
                moments = {key: tensors[f"{name}.{key}"] for key in ("exp_avg", "exp_avg_sq")}
                state[index] = {"step": torch.tensor(steps[name], dtype=torch.float32), **moments}
        self._adam.load_state_dict({**self._adam.state_dict(), "state": state})
        self._round()

    def _round(self) -> None:
        for parameter, master in self._halves:
            parameter.data.copy_(master.data)


class _Master:
    """The float32 copy of a weight. Each gradient of the weight is moved to the copy as soon as it is computed."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.weight = nn.Parameter(parameter.detach().float())
        parameter.register_post_accumulate_grad_hook(self._move)

    def _move(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        if self.weight.grad is None:
            self.weight.grad = parameter.grad.float()
        else:
            self.weight.grad += parameter.grad
        parameter.grad = None
