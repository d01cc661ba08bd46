"""The reference policy of the KL penalty: the policy at the start of the stage, or another model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoTokenizer

from agent_rl.learning.exporting import Shares, own_parts, write_one
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.policy_model import ModelOptions, PolicyModel
from agent_rl.learning.ranks import Ranks
from agent_rl.learning.rates import Type
from agent_rl.learning.tensor_files import TensorFiles
from agent_rl.models.model_files import vocabulary_fault

KEY = "algorithm.kl.reference"


class StageStart:
    """The policy at the start of the stage: the trained tensors of that time, in host memory and in a file."""

    def __init__(self, model: PolicyModel) -> None:
        self._model = model
        self._weights: Mapping[str, Tensor] | None = None

    def keep(self, path: Path) -> None:
        """Make the present policy the reference, and write its trained tensors to ``path`` for a restart."""
        self._weights = {name: tensor.to("cpu", copy=True) for name, tensor in self._model.trained().items()}
        write_one(Shares.trained(self._model, self._weights), path, self._model.ranks)

    def load(self, path: Path) -> None:
        """Take the reference from a file. Raises TrainingStoppedError when it is missing or of another model."""
        remedy = f"start again in another run.directory, or name a model as {KEY}"
        if not path.is_file():
            raise TrainingStoppedError(f"{KEY}: {path}, the policy at the start of the stage, is missing; {remedy}")
        try:
            with TensorFiles([path]) as files:
                self._weights = own_parts(self._model, files)
                if files.names() != self._weights.keys():
                    raise KeyError(*files.names() - self._weights.keys())  # noqa: TRY301 - one message for all
        except (KeyError, ValueError) as error:
            raise TrainingStoppedError(f"{KEY}: {path} holds the weights of another model; {remedy}") from error

    @contextmanager
    def model(self) -> Iterator[PolicyModel]:
        """The reference, to compute with and not to train."""
        assert self._weights is not None, "the stage has not begun"
        with torch.no_grad(), self._model.with_weights(self._weights):
            yield self._model


class OtherModel:
    """A model of its own, beside the trained one on its device."""

    def __init__(
        self,
        path: Path,
        *,
        dtype: Type,
        device: str,
        options: ModelOptions,
        compute: Literal["auto"] | Type = "auto",
        tokenizer: Any,
        ranks: Ranks | None = None,
    ) -> None:
        """Raises TrainingStoppedError when it cannot be loaded, or has another vocabulary than ``tokenizer``."""
        try:
            vocabulary = AutoTokenizer.from_pretrained(path, trust_remote_code=False).get_vocab()
        except Exception as error:  # transformers raises exceptions of many types
            raise TrainingStoppedError(f"{KEY}: {path} has no tokenizer that can be loaded: {error}") from error
        if fault := vocabulary_fault(vocabulary, tokenizer.get_vocab()):
            raise TrainingStoppedError(f"{KEY}: {path} {fault}")
        self._model = PolicyModel(path, dtype=dtype, device=device, options=options, compute=compute, ranks=ranks)
        self._model.module.eval().requires_grad_(False)

    @contextmanager
    def model(self) -> Iterator[PolicyModel]:
        """The reference, to compute with and not to train."""
        with torch.no_grad():
            yield self._model
