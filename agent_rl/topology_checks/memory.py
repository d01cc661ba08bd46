"""The memory plan: what the model needs of each device, host and disk, with the arithmetic. No torch.

A rank of the learner holds, at the peak of a step::

    state:   weights, gradients, moments                         always
    kept:    activations, gathered embeddings                    from the forward pass on
    peak:    logits, or one layer's backward pass                the larger one: logits are gone when layers begin
    process: libraries, compiled products, fragmentation         on a processor

docs/decisions/studies.md compares the sum, with the host's rows, with what a learner's process took. Left out is the
host memory of processes that compute on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.addresses import actor_nodes
from agent_rl.config.parallel import mesh_sizes
from agent_rl.config.placement import AT_ONCE, engine_gpus, gpus_of, partners
from agent_rl.config.placement import IN_TURNS as IN_TIME
from agent_rl.config.source import Finding
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.models.devices import Machine, gpu_memory
from agent_rl.models.hub import HubError, described_model
from agent_rl.models.model_files import Unreadable
from agent_rl.models.shapes import Shape
from agent_rl.topology_checks.facts import Facts

WIDTH = {"float32": 4, "bfloat16": 2}
LOGITS_MIB = 128
"""The default of the learner's setting."""
SENT = ("nccl", "gloo")
"""Ways of ``weights_in`` in which rank 0 sends the policy from its memory."""
ROLLOUT_BYTES = 17 + 29
"""Of each token of a step's rollouts on each rank: as they came (tokens, mask, log-probabilities, policies), and as the
trainer computes with them (`agent_rl.learning.sequences`)."""
LEARNER, GENERATOR = "learner", "rollout_generator"
IN_TURNS = "a device in turns"
"""Where the plan has what learner and engine hold of the device that they share in time."""
BOTH = "a GPU of both"
"""Where it has what they hold of a GPU that they share in space."""
MIB, GIB = 1 << 20, 1 << 30
VLLM_SHARE = 0.9
"""vLLM's own default of ``gpu_memory_utilization``: the share of a GPU that it takes, whatever the model needs."""
PIECE = 8 * MIB
"""Of the logits that a processor computes at once (`agent_rl.learning.logprobs`)."""
PRODUCTS = 16 * MIB
"""Of the compiled matrix products that oneDNN keeps (`agent_rl.learning.linear`), half a MiB each."""
LIBRARIES = 320 * MIB
"""Of a process that has loaded torch and transformers, and a few threads' buffers."""
LOADED = "Python, torch, transformers"
FRAGMENTED = 0.6
"""Of the activations: what the heap (`agent_rl.learning.heap`) holds beside them after steps of mixed lengths."""

BETWEEN_STEPS = frozenset({"weights", "weights, float32", "float32 copies", "moments", "libraries"})
"""The rows that a learner which shares its device holds between two steps: it frees the gradients."""
REORDERED = "weights, reordered"
ASLEEP = frozenset({"weights", REORDERED, "libraries"})
"""The rows that an engine on a processor holds while it sleeps."""
TOGETHER = "memory: together"
OLDER, BEFORE = "memory: older policies (mismatch_tokens)", "memory: state before a step"
BOUND = "at most "
"""So begins the arithmetic of what is rarely reached."""
PROCESS = 100 * MIB
"""Of an actor that computes nothing, and of the supervisor."""


@dataclass(frozen=True, slots=True)
class Need:
    """One row of the plan."""

    where: str
    what: str
    size: int
    """Bytes."""
    how: str
    """The arithmetic."""


@dataclass(frozen=True, slots=True)
class Training:
    """What the learner's memory depends on, besides the model."""

    width: int
    """Bytes of a weight as it is served."""
    ranks: int
    shard: int
    tokens: int
    """Of a micro-batch, or of the longest sequence where that is longer."""
    checkpointed: bool
    logits_mib: int
    on_gpu: bool


def learner_needs(shape: Shape, training: Training, where: str) -> Iterator[Need]:
    """The rows of one rank of the learner, all weights trained."""
    yield from _state(shape, training, where)
    width, tokens = training.width, training.tokens
    layer = shape.layer_activation_bytes(width, repeated=not training.on_gpu)
    outer = shape.outer_activation_bytes(width)
    kept = width * shape.hidden if training.checkpointed else layer
    how = f"{tokens:,} tokens x ({shape.layers} layers x {kept:,} bytes, {outer:,})"
    yield Need(where, "activations", tokens * (shape.layers * kept + outer), how)
    embeddings = (1 if shape.tied else 2) * shape.embedding
    if training.shard > 1:
        how = f"{embeddings:,} weights of embeddings x {width} bytes, whole during a step"
        yield Need(where, "embeddings gathered", width * embeddings, how)
    if not training.on_gpu:
        yield Need(where, "libraries", LIBRARIES, LOADED)
        yield from _fragmentation(shape, training, where, tokens * (shape.layers * kept + outer))
        if width == 4:
            yield Need(where, "compiled products", PRODUCTS, "those that oneDNN keeps")
    logits, backward = _logits(shape, training, where), _backward(shape, training, where, layer, embeddings)
    larger, smaller = (logits, backward) if logits.size >= backward.size else (backward, logits)
    beside = f"; later {smaller.what}" if larger is logits else f"; before, {smaller.what}"
    yield Need(where, larger.what, larger.size, f"{larger.how}{beside}: {smaller.size / MIB:,.0f} MiB")


def _fragmentation(shape: Shape, training: Training, where: str, activations: int) -> Iterator[Need]:
    """The heap's holes between blocks of mixed lengths. The memory of a checkpoint, free most of the time, has room."""
    lent = training.ranks == 1  # then a checkpoint takes no memory that it could leave
    checkpoint = 0 if lent else 12 * shape.weights // training.shard
    size = int(FRAGMENTED * activations) - checkpoint
    if size > 0:
        how = f"{FRAGMENTED} of activations, less {checkpoint / MIB:,.0f} MiB that a checkpoint leaves"
        yield Need(where, "fragmentation", size, how)


def _state(shape: Shape, training: Training, where: str) -> Iterator[Need]:
    count, width = shape.weights, training.width
    if training.shard > 1:
        held, part = {"weights, float32": 4}, f" / {training.shard} ranks"
    else:
        held, part = {"weights": width} | ({"float32 copies": 4} if width == 2 else {}), ""
    for what, each in (held | {"gradients": 4, "moments": 8}).items():
        yield Need(where, what, each * count // training.shard, f"{count:,} weights{part} x {each} bytes")


def _logits(shape: Shape, training: Training, where: str) -> Need:
    """The logits of a micro-batch and the gradient of the output layer, which is summed in float32 and then rounded."""
    whole = 4 * training.tokens * shape.vocabulary
    bound = training.logits_mib * MIB
    if training.on_gpu:
        size, how = min(3 * bound, 3 * whole), f"at most 3 x logits_mib {training.logits_mib}"
    else:
        kept = whole if whole <= bound else 0
        size, how = kept + 2 * min(PIECE, whole), f"{kept / MIB:,.0f} MiB kept, 2 pieces of {PIECE // MIB} MiB"
    each = 4 if training.width == 4 else 4 + training.width
    return Need(where, "logits", size + each * shape.embedding, f"{how}, gradient {shape.embedding:,} x {each} bytes")


def _backward(shape: Shape, training: Training, where: str, layer: int, embeddings: int) -> Need:
    """One layer's backward pass: gradients of its activations, and of several ranks what they gather and sum."""
    width = training.width
    each = width * (3 * shape.mlp + 3 * shape.hidden) + (layer if training.checkpointed else 0)
    size, how = training.tokens * each, f"{training.tokens:,} tokens x {each:,} bytes"
    if training.shard > 1:
        # Gathered are the layer and the next one, whose parts also lie side by side before they are put in place.
        # Gradients are copied to float32, to be summed. Those of the embeddings wait for the end of the pass.
        of_layer, weights = 4 * width + 4, shape.layer_weights
        size += of_layer * weights + width * embeddings
        how += f", {weights:,} weights x {of_layer} bytes, {embeddings:,} x {width}"
    else:
        size += width * shape.hidden * shape.mlp
        how += f", gradient {shape.hidden * shape.mlp:,} x {width} bytes"
    return Need(where, "a layer's backward pass", size, how)


def shape_of(topology: Topology) -> Shape | None:
    """The shape of the topology's model; None where it is made here, or cannot be read, or is of another kind."""
    try:
        return None if topology.model.path is None else Shape.of(described_model(topology.model.path).config)
    except (HubError, Unreadable):
        return None


def plan(topology: Topology) -> list[Need]:
    """All rows, or none where the model's shape is not known."""
    shape = shape_of(topology)
    if shape is None or topology.model.lora is not None:
        return []
    width = WIDTH[topology.model.dtype]
    served = width * shape.weights
    learner, generator = list(_learner(topology, shape, width)), list(_generator(topology, shape, width))
    rows = [*learner, *generator, *_in_turns(topology, learner, generator), *_at_once(topology, learner, generator)]
    rows += _hosts(topology, served, width, shape.weights)
    sizes = {LEARNER: sum(need.size for need in learner), GENERATOR: sum(need.size for need in generator)}
    return [*rows, *(_together(topology, host, rows, sizes) for host in topology.hosts_in_use)]


def _together(topology: Topology, host: str, rows: Sequence[Need], sizes: Mapping[str, int]) -> Need:
    """What a host holds at the peak of a step; ``sizes`` are those of a process. GPUs' processes are left out."""
    own = sum(need.size for need in rows if need.where == f"host {host}" and "memory: " in need.what)
    turns = max((need.size for need in rows if need.where == IN_TURNS), default=0)
    computing = {role: _on_processor(topology, role, host) for role in sizes}
    parts = {f"{count} x {role}": count * sizes[role] for role, count in computing.items() if not turns}
    parts["learner and engine in turns"] = turns if any(computing.values()) else 0
    others = len(list(actor_nodes(topology, host))) + 1 - sum(computing.values())
    parts |= {"the rows above": own, f"{others} other processes": others * PROCESS}
    how = ", ".join(f"{what} {size / GIB:.1f} GiB" for what, size in parts.items() if size)
    return Need(f"host {host}", TOGETHER, sum(parts.values()), how)


def _on_processor(topology: Topology, role: str, host: str) -> int:
    """How many processes of learner or generator compute on the processor of a host."""
    entry = topology.actors.get(role)
    if entry is None or str(entry.settings.get("device", "cpu")) != "cpu" or gpus_of(entry):
        return 0
    if entry.ranks > 1:
        return entry.ranks_per_host if host in entry.rank_hosts else 0
    return list(topology.homes(role).values()).count(host)


def _learner(topology: Topology, shape: Shape, width: int) -> Iterator[Need]:
    entry = topology.actors.get(LEARNER)
    if entry is None:
        return
    settings = entry.settings
    longest = max((stage.max_response_tokens for stage in topology.stages if isinstance(stage, RlStage)), default=0)
    training = Training(
        width=width,
        ranks=entry.ranks,
        shard=mesh_sizes(entry.ranks, topology.model.parallel).shard,
        tokens=max(topology.algorithm.microbatch_tokens, longest),
        checkpointed=topology.model.parallel.checkpoint_activations,
        logits_mib=int(settings.get("logits_mib", LOGITS_MIB)),
        on_gpu=str(settings.get("device", "cpu")).startswith("cuda"),
    )
    where = f"each of {entry.ranks} ranks" if entry.ranks > 1 else "learner"
    yield from learner_needs(shape, training, where)


PROMPT = 1024
"""The tokens of a prompt for which the KV cache is planned; a longer one takes more."""


def _generator(topology: Topology, shape: Shape, width: int) -> Iterator[Need]:
    entry = topology.actors.get(GENERATOR)
    if entry is None:
        return
    spread = engine_gpus(entry)
    where = f"each of {spread} GPUs of an engine" if spread > 1 else "engine"
    divided = f" / {spread}" if spread > 1 else ""
    yield Need(where, "weights", width * shape.weights // spread, f"{shape.weights:,} x {width} bytes{divided}")
    if not gpus_of(entry):
        again = width * (shape.weights - (0 if shape.tied else shape.embedding))
        if "vllm" not in str(entry.settings.get("engine", "torch")).lower():
            yield Need(where, REORDERED, again, f"{again // width:,} weights again, as oneDNN reads them")
        yield Need(where, "libraries", LIBRARIES, LOADED)
    token = shape.kv_bytes(width)
    tokens: Any = entry.settings.get("kv_tokens")
    each = f"2 x {shape.layers} layers x {shape.keys:,} values x {width} bytes = {token:,} bytes a token"
    if tokens is not None:
        yield Need(where, "KV cache", token * int(tokens) // spread, f"{int(tokens):,} tokens x {each}{divided}")
    elif "vllm" in str(entry.settings.get("engine", "torch")).lower():
        yield Need(where, "KV cache", 0, f"what gpu_memory_utilization leaves, at {each}{divided}")
    else:
        rows = int(entry.settings.get("max_rollouts", 64))
        responses = (stage.max_response_tokens for stage in topology.stages if not isinstance(stage, SftStage))
        longest = min(shape.length, max(responses, default=0) + PROMPT)
        how = f"{BOUND}{rows} rollouts x {longest:,} tokens, {PROMPT:,} of them for a prompt, x {each}"
        yield Need(where, "KV cache", rows * longest * token, how)


def _in_turns(topology: Topology, learner: Sequence[Need], generator: Sequence[Need]) -> Iterator[Need]:
    """What a device holds that learner and engine share in time: in each of their turns, not of both at once."""
    if not any(partners(topology, f"{LEARNER}.{number}") for number in topology.homes(LEARNER)):
        return
    stays = sum(need.size for need in learner if need.what in BETWEEN_STEPS)
    weights = sum(need.size for need in generator if need.what == "weights")
    on_gpu = gpus_of(topology.actors[GENERATOR]) > 0
    asleep = 0 if on_gpu else sum(need.size for need in generator if need.what in ASLEEP)
    trains, writes = asleep + sum(need.size for need in learner), stays + sum(need.size for need in generator)
    beside = "the engine asleep: nothing" if on_gpu else "the engine asleep: its weights"
    yield Need(IN_TURNS, "while the learner trains", trains, f"all of the learner; {beside}")
    rest = "" if all(need.size for need in generator) else ", and the KV cache"
    how = f"all of the engine{rest}; of the learner weights and moments: {stays / MIB:,.0f} MiB"
    yield Need(IN_TURNS, "while the engine writes", writes, how)
    if on_gpu:
        asleep_on = f"host {topology.main_host}"
        yield Need(asleep_on, "memory: weights of a sleeping engine", weights, "of each engine's GPU")


def _at_once(topology: Topology, learner: Sequence[Need], generator: Sequence[Need]) -> Iterator[Need]:
    """What learner and engine hold of a GPU that they share in space: all, both of them."""
    if any(partners(topology, f"{LEARNER}.{number}", AT_ONCE) for number in topology.homes(LEARNER)):
        rest = "" if all(need.size for need in generator) else ", and the KV cache"
        yield Need(BOTH, LEARNER, sum(need.size for need in learner), "all of the learner, at the peak of a step")
        yield Need(BOTH, "engine", sum(need.size for need in generator), f"all of the engine{rest}")


def memory_findings(topology: Topology, facts: Facts) -> Iterator[Finding]:
    """What a sound topology needs of this machine's memory, or of a GPU of learner and engine, and does not get."""
    yield from _beyond(topology, _here(topology, facts), facts.machine.memory, bounds=False)
    yield from _beyond_gpu(topology, facts)


def _here(topology: Topology, facts: Facts) -> list[str]:
    """The hosts that are this machine, as far as that is known."""
    here = [name for name in topology.hosts_in_use if facts.is_here(topology, name)]
    return [name for name in here if not (facts.elsewhere and topology.hosts[name].gpus is not None)]


def memory_warnings(topology: Topology, machine: Machine) -> Iterator[Finding]:
    """What a run on this machine may need of its memory, at its bounds; and threads that wait for each other."""
    here = _here(topology, Facts(Path(), elsewhere=True, machine=machine))
    if not any(_beyond(topology, here, machine.memory, bounds=False)):
        yield from _beyond(topology, here, machine.memory, bounds=True)
    if LEARNER in topology.actors and topology.actors[LEARNER].share == IN_TIME:
        return
    counts = {role: sum(_on_processor(topology, role, name) for name in here) for role in (LEARNER, GENERATOR)}
    asked = {role: topology.actors[role].settings.get("threads", 1) for role, count in counts.items() if count}
    total = sum(counts[role] * (each if isinstance(each, int) else 1) for role, each in asked.items())
    if machine.cores is not None and sum(counts.values()) > 1 and total > max(machine.cores, sum(counts.values())):
        role = max(asked, key=lambda role: asked[role] if isinstance(asked[role], int) else 0)
        message = f"{total} threads of learner and engine compute at once on {machine.cores} cores: they wait for turns"
        yield Finding(("actors", role, "settings", "threads"), message, 'write "auto"')


def _beyond(topology: Topology, hosts: Sequence[str], has: int | None, *, bounds: bool) -> Iterator[Finding]:
    """Hosts of one machine that need more than its memory; with ``bounds``, where all that is bounded is reached."""
    rows = [] if has is None else plan(topology)
    sums = [need for need in rows if need.what == TOGETHER and need.where.removeprefix("host ") in hosts]
    needed = sum(need.size for need in sums)
    longest = max((stage.max_response_tokens for _, stage, _ in topology.rl_algorithms), default=0)
    tokens = topology.algorithm.microbatch_tokens
    passes = sum(need.size for need in rows if need.what in {"activations", "fragmentation"})
    passes *= any(_on_processor(topology, LEARNER, host) for host in hosts)
    caches = sum(_on_processor(topology, GENERATOR, host) for host in hosts)
    cache = caches * sum(need.size for need in rows if need.what == "KV cache" and need.how.startswith(BOUND))
    beyond = int(passes * max(0.0, 1 - tokens / longest)) if longest else 0
    if has is None or needed - (0 if bounds else cache + beyond) <= has:
        return
    frees = {
        "actors.learner.settings.mismatch_tokens = 0": sum(need.size for need in rows if need.what == OLDER),
        f"algorithm.updates_per_step = 1{', epochs = 1' * (topology.algorithm.epochs > 1)}": sum(
            need.size for need in rows if need.what == BEFORE
        ),
        f"algorithm.microbatch_tokens = {longest}": int(passes * max(0.0, 1 - longest / tokens)),
        f"max_response_tokens = {tokens}": beyond,
        "a low actors.rollout_generator.settings.kv_tokens": cache,
    }
    most = sorted(((size, key) for key, size in frees.items() if size > needed // 50), reverse=True)
    remedy = ", ".join(f"{key} frees {size / GIB:.1f} GiB" for size, key in most)
    if needed - sum(size for size, _ in most) > has:
        remedy = f"{remedy}, and that is not enough: " if remedy else ""
        remedy += "take a smaller model, [model.lora], or a larger machine"
    verb = "may need" if bounds else "needs"
    how = "; ".join(need.how for need in sums)
    message = f"the run {verb} {needed / GIB:.1f} GiB of memory, and this machine has {has / GIB:.1f}: {how}"
    yield Finding(("model", "path"), message, remedy)


def _beyond_gpu(topology: Topology, facts: Facts) -> Iterator[Finding]:
    if all(entry.share != AT_ONCE for entry in topology.actors.values()):
        return
    sizes = {need.what: need.size for need in plan(topology) if need.where == BOTH}
    for name in dict.fromkeys(topology.homes(LEARNER).values()) if sizes else ():
        host, has = topology.hosts[name], None
        if host.gpu_gib is not None:
            has = int(host.gpu_gib * GIB)
        elif facts.is_here(topology, name) and not (facts.elsewhere and host.gpus is not None):
            has = gpu_memory()
        settings, key = topology.actors[GENERATOR].settings, "kv_tokens"
        if has is not None and "vllm" in str(settings.get("engine", "torch")).lower():
            key = "gpu_memory_utilization"
            share = settings.get("engine_settings", {}).get(key, VLLM_SHARE)
            share = share if isinstance(share, float | int) else VLLM_SHARE
            sizes["engine"] = max(sizes["engine"], int(share * has))
        if has is not None and sum(sizes.values()) > has:
            parts = " and ".join(f"{each} {size / GIB:.1f} GiB" for each, size in sizes.items())
            message = f'is "space", and a GPU of host {name} has {has / GIB:.1f} GiB: at once, {parts} do not fit'
            remedy = f'lower {key} of the engine or microbatch_tokens, or write share = "time" in both tables'
            yield Finding(("actors", LEARNER, "share"), message, remedy)


def _hosts(topology: Topology, served: int, width: int, count: int) -> Iterator[Need]:
    entry = topology.actors.get(LEARNER)
    if entry is None:
        return
    host, settings = f"host {topology.main_host}", entry.settings
    hosts = [f"host {name}" for name in entry.rank_hosts]
    parts, divided = len(hosts), f" / {len(hosts)} hosts" if len(hosts) > 1 else ""
    of_size = f"{count:,} weights x {width} bytes"
    way = str(settings.get("weights_in", "run_directory"))
    kept = max((algorithm.max_staleness for _, _, algorithm in topology.rl_algorithms), default=-1) + 1
    kept *= bool(settings.get("mismatch_tokens", 1))
    # Several ranks keep parts of what is sent, and nothing of files. One rank's last older policy is the published one.
    if way in SENT or (entry.ranks == 1 and not kept):
        yield Need(host, "memory: policy being published", served, of_size)
    state = (4 if entry.ranks > 1 else width) + 8 + (4 if width == 2 and entry.ranks == 1 else 0)
    if entry.ranks > 1 or str(settings.get("device", "cpu")) != "cpu":  # else it is written from the state itself
        staged = f"{count:,} weights x {state} bytes, one at a time"
        yield from _each(hosts, "memory: checkpoint being written", state * count // parts, f"{staged}{divided}")
    if kept:
        older = f"{kept} x {of_size}{divided}, the published one among them"
        yield from _each(hosts, OLDER, kept * served // parts, older)
    steps = [(each.groups_per_step * each.keep, stage.max_response_tokens) for _, stage, each in topology.rl_algorithms]
    if steps:
        rollouts, tokens = max(steps, key=math.prod)
        here = entry.ranks_per_host
        how = f"{here} ranks x {rollouts:,} rollouts x at most {tokens:,} tokens x {ROLLOUT_BYTES} bytes"
        yield from _each(hosts, "memory: rollouts of a step", here * rollouts * tokens * ROLLOUT_BYTES, how)
    if topology.algorithm.updates_per_step * topology.algorithm.epochs > 1:
        before = f"{count:,} weights x 12 bytes{divided}"
        yield from _each(hosts, BEFORE, 12 * count // parts, before)
    if way == "shared_memory":
        yield Need(host, "shared memory: published policies", 2 * served, f"2 x {of_size}")
    generator = topology.actors.get(GENERATOR)
    for name in dict.fromkeys(topology.homes(GENERATOR).values()) if generator else ():
        if generator is not None and generator.targets("weights"):
            yield Need(f"host {name}", "shared memory: fetched policy", served, of_size)
    if way == "run_directory":
        yield Need(host, "disk: published policies", 2 * served, f"2 x {of_size}")
    state = width + 8 + (4 if width == 2 else 0)
    saved = topology.run.keep_checkpoints + 1
    how = f"({topology.run.keep_checkpoints} kept, 1 being written) x {count:,} weights x {state} bytes"
    yield Need(host, "disk: checkpoints", saved * state * count, how)


def _each(hosts: Sequence[str], what: str, size: int, how: str) -> Iterator[Need]:
    """The same row for each of these hosts."""
    return (Need(host, what, size, how) for host in hosts)


def plan_rows(needs: Sequence[Need], text: Any) -> list[tuple[str, ...]]:
    """The plan as a table, with the sum of each device. ``text`` writes a size."""
    if not needs:
        return []
    rows: list[tuple[str, ...]] = [("memory plan:", "", "", "")]
    places = dict.fromkeys(need.where for need in needs)
    for where in places:
        here = [need for need in needs if need.where == where]
        rows += [(f"  {where}", need.what, text(need.size) if need.size else "the rest", need.how) for need in here]
        if where == IN_TURNS:
            rows.append((f"  {where}", "at most", text(max(need.size for need in here)), "the larger one"))
        elif not where.startswith("host "):
            rows.append((f"  {where}", "together", text(sum(need.size for need in here)), ""))
    return rows
