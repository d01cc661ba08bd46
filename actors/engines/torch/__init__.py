"""The engine in the generator's process: continuous batching over a Hugging Face model on torch."""

from actors.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
