"""What runs inside vLLM's worker processes: reading published weights into the model that is being served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class PublishedWeightsLoader:
    """Mixed into vLLM's worker (``worker_extension_cls``); called by ``collective_rpc`` while generation is paused."""

    model_runner: Any

    def agent_rl_load_weights(self, path: str) -> None:
        """Read a whole safetensors file, under the names of the Hugging Face model, into every rank's part of the model."""
        self.model_runner.reload_weights(weights_iterator=_tensors(path))
        model = self.model_runner.get_model()
        for module in model.modules():
            # On CPU a linear layer computes from a packed copy of its weight; tied ones are not packed anew by vLLM.
            if getattr(module, "cpu_linear", None) is not None and getattr(module, "weight", None) is not None:
                from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

                dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def _tensors(path: str) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)
