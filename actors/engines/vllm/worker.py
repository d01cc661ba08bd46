"""Runs inside vLLM's worker processes: loads published weights into the served model."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from actors.weights.transfer import receive
from agent_rl.messages import TransferOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor


def _answered(method: Callable[..., None]) -> Callable[..., str]:
    """Return the fault of a method in place of raising it.

    When a worker raises, vLLM leaves the answers of the other workers in their queues, and takes them for answers to
    the next call.
    """

    @wraps(method)
    def answering(*given: Any) -> str:
        try:
            method(*given)
        except Exception as error:  # noqa: BLE001 - of vLLM's loader, too; the engine raises it
            return f"{type(error).__name__}: {error}"
        return ""

    return answering


class PublishedWeightsLoader:
    """Mixed into vLLM's worker (``worker_extension_cls``). ``collective_rpc`` calls it while generation is paused.

    What changes weights returns its fault, or an empty text.
    """

    model_runner: Any
    vllm_config: Any
    rank: int
    device: Any

    agent_rl_received: tuple[str, dict[str, Tensor]] = "", {}
    """The key and tensors of the last transfer, until they are loaded."""

    @_answered
    def agent_rl_load_file(self, path: str) -> None:
        """Load a whole safetensors file with the names of the Hugging Face model; each rank takes its part."""
        self._agent_rl_load(_tensors(path))

    @_answered
    def agent_rl_receive(self, offer: dict[str, Any]) -> None:
        """Receive all tensors of a transfer, whole; keep them beside the model."""
        self.agent_rl_received = "", {}
        parallel = self.vllm_config.parallel_config
        worker = parallel.data_parallel_index * parallel.world_size + self.rank
        self.agent_rl_received = offer["key"], receive(TransferOffer(**offer), worker, str(self.device))

    @_answered
    def agent_rl_load_received(self, key: str) -> None:
        """Load the tensors of the transfer ``key``, which all ranks have received."""
        (received, tensors), self.agent_rl_received = self.agent_rl_received, ("", {})
        if received != key:
            raise ValueError(f"the received weights are of transfer {received!r}, not of {key!r}")
        self._agent_rl_load(tensors.items())

    def _agent_rl_load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self.model_runner.reload_weights(weights_iterator=iter(tensors))
        model = self.model_runner.get_model()
        for module in model.modules():
            # On CPU a linear layer uses a packed copy of its weight. vLLM does not repack tied weights.
            if getattr(module, "cpu_linear", None) is not None and getattr(module, "weight", None) is not None:
                from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

                dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def _tensors(path: str) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)
