"""What a topology and a profile make of a run: the trace that the twin runs, and the policy.

The rollout generators of the topology are the engines, its learner's ranks the learner. Problems, tools and texts are
not looked at: lengths of rollouts come from the profile.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.plugins import PluginError, resolve
from agent_rl.config.topology import InitialiseModel, RlStage, Topology
from agent_rl.models.hub import HubError, is_hub_name, metadata
from benchmarks.twin.profile import Device, ModelSizes, Profile, ProfileError
from benchmarks.twin.trace import EngineModel, LearnerModel, Shape, Trace, TraceError

GENERATOR, LEARNER, SCHEDULER = "rollout_generator", "learner", "kv_scheduler"
DEFAULT_POLICY, DEFAULT_ROLLOUTS = "sticky", 64
TORCH: dict[str, Any] = {"page": 1, "join_share": 1 / 8, "join_steps": 8}
"""The torch engine has no pages, and turns that wait join together (`actors.engines.torch.decode`)."""
VLLM = {"vllm", "actors.engines.vllm:VllmEngine"}
BYTES = {"float32": 4, "bfloat16": 2}
LEAST_TOKENS = 16
"""A turn writes at least so many tokens."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is simulated."""

    trace: Trace
    policy: str
    policy_settings: dict[str, Any]
    stage: str
    ranks: int
    """Devices of the learner."""
    width: int
    """Devices of an engine."""

    @property
    def devices(self) -> int:
        """Devices of engines and learner together."""
        return len(self.trace.engines) * self.width + self.ranks


def plan_of(
    topology: Topology,
    profile: Profile,
    *,
    where: str,
    steps: int,
    seed: int,
    stage: str = "",
    policy: str = "",
) -> Plan:
    """The run of an rl stage of the topology: the first, or the one of this name.

    ``policy`` replaces the topology's. ``where`` names the topology's file in errors.
    Raises TraceError or ProfileError, which name the file and the field.
    """
    index, rl, algorithm = _stage(topology, stage, where)
    settings = dict(topology.actors[GENERATOR].settings)
    ranks = topology.actors[LEARNER].ranks or 1
    width = int(settings.get("engine_settings", {}).get("tensor_parallel_size", 1))
    sizes = _model(topology, profile, where)
    names = [f"{GENERATOR}.{number}" for number in range(len(topology.homes(GENERATOR)))]
    model = _engine_model(profile, sizes, topology, settings, width, where)
    groups, limit = _groups(profile, rl, algorithm, steps, seed, index)
    if model.largest() < limit:
        fault = f"a rollout of {limit} tokens (limit) does not fit"
        raise TraceError(f"{where} with {profile.about}, engine, kv_total: {fault}")
    trace = Trace(
        samples=algorithm.samples,
        groups_per_step=algorithm.groups_per_step,
        steps=len(groups) // algorithm.groups_per_step,
        max_staleness=algorithm.max_staleness,
        limit=limit,
        engines=tuple(names),
        model=model,
        learner=_learner(profile, sizes, ranks, algorithm, settings),
        groups=groups,
    )
    name, own = _policy(topology, policy, where)
    return Plan(trace, name, own, rl.name, ranks, width)


def _stage(topology: Topology, name: str, where: str) -> tuple[int, RlStage, Algorithm]:
    stages = topology.rl_algorithms
    for index, stage, algorithm in stages:
        if name in {"", stage.name}:
            return index, stage, algorithm
    there = ", ".join(stage.name for _, stage, _ in stages) or "none"
    raise TraceError(f"{where}, stages: there is no rl stage {name}; there are: {there}")


def _policy(topology: Topology, asked: str, where: str) -> tuple[str, dict[str, Any]]:
    settings = topology.actors[SCHEDULER].settings
    name = asked or settings.get("policy", DEFAULT_POLICY)
    try:
        resolve("scheduling_policy", name)
    except PluginError as error:
        raise TraceError(f"{where}, actors.{SCHEDULER}.settings.policy: {error}") from error
    return name, {} if asked else dict(settings.get("policy_settings", {}))


def _model(topology: Topology, profile: Profile, where: str) -> ModelSizes | None:
    """The sizes of the topology's model: made here, on this machine, in the profile, or on the hub.

    None with a profile of an engine, whose seconds need no sizes.
    """
    if profile.engine is not None:
        return None
    if topology.model.initialise is not None:
        return _sizes_of(topology.model.initialise)
    name = topology.model.path or ""
    config = Path(name).expanduser() / "config.json"
    if config.is_file():
        return _sizes_in(config)
    if profile.model is not None and (not profile.model.of or name in profile.model.of):
        return profile.model
    fault = f"there is no {config}"
    if is_hub_name(name):
        try:
            return _sizes_in(metadata(name) / "config.json")
        except HubError as error:
            fault = str(error)
    raise ProfileError(f"{where}, model.path: {fault}; or write the model's sizes as [model] of a profile of your own")


def _sizes_of(made: InitialiseModel) -> ModelSizes:
    layer = made.hidden_size * (made.head_dim * (2 * made.heads + 2 * made.kv_heads) + 3 * made.mlp_size)
    return ModelSizes(
        parameters=float(made.layers * layer),
        layers=made.layers,
        hidden_size=made.hidden_size,
        kv_heads=made.kv_heads,
        head_dim=made.head_dim,
    )


def _sizes_in(config: Path) -> ModelSizes:
    try:
        read_config = json.loads(config.read_text(encoding="utf-8"))
        hidden, layers, heads = (
            int(read_config[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        )
        kv_heads = int(read_config.get("num_key_value_heads", heads))
        head_dim = int(read_config.get("head_dim") or hidden // heads)
        mlp, vocabulary = int(read_config["intermediate_size"]), int(read_config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{config}: the model's sizes cannot be read ({error!r})") from error
    tied = 1 if read_config.get("tie_word_embeddings") else 2
    parameters = layers * hidden * (head_dim * (2 * heads + 2 * kv_heads) + 3 * mlp) + tied * vocabulary * hidden
    return ModelSizes(
        parameters=float(parameters), layers=layers, hidden_size=hidden, kv_heads=kv_heads, head_dim=head_dim
    )


def _engine_model(
    profile: Profile, sizes: ModelSizes | None, topology: Topology, settings: dict[str, Any], width: int, where: str
) -> EngineModel:
    """The engine's seconds and its KV cache: the topology's ``kv_tokens``, or what the memory of its devices leaves."""
    rows = int(settings.get("max_rollouts", DEFAULT_ROLLOUTS))
    kv_tokens = settings.get("kv_tokens")
    if profile.engine is not None:
        kv_tokens = kv_tokens or _cache_of_torch(topology, settings, rows) or profile.engine.kv_tokens
        if kv_tokens is None:
            missing = "is missing, and the profile's [engine] has no kv_tokens; add one"
            raise TraceError(f"{where}, actors.{GENERATOR}.settings.kv_tokens: {missing}")
        seconds = profile.engine.model_dump(exclude={"kv_tokens"})
        return EngineModel(int(kv_tokens), rows, **seconds, **_habits(settings))
    device = profile.device
    assert device is not None
    assert sizes is not None, "a profile of a device needs a model's sizes"
    width_bytes = BYTES[topology.model.dtype]
    given = None if kv_tokens is None else int(kv_tokens)
    model = engine_on(device, sizes, width_bytes, width, rows, given, where)
    return replace(model, **_habits(settings))


def _cache_of_torch(topology: Topology, settings: dict[str, Any], rows: int) -> int | None:
    """The KV cache that a torch engine has if its settings do not say: room for rollouts of the model's length."""
    if settings.get("engine", "torch") in VLLM:
        return None
    if topology.model.initialise is not None:
        return rows * topology.model.initialise.max_length
    config = Path(topology.model.path or "") / "config.json"
    if not config.is_file():
        return None
    longest = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings")
    return rows * int(longest) if longest else None


def _habits(settings: dict[str, Any]) -> dict[str, Any]:
    """What an engine does in its own way. Engines of the user's own are taken to be like the torch engine."""
    return {} if settings.get("engine", "torch") in VLLM else TORCH


def engine_on(
    device: Device, sizes: ModelSizes, width_bytes: int, width: int, rows: int, kv_tokens: int | None, where: str = ""
) -> EngineModel:
    """An engine for this model on so many devices. Decoding reads weights and KV cache; prefill is arithmetic."""
    reached = width * (device.parallel_share if width > 1 else 1.0)
    bandwidth, flops = device.bandwidth * device.bandwidth_share * reached, device.flops * device.flops_share * reached
    weights = sizes.parameters * width_bytes
    kv_bytes = 2 * sizes.layers * sizes.kv_heads * sizes.head_dim * width_bytes
    if kv_tokens is None:
        kv_tokens = int((device.memory_share * device.memory_bytes * width - weights) / kv_bytes)
        if kv_tokens < 1:
            raise TraceError(f"{where}, model: its weights fill {width} devices; nothing is left for the KV cache")
    return EngineModel(
        kv_total=kv_tokens,
        max_rollouts=rows,
        step_s=device.step_overhead_s + weights / bandwidth,
        row_s=2 * sizes.parameters / flops,
        context_s=kv_bytes / bandwidth,
        prefill_s=2 * sizes.parameters / flops,
        prefill_context_s=4 * sizes.layers * sizes.hidden_size / flops,
    )


def _learner(
    profile: Profile, sizes: ModelSizes | None, ranks: int, algorithm: Algorithm, settings: dict[str, Any]
) -> LearnerModel:
    of, device = profile.learner, profile.device
    speed = of.tokens_per_s
    if speed is None:
        assert device is not None
        assert sizes is not None
        speed = ranks * device.flops * device.flops_share / (of.operations_per_parameter * sizes.parameters)
    keeps = settings.get("engine_settings", {}).get("kv_on_update")
    kept = min(algorithm.keep, algorithm.samples) / algorithm.samples
    return LearnerModel(speed, kept * profile.rollouts.signal, of.publish_s, of.pause_s, keeps == "keep")


def _groups(
    profile: Profile, stage: RlStage, algorithm: Algorithm, steps: int, seed: int, index: int
) -> tuple[tuple[tuple[Shape, ...], ...], int]:
    """The groups, and the most tokens of a rollout."""
    wanted = steps * algorithm.groups_per_step
    of = profile.rollouts
    limit = (of.reserved_tokens or of.prompt_tokens[1]) + stage.max_response_tokens
    drawn = draw_groups(
        profile,
        seed=seed * 1000 + index,
        groups=wanted,
        samples=algorithm.samples,
        max_response=stage.max_response_tokens,
        max_turns=stage.max_turns,
    )
    return drawn, max(limit, of.prompt_tokens[1] + stage.max_response_tokens)


def draw_groups(
    profile: Profile, *, seed: int, groups: int, samples: int, max_response: int, max_turns: int
) -> tuple[tuple[Shape, ...], ...]:
    """So many groups of so many rollouts. ``max_response`` counts tokens of the model and of tools."""
    of = profile.rollouts
    random = np.random.default_rng([seed, groups, samples])
    between, within = of.spread_between, of.spread_within
    center = math.log(of.mean_tokens) - (between**2 + within**2) / 2
    logs = center + between * random.standard_normal((groups, 1)) + within * random.standard_normal((groups, samples))
    written = np.clip(np.exp(logs), LEAST_TOKENS, max_response).astype(int)
    prompts = random.integers(of.prompt_tokens[0], of.prompt_tokens[1] + 1, groups)
    most = min(of.most_calls, max_turns - 1)
    calls = (
        random.binomial(most, min(1.0, of.calls / most), (groups, samples)) if most else np.zeros(written.shape, int)
    )
    return tuple(
        tuple(
            _shape(
                random,
                profile,
                int(prompts[group]),
                int(written[group, sample]),
                int(calls[group, sample]),
                max_response,
            )
            for sample in range(samples)
        )
        for group in range(groups)
    )


def _shape(random: np.random.Generator, profile: Profile, prompt: int, written: int, calls: int, limit: int) -> Shape:
    """A rollout that writes so many tokens over its turns, with calls between them."""
    tools = profile.tools
    calls = min(calls, written // LEAST_TOKENS, limit // (2 * tools.longest_tokens))
    written = min(written, limit - calls * tools.longest_tokens)
    cuts = np.sort(random.integers(1, written, calls)) if calls else np.zeros(0, int)
    parts = np.diff(np.concatenate([[0], cuts, [written]]))
    parts = parts[parts > 0]
    calls = len(parts) - 1
    seconds = np.minimum(tools.longest_s, random.lognormal(math.log(tools.median_s), tools.spread, calls))
    results = random.lognormal(math.log(tools.median_tokens), tools.tokens_spread, calls)
    tokens = np.minimum(tools.longest_tokens, np.ceil(results)).astype(int)
    return Shape(
        prompt,
        tuple(int(part) for part in parts),
        tuple(round(float(each), 4) for each in seconds),
        tuple(int(count) for count in tokens),
    )
