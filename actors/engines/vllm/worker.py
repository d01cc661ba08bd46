"""What runs inside vLLM's worker processes: taking up published weights into the model that is being served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from actors.weights.transfer import receive
from agent_rl.messages import TransferOffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


class PublishedWeightsLoader:
    """Mixed into vLLM's worker (``worker_extension_cls``); called by ``collective_rpc`` while generation is paused."""

    model_runner: Any
    vllm_config: Any
    rank: int
    device: Any

    agent_rl_received: tuple[str, dict[str, Tensor]] = "", {}
    """What came of the last transfer, under its key, until it is loaded."""

    def agent_rl_load_file(self, path: str) -> None:
        """Read a whole safetensors file, under the names of the Hugging Face model, into every rank's part of the model."""
        self._agent_rl_load(_tensors(path))

    def agent_rl_receive(self, offer: dict[str, Any]) -> None:
        """Receive all tensors of a transfer, and keep them beside the model. Raises TransferError when not all came."""
        self.agent_rl_received = "", {}
        parallel = self.vllm_config.parallel_config
        rank = 1 + parallel.data_parallel_index * parallel.world_size + self.rank
        self.agent_rl_received = offer["key"], receive(TransferOffer(**offer), rank, str(self.device))

    def agent_rl_load_received(self, key: str) -> None:
        """Load what came of that transfer, which came to all ranks."""
        (received, tensors), self.agent_rl_received = self.agent_rl_received, ("", {})
        if received != key:
            raise ValueError(f"what was received is of transfer {received!r}, not of {key!r}")
        self._agent_rl_load(tensors.items())

    def _agent_rl_load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.model_runner.reload_weights(weights_iterator=iter(tensors))
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
