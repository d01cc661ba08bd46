"""vLLM behind the engine interface, and the parts of ours that run in vLLM's own processes."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """``VllmEngine``, where it is asked for: vLLM's own processes import this package for their parts alone."""
    if name != "VllmEngine":
        raise AttributeError(name)
    from actors.engines.vllm.engine import VllmEngine

    return VllmEngine
