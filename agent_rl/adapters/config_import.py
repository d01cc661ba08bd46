"""A topology made from settings of verl or of TRL; ``agent-rl import-config`` writes it.

Each key of the settings is translated, or is listed with the reason why it has no counterpart. Keys that the settings
leave out have the other trainer's default, not ours. verl 0.9 and TRL 1.16 are the releases whose names are known.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import ValidationError

from agent_rl.adapters.written_settings import Entry, SettingsError, Style, Unread, read
from agent_rl.config.load import invalid_values
from agent_rl.config.standard import completed
from agent_rl.config.topology import Topology

Trainer = Literal["verl", "trl"]


@dataclass
class Keys:
    """The settings that are not yet translated, and those that cannot be."""

    path: Path
    entries: dict[str, Entry]
    left: dict[str, str] = field(default_factory=dict)
    """Reasons by key."""
    shown: dict[str, str] = field(default_factory=dict)
    """Values of those keys."""
    translated: int = 0

    def take(self, key: str, default: Any, kind: type | None = None) -> Any:
        """The value of a key, which counts as translated; ``default`` where there is none. Raises SettingsError."""
        entry = self.entries.pop(key, None)
        if entry is None or entry.value is None:
            return default
        if isinstance(entry.value, Unread):
            self.leave(key, "its value is computed when the script runs; write it yourself", entry)
            return default
        self.translated += 1
        wanted = kind or type(default)
        value = float(entry.value) if wanted is float and type(entry.value) is int else entry.value
        if wanted is tuple:
            return tuple(value) if isinstance(value, list) else (value,)
        if wanted is str and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if type(value) is not wanted:
            name = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[wanted]
            where = f", line {entry.line}" if entry.line else ""
            raise SettingsError(f"{self.path}{where}: {key} is {value!r}; it must be {name}")
        return value

    def leave(self, key: str, reason: str, entry: Entry | None = None) -> None:
        """List a key as one without a counterpart, if the settings have it."""
        entry = entry or self.entries.pop(key, None)
        if entry is not None:
            value = entry.value.text if isinstance(entry.value, Unread) else entry.value
            self.left[key], self.shown[key] = reason, " ".join(f"{value}".split())[:80]


def topology_text(trainer: Trainer, path: Path) -> tuple[str, int, int]:
    """The topology as TOML, and how many keys were translated and left. Raises SettingsError."""
    style: Style = "assigned" if trainer == "verl" else "options"
    keys = Keys(path, read(path, style, {"verl": "OmegaConf", "trl": "GRPOConfig"}[trainer]))
    known = any(key.startswith(("actor_rollout_ref.", "data.", "trainer.", "algorithm.")) for key in keys.entries)
    if known != (trainer == "verl"):
        raise SettingsError(
            f"{path}: these are no settings of {trainer}: {', '.join(sorted(keys.entries)[:3])}; "
            f"try agent-rl import-config {'verl' if known else 'trl'}"
        )
    topology = {"verl": _verl, "trl": _trl}[trainer](keys)
    for key in list(keys.entries):
        keys.leave(key, next((why for start, why in REASONS[trainer].items() if re.match(start, key)), UNKNOWN))
    _check(path, topology)
    return _written(trainer, keys, topology), keys.translated, len(keys.left)


def _check(path: Path, topology: dict[str, Any]) -> None:
    data = completed(topology)
    try:
        Topology.model_validate(data)
    except ValidationError as error:
        first = next(iter(invalid_values(error, Topology, data)))
        place = ".".join(map(str, first[0]))
        raise SettingsError(f"{path}: the topology would have a wrong {place}: {first[1]}") from error


def _written(trainer: Trainer, keys: Keys, topology: Mapping[str, Any]) -> str:
    head = [
        f"# Made from {keys.path.name} by `agent-rl import-config {trainer}`; docs/coming_from.md explains the names."
    ]
    head += [
        "# The environment `maths` stands in for your prompts and rewards: it asks for a boxed answer and has Python."
    ]
    if keys.left:
        head += ["#", "# Keys without a counterpart, and why:"]
    for key, reason in sorted(keys.left.items()):
        head += textwrap.wrap(
            f"{key} = {keys.shown[key]}: {reason}",
            118,
            initial_indent="#   ",
            subsequent_indent="#     ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([*head, "", tomli_w.dumps(topology)])


def _put(topology: Any, place: str, value: Any) -> None:
    """Set a key by its dotted name, unless the value is None."""
    if value is None:
        return
    *tables, last = place.split(".")
    for each in tables:
        topology = topology[int(each)] if each.isdigit() else topology.setdefault(each, {})
    topology[last] = value


def _empty(name: str) -> dict[str, Any]:
    """What both trainers have in common: plain GRPO, step by step, on problems with one answer."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "imported"
    return {
        "run": {"name": name, "directory": f"runs/{name}", "mode": "synchronous"},
        "model": {},
        "environments": [{"class": "maths", "settings": {"prompt": "rstar2"}}],
        "algorithm": {"resampling": "none", "max_staleness": 0},
        "stages": [{"kind": "rl", "warmup_steps": 0}],
        "actors": {
            "rollout_generator": {"share": "time", "settings": {"device": "cuda"}},
            "learner": {"share": "time", "settings": {"device": "cuda"}},
        },
    }


def _same(keys: Keys, topology: dict[str, Any], table: Mapping[str, tuple[str, Any]]) -> None:
    """Keys that only have another name here. Beside the name stands the default, or the type where ours is the same."""
    for key, (place, default) in table.items():
        kind = default if isinstance(default, type) else type(default)
        _put(topology, place, keys.take(key, None if isinstance(default, type) else default, kind))


def _one_of(keys: Keys, key: str, default: str, known: Mapping[str, Any], reason: str) -> Any:
    """The counterpart of one of several values; a value without one is listed, and the default's counterpart holds."""
    entry = keys.entries.get(key)
    value = keys.take(key, default, str)
    if value not in known:
        keys.translated -= 1
        keys.leave(key, reason, entry)
        value = default
    return known[value]


def _without(keys: Keys, key: str, nothing: Any, kind: type) -> Any:
    """A value of which ``nothing`` means that there is no limit."""
    value = keys.take(key, None, kind)
    return None if value is None or value == nothing else value


def _share(topology: dict[str, Any], gpus: int, engines: int) -> None:
    """Place engines and ranks on the GPUs of one host, in turns."""
    topology["hosts"] = {"local": {"gpus": gpus}}
    topology["actors"]["rollout_generator"]["replicas"] = engines
    topology["actors"]["learner"]["ranks"] = gpus


def _warmup(topology: dict[str, Any], steps: int | None, share: float | None) -> None:
    stage = topology["stages"][0]
    stage["warmup_steps"] = steps if steps is not None and steps >= 0 else round((share or 0) * stage["steps"])


def _steps(keys: Keys, key: str, passes: str, divide: int = 1) -> int:
    """The steps of the stage; without a number of steps 100, and the passes over the data are listed."""
    steps: int | None = keys.take(key, None, int)
    if steps is not None and steps > 0:
        keys.leave(passes, f"{key} stands over it")
        return -(-steps // divide)
    keys.entries.setdefault(passes, Entry(f"{key} is not set"))
    keys.leave(passes, "a stage has steps: passes * problems / groups_per_step. steps = 100 stands in; write yours")
    return 100


SAME_VERL: Mapping[str, tuple[str, Any]] = {
    "data.train_batch_size": ("algorithm.groups_per_step", 1024),
    "data.max_response_length": ("stages.0.max_response_tokens", 512),
    "data.val_files": ("environments.0.settings.evaluation_files", tuple),
    "data.seed": ("run.seed", int),
    "algorithm.norm_adv_by_std_in_grpo": ("algorithm.advantage_std", bool),
    "algorithm.filter_groups.enable": ("algorithm.refill", bool),
    "actor_rollout_ref.actor.optim.lr": ("stages.0.learning_rate", 1e-6),
    "actor_rollout_ref.actor.optim.weight_decay": ("algorithm.weight_decay", 0.01),
    "actor_rollout_ref.actor.ppo_epochs": ("algorithm.epochs", int),
    "actor_rollout_ref.actor.grad_clip": ("algorithm.gradient_clip", float),
    "actor_rollout_ref.actor.entropy_coeff": ("algorithm.entropy_coefficient", float),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": ("algorithm.microbatch_tokens", int),
    "actor_rollout_ref.model.enable_gradient_checkpointing": ("model.parallel.checkpoint_activations", True),
    "actor_rollout_ref.actor.fsdp_config.param_offload": ("model.parallel.offload", bool),
    "actor_rollout_ref.rollout.temperature": ("algorithm.temperature", float),
    "actor_rollout_ref.rollout.top_p": ("algorithm.top_p", float),
    "actor_rollout_ref.rollout.max_num_seqs": ("actors.rollout_generator.settings.max_rollouts", int),
    "trainer.default_local_dir": ("run.directory", str),
    "trainer.max_actor_ckpt_to_keep": ("run.keep_checkpoints", int),
}


def _verl(keys: Keys) -> dict[str, Any]:
    actor, rollout, model = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
    topology = _empty(keys.take("trainer.experiment_name", keys.path.stem, str))
    algorithm, stage, generator = topology["algorithm"], topology["stages"][0], topology["actors"]["rollout_generator"]
    topology["model"] |= {"path": _needed(keys, f"{model}.path"), "dtype": "bfloat16"}
    _put(topology, "environments.0.settings.files", _needed(keys, "data.train_files", tuple))
    _same(keys, topology, SAME_VERL)
    algorithm["samples"] = algorithm["keep"] = keys.take(f"{rollout}.n", 1, int)
    batch = algorithm["groups_per_step"]
    mini = min(keys.take(f"{actor}.ppo_mini_batch_size", 256, int), batch)
    if mini < 1:
        raise SettingsError(f"{keys.path}: {actor}.ppo_mini_batch_size is {mini}; it must be above 0")
    algorithm["updates_per_step"] = -(-batch // mini)
    clip = keys.take(f"{actor}.clip_ratio", 0.2, float)
    algorithm["clip_low"] = keys.take(f"{actor}.clip_ratio_low", clip, float)
    algorithm["clip_high"] = keys.take(f"{actor}.clip_ratio_high", clip, float)
    algorithm["loss"] = _one_of(
        keys,
        f"{actor}.loss_agg_mode",
        "token-mean",
        {"token-mean": "grpo", "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum-norm": "dr_grpo"},
        OWN_LOSS,
    )
    mode = _one_of(
        keys,
        f"{actor}.policy_loss.loss_mode",
        "vanilla",
        {"vanilla": "", "gspo": "gspo", "cispo": "cispo"},
        OWN_LOSS,
    )
    algorithm["loss"] = mode or algorithm["loss"]
    _one_of(
        keys,
        "algorithm.adv_estimator",
        "grpo",
        {"grpo": ""},
        "advantages are those of GRPO; algorithm.advantage takes a function of your own; there is no critic",
    )
    coefficient = keys.take(f"{actor}.kl_loss_coef", 0.001, float)
    kind = _one_of(
        keys, f"{actor}.kl_loss_type", "low_var_kl", ESTIMATORS, "the estimators are k1 and k3; k3 stands in"
    )
    if keys.take(f"{actor}.use_kl_loss", default=False) and coefficient:
        algorithm["kl"] = {"coefficient": coefficient, "estimator": kind}
    if not keys.take("algorithm.use_kl_in_reward", default=False):
        keys.leave("algorithm.kl_ctrl.kl_coef", "the settings have no KL in the reward")
    else:
        keys.leave(
            "algorithm.use_kl_in_reward",
            "the divergence is part of the loss (algorithm.kl), not of the reward",
            Entry(value=True),
        )
    _put(topology, "algorithm.top_k", _without(keys, f"{rollout}.top_k", -1, int))
    _put(topology, "algorithm.max_refill", _without(keys, "algorithm.filter_groups.max_num_gen_batches", 0, int))
    stage["steps"] = _steps(keys, "trainer.total_training_steps", "trainer.total_epochs")
    _warmup(
        topology,
        keys.take(f"{actor}.optim.lr_warmup_steps", None, int),
        keys.take(f"{actor}.optim.lr_warmup_steps_ratio", None, float),
    )
    for key in ("warmup_style", "lr_scheduler_type"):
        if f"{actor}.optim.{key}" in keys.entries:
            stage["schedule"] = _one_of(
                keys, f"{actor}.optim.{key}", "constant", {"constant": "constant", "cosine": "cosine"}, SCHEDULES
            )
    turns = keys.take(f"{rollout}.multi_turn.max_assistant_turns", None, int)
    several = keys.take(f"{rollout}.multi_turn.enable", turns is not None, bool)
    stage["max_turns"] = (turns or 10) if several else 1
    _put(topology, "run.checkpoint_every", _without(keys, "trainer.save_freq", -1, int))
    every = _without(keys, "trainer.test_freq", -1, int)
    if every and "evaluation_files" in topology["environments"][0]["settings"]:
        stage["evaluate"] = {"every": every, "problems": 100, "samples": keys.take(f"{rollout}.val_kwargs.n", 1, int)}
        _put(stage, "evaluate.top_p", keys.take(f"{rollout}.val_kwargs.top_p", None, float))
        _put(stage, "evaluate.temperature", _without(keys, f"{rollout}.val_kwargs.temperature", 0.0, float))
    _trackers(keys, topology, "trainer.logger")
    _lora(keys, topology, f"{model}.lora_rank", f"{model}.lora_alpha", f"{model}.target_modules")
    engine = _one_of(
        keys,
        f"{rollout}.name",
        "vllm",
        {"vllm": "vllm", "hf": "torch"},
        "the engines are vllm and torch; vllm stands in",
    )
    parallel = keys.take(f"{rollout}.tensor_model_parallel_size", 1, int)
    generator["settings"]["engine"] = engine
    if engine == "vllm":
        generator["settings"]["engine_settings"] = {
            "gpu_memory_utilization": keys.take(f"{rollout}.gpu_memory_utilization", 0.5, float),
            **({"tensor_parallel_size": parallel} if parallel > 1 else {}),
        }
    gpus, nodes = keys.take("trainer.n_gpus_per_node", 8, int), keys.take("trainer.nnodes", 1, int)
    if nodes > 1:
        keys.leave(
            "trainer.nnodes", "one host is written; name the others under [hosts] (docs/clusters.md)", Entry(nodes)
        )
    _share(topology, gpus, max(1, gpus // max(1, parallel)))
    return topology


SAME_TRL: Mapping[str, tuple[str, Any]] = {
    "learning_rate": ("stages.0.learning_rate", 1e-6),
    "max_completion_length": ("stages.0.max_response_tokens", 256),
    "num_iterations": ("algorithm.epochs", int),
    "temperature": ("algorithm.temperature", float),
    "top_p": ("algorithm.top_p", float),
    "weight_decay": ("algorithm.weight_decay", float),
    "max_grad_norm": ("algorithm.gradient_clip", float),
    "vllm_importance_sampling_cap": ("algorithm.correction_cap", float),
    "gradient_checkpointing": ("model.parallel.checkpoint_activations", True),
    "output_dir": ("run.directory", str),
    "seed": ("run.seed", 42),
    "save_total_limit": ("run.keep_checkpoints", int),
}
OWN_LOSS = "it is not built in; a loss of your own is a function (docs/write_an_actor.md)"
SCHEDULES = "the schedules are constant and cosine"
TRACKERS = {"mlflow", "tensorboard", "trackio", "wandb"}
ESTIMATORS = {"low_var_kl": "k3", "k3": "k3", "kl": "k1", "k1": "k1"}
LOSSES_TRL = {"dapo": "grpo", "bnpo": "grpo", "grpo": "sequence_mean", "dr_grpo": "dr_grpo", "cispo": "cispo"}


def _trl(keys: Keys) -> dict[str, Any]:
    topology = _empty(keys.take("run_name", keys.path.stem, str))
    algorithm, stage, generator = topology["algorithm"], topology["stages"][0], topology["actors"]["rollout_generator"]
    topology["model"]["path"] = _needed(
        keys, "model_name_or_path", instead="write the name of the model, which stands elsewhere"
    )
    topology["model"]["dtype"] = "bfloat16" if keys.take("bf16", default=True) else "float32"
    _dataset(keys, topology)
    _same(keys, topology, SAME_TRL)
    samples = algorithm["samples"] = algorithm["keep"] = keys.take("num_generations", 8)
    gpus, accumulated = keys.take("num_processes", 1), keys.take("gradient_accumulation_steps", 1)
    spread = keys.take("per_device_train_batch_size", 8) * gpus
    steps = keys.take("steps_per_generation", accumulated)
    batch = keys.take("generation_batch_size", spread * steps)
    if min(samples, spread, accumulated) < 1 or batch % samples:
        raise SettingsError(
            f"{keys.path}: a generation batch of {batch} does not hold whole groups of {samples} (num_generations); "
            "TRL would refuse these settings too"
        )
    algorithm["groups_per_step"] = batch // samples
    algorithm["updates_per_step"] = max(1, batch // (spread * accumulated))
    optimizer_steps = algorithm["updates_per_step"] * algorithm.get("epochs", 1)
    stage["steps"] = _steps(keys, "max_steps", "num_train_epochs", optimizer_steps)
    algorithm["clip_low"] = keys.take("epsilon", 0.2)
    algorithm["clip_high"] = keys.take("epsilon_high", algorithm["clip_low"])
    algorithm["loss"] = _one_of(keys, "loss_type", "dapo", LOSSES_TRL, OWN_LOSS)
    if _one_of(keys, "importance_sampling_level", "token", {"token": "", "sequence": "gspo"}, "token or sequence"):
        algorithm["loss"] = "gspo"
    if beta := keys.take("beta", 0.0):
        algorithm["kl"] = {"coefficient": beta}
    entry = keys.entries.get("scale_rewards")
    if entry is not None and isinstance(entry.value, bool):
        keys.entries["scale_rewards"] = Entry("group" if entry.value else "none", entry.line)
    algorithm["advantage_std"] = _one_of(
        keys, "scale_rewards", "group", {"group": True, "none": False}, "advantages are scaled by their group"
    )
    if keys.take("mask_truncated_completions", default=False):
        algorithm["overlong"] = "mask"
    if not keys.take("vllm_importance_sampling_correction", default=True):
        algorithm["correction"] = "none"
    _put(topology, "algorithm.top_k", _without(keys, "top_k", 0, int))
    share = keys.take("warmup_ratio", None, float)
    warmup = keys.take("warmup_steps", None, int)
    _warmup(topology, None if warmup is None else -(-warmup // optimizer_steps), share)
    keys.entries.setdefault("lr_scheduler_type", Entry("linear"))
    stage["schedule"] = _one_of(
        keys,
        "lr_scheduler_type",
        "constant",
        {"constant": "constant", "cosine": "cosine", "constant_with_warmup": "constant"},
        SCHEDULES,
    )
    stage["max_turns"] = keys.take("max_tool_calling_iterations", 0) + 1
    _every(keys, topology, "save_steps", "save_strategy", optimizer_steps, "run.checkpoint_every")
    _every(keys, topology, "eval_steps", "eval_strategy", optimizer_steps, "stages.0.evaluate.every")
    if "evaluate" in stage:
        stage["evaluate"]["problems"] = 100
        settings = topology["environments"][0]["settings"]
        folder, split = settings["files"][0].rpartition("/")[0], keys.take("dataset_test_split", "test")
        settings["evaluation_files"] = [f"{folder}/{split}.jsonl"]
        topology["fetch"] = {
            folder: words.partition(" --split")[0] for folder, words in topology.get("fetch", {}).items()
        }
    _trackers(keys, topology, "report_to")
    if keys.take("use_peft", default=False):
        _lora(keys, topology, "lora_r", "lora_alpha", "lora_target_modules")
    generator["settings"]["engine"] = "vllm" if keys.take("use_vllm", default=False) else "torch"
    parallel = keys.take("vllm_tensor_parallel_size", 1)
    if generator["settings"]["engine"] == "vllm":
        generator["settings"]["engine_settings"] = {
            "gpu_memory_utilization": keys.take("vllm_gpu_memory_utilization", 0.3),
            **({"tensor_parallel_size": parallel} if parallel > 1 else {}),
        }
    _share(topology, gpus, max(1, gpus // max(1, parallel)))
    return topology


def _dataset(keys: Keys, topology: dict[str, Any]) -> None:
    name = keys.take("dataset_name", None, str)
    settings = topology["environments"][0]["settings"]
    if name is None:
        settings["files"] = ["data/train.jsonl"]
        keys.left["train_dataset"], keys.shown["train_dataset"] = (
            "write the files of problems into files",
            "not named here",
        )
        return
    config, split = keys.take("dataset_config", None, str), keys.take("dataset_train_split", "train", str)
    folder = "-".join(filter(None, ("data/" + name.rpartition("/")[2], config)))
    settings["files"] = [f"{folder}/{split}.jsonl"]
    topology["fetch"] = {folder: f"{name}{f' --config {config}' if config else ''} --split {split}"}


def _every(keys: Keys, topology: dict[str, Any], steps: str, strategy: str, divide: int, place: str) -> None:
    """Translate every how many optimizer steps something is done, where it is done by steps."""
    default = "steps" if steps in keys.entries or steps == "save_steps" else "no"
    by = _one_of(keys, strategy, default, {"steps": "steps", "no": "no"}, "only steps are counted")
    number = keys.take(steps, 500 if by == "steps" else None, int)
    if by == "steps":
        _put(topology, place, -(-number // divide))


def _needed(keys: Keys, key: str, kind: type = str, instead: str = "") -> Any:
    value = keys.take(key, None, kind)
    if value is None and instead:
        keys.left[key], keys.shown[key] = instead, "not named here"
        return "MODEL"
    if value is None:
        raise SettingsError(
            f"{keys.path}: {key} is missing, or is computed when the script runs; write it into the file"
        )
    return value


def _trackers(keys: Keys, topology: dict[str, Any], key: str) -> None:
    names = set(keys.take(key, (), tuple))
    if found := sorted(names & TRACKERS):
        topology["run"]["trackers"] = found
    if others := sorted(names - TRACKERS - {"console", "none", "all"}):
        keys.leave(key, "a tracker of your own is a class (docs/running.md)", Entry(others))


def _lora(keys: Keys, topology: dict[str, Any], rank: str, alpha: str, targets: str) -> None:
    size = keys.take(rank, 0, int)
    if size:
        chosen = keys.take(targets, ("all-linear",), tuple)
        topology["model"]["lora"] = {"rank": size, "alpha": keys.take(alpha, 16.0, float), "targets": list(chosen)}


UNKNOWN = "no counterpart is known"
SCRIPT = "it belongs to the program that starts the trainer; agent-rl run starts all processes"
REASONS: Mapping[Trainer, Mapping[str, str]] = {
    "verl": {
        r"critic\.|algorithm\.(gamma|lam)$|trainer\.critic": "GRPO has no critic",
        r"custom_reward_function|reward(_model|_manager)?\.": "rewards are the judgement of an environment "
        "(docs/write_an_environment.md)",
        r"data\.(prompt_key|reward_fn_key|image_key|video_key)": "agent-rl data convert --columns renames columns",
        r"data\.(max_prompt_length|filter_overlong_prompts|truncation)": "prompts are never cut; agent-rl check names "
        "those that leave no room",
        r"data\.(shuffle|val_batch_size|return_raw_chat|dataloader)": "problems are shuffled by the seed, and "
        "evaluated as engines have room",
        r".*(micro_batch_size|use_dynamic_bsz|use_remove_padding|max_token_len)": "rows are packed up to "
        "algorithm.microbatch_tokens",
        r".*(offload|fsdp|strategy|ulysses|megatron|sequence_parallel|model_dtype)": "[model.parallel] says how ranks "
        "share the model",
        r".*multi_turn\.|.*agent": "tools and turns belong to the environment (docs/write_a_tool.md)",
        r".*val_kwargs": "an evaluation is also greedy; see evaluate of the stage",
        r"actor_rollout_ref\.rollout\.": "the engine takes its own arguments in engine_settings",
        r"actor_rollout_ref\.ref\.": "the reference policy runs in the learner",
        r"trainer\.(val_before_train|val_only)": "add a stage of kind evaluate before the rl stage",
        r"trainer\.(resume|del_local)": "agent-rl run always continues the run of its directory",
        r"trainer\.(project_name|log_val)": "trackers read the project from the environment (docs/running.md)",
        r"ray_|hydra|defaults|trainer\.(balance|device|use_legacy)": "it belongs to Ray or Hydra",
    },
    "trl": {
        r"config$": "the keys of that file are not read; import them, too",
        r"(reward_funcs|reward_weights|reward)": "rewards are the judgement of an environment "
        "(docs/write_an_environment.md)",
        r"(max_prompt_length|truncat)": "prompts are never cut; agent-rl check names those that leave no room",
        r"(deepspeed|fsdp|ddp|tp_size|zero)": "[model.parallel] says how ranks share the model",
        r"(log|disable_tqdm|num_completions_to_print)": "every step is recorded in metrics.jsonl",
        r"(push_to_hub|hub_|resume_from|overwrite)": "checkpoints stay in the run directory, and runs continue",
        r"(vllm_|use_transformers)": "the engine is a process of its own, with arguments in engine_settings",
        r"(num_machines|machine_rank|main_process|config_file|mixed_precision|dynamo|multi_gpu)": SCRIPT,
        r"(per_device_eval|eval_)": "problems are evaluated as engines have room",
        r"(optim|adam_)": "the optimizer is AdamW",
        r"(dataloader|dataset|shuffle|remove_unused|data_seed)": "problems are shuffled by the seed",
        r"(sync_ref_model|ref_model)": "the reference stays that of the stage's start",
        r"(lora_|load_in)": "adapters are rank, alpha and targets of [model.lora]",
    },
}
"""Why keys have no counterpart, by the beginning of the key as a regular expression; the first that fits counts."""
