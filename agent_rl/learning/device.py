"""The device that a setting names, tried with torch."""

from __future__ import annotations

import torch

from agent_rl.models.devices import REMEDY


def usable_device(name: str) -> torch.device:
    """The device, after a trial. Raises ValueError with the remedy when this machine has no such device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device: torch has no {name!r} here ({reason}); {REMEDY}") from error
    return torch.device(name)
