"""The device that a setting names."""

from __future__ import annotations

import torch


def usable_device(name: str) -> torch.device:
    """The device, tried. Raises ValueError, with the remedy, when there is none of that name here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        remedy = 'set the actor\'s device to "cpu", or to "cuda" on a host with a GPU and a torch that was built for it'
        raise ValueError(f"device: torch has no {name!r} here ({reason}); {remedy}") from error
    return torch.device(name)
