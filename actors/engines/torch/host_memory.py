"""Tensors whose content waits in host memory while their device is somebody else's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class HostMemory:
    """Moves the content of tensors to host memory and back, in place.

    Storages are moved, not tensors: whatever views a storage, such as the parts of a fused product, stays valid. The
    host memory is kept from the first move on; for a GPU it is pinned.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """``tensors`` may share storages. Until they are put back, nobody may read or write them."""
        storages = [tensor.untyped_storage() for tensor in tensors]
        self._storages = list({storage.data_ptr(): storage for storage in storages}.values())
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._copies: list[Tensor] = []
        self.taken = False
        """Whether the content is in host memory alone."""

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return sum(self._sizes)

    def take(self) -> None:
        """Copy the content, and free the storages."""
        if self.taken:
            return
        if not self._copies:
            pinned = any(storage.device.type == "cuda" for storage in self._storages)
            self._copies = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for size in self._sizes]
        for storage, copy in zip(self._storages, self._copies, strict=True):
            copy.copy_(_bytes(storage))
            storage.resize_(0)
        self.taken = True

    def put_back(self) -> None:
        """Take memory for the storages, and copy the content back. Raises torch.OutOfMemoryError."""
        if not self.taken:
            return
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        for storage, copy in zip(self._storages, self._copies, strict=True):
            _bytes(storage).copy_(copy)
        self.taken = False


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    """The content of a storage, [bytes] uint8."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
