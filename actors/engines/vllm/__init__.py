"""vLLM behind the engine interface, and code of this project that runs in vLLM's processes."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import ``VllmEngine`` on access: vLLM's own processes import this package only for other parts."""
    if name != "VllmEngine":
        raise AttributeError(name)
    from actors.engines.vllm.engine import VllmEngine

    return VllmEngine
