"""Engines and learner of the traces: Qwen3-14B on MI300X, from public figures. Nothing here was measured by us.

Sources. MI300X: 192 GB, 5.3 TB/s, 1307 TFLOPS in bf16 (AMD's data sheet). Qwen3-14B: 14.8e9 parameters, 40 layers,
width 5120, 8 KV heads of 128 (its config.json): 29.6 GB of weights, 163,840 bytes of KV cache a token.

Assumed: 60 % of the bandwidth and 35 % of the arithmetic are reached, which is usual for vLLM on this device; 3 ms of
every decode step are launches and sampling; tensor parallelism over 4 devices reaches 85 % of 4 devices.
"""

from __future__ import annotations

from agent_rl.simulation.trace import EngineModel, LearnerModel

WEIGHT_BYTES = 29.6e9
KV_BYTES = 163_840
BANDWIDTH = 0.6 * 5.3e12
FLOPS = 0.35 * 1307e12
OVERHEAD_S = 3e-3


def mi300x(devices: int = 1, *, speed: float = 1.0, memory: float = 1.0) -> EngineModel:
    """An engine on so many devices, of which ``speed`` and ``memory`` scale the device."""
    reached = speed * (devices if devices == 1 else 0.85 * devices)
    return EngineModel(
        kv_total=int((0.9 * 192e9 * memory * devices - WEIGHT_BYTES) / KV_BYTES),
        max_rollouts=512 * devices,
        step_s=OVERHEAD_S + WEIGHT_BYTES / (BANDWIDTH * reached),
        row_s=2 * 14.8e9 / (FLOPS * reached),
        context_s=KV_BYTES / (BANDWIDTH * reached),
        prefill_s=2 * 14.8e9 / (FLOPS * reached),
        prefill_context_s=4 * 40 * 5120 / (FLOPS * reached),
    )


def learner(devices: float) -> LearnerModel:
    """A learner on so many devices: 8 operations a parameter and token (recomputed activations), half of them kept."""
    return LearnerModel(tokens_per_s=devices * FLOPS / (8 * 14.8e9), kept=0.5)
