"""`agent-rl import-config` translates settings of verl and TRL, and says of each key that it leaves why."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from actors.cli.main import main
from actors.learner import Learner
from agent_rl.config.load import load_topology
from agent_rl.config.topology import InitialiseModel, RlStage
from agent_rl.learning.tiny import initialise_model

VERL_SCRIPT = """\
#!/usr/bin/env bash
set -xeuo pipefail
# data.train_batch_size=999 in a comment counts for nothing
DATA=${DATA:-data}
MODEL="tiny"
batch=64
train="['$DATA/train.jsonl','$DATA/more.jsonl']"
export VLLM_USE_V1=1

LIMITS=(
    data.max_prompt_length=512
    data.max_response_length=$((1024 * 2))
)

python3 -m verl.trainer.main_ppo \\
    --config-name=ppo_trainer \\
    algorithm.adv_estimator=grpo \\
    "${LIMITS[@]}" \\
    data.train_files="$train" \\
    data.val_files=${DATA}/test.jsonl \\
    data.train_batch_size=${batch} \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.005 \\
    actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.name=sglang \\
    actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \\
    +actor_rollout_ref.rollout.my_extra=3 \\
    custom_reward_function.path=rewards.py \\
    nobody.knows=this \\
    trainer.logger='["console","wandb","swanlab"]' \\
    trainer.experiment_name='tiny gsm8k' \\
    trainer.n_gpus_per_node=2 \\
    trainer.nnodes=1 \\
    trainer.save_freq=20 \\
    trainer.test_freq=5 \\
    trainer.total_epochs=15 "$@"
"""

VERL_YAML = """\
defaults: [ppo_trainer]
data: {train_files: data/train.jsonl, train_batch_size: 8, max_response_length: 256}
algorithm: {adv_estimator: rloo, filter_groups: {enable: true, max_num_gen_batches: 10}}
actor_rollout_ref:
  model: {path: tiny, lora_rank: 8, lora_alpha: 16}
  actor:
    loss_agg_mode: seq-mean-token-mean
    optim: {lr: 2e-5, lr_warmup_steps_ratio: 0.1}
  rollout: {n: 4, multi_turn: {enable: true, max_assistant_turns: 6, tool_config_path: tools.yaml}}
trainer: {total_training_steps: 50, n_gpus_per_node: 1, test_freq: -1}
"""

TRL_YAML = """\
model_name_or_path: tiny
dataset_name: openai/gsm8k
bf16: true
learning_rate: 1e-5
warmup_ratio: 0.1
per_device_train_batch_size: 16
gradient_accumulation_steps: 2
steps_per_generation: 4
num_generations: 8
num_iterations: 2
max_prompt_length: 512
max_completion_length: 128
beta: 0.04
loss_type: dr_grpo
scale_rewards: false
max_steps: 400
save_steps: 50
eval_strategy: steps
eval_steps: 20
report_to: [tensorboard]
use_vllm: true
vllm_mode: colocate
"""

TRL_SCRIPT = """\
accelerate launch --num_processes 2 --config_file zero3.yaml train.py \\
  --model_name_or_path tiny --dataset_name openai/gsm8k \\
  --per-device-train-batch-size 8 --gradient_accumulation_steps=2 \\
  --num_generations 4 --use_vllm --max_steps 100 --reward_funcs accuracy format --no-bf16 --config more.yaml
"""

TRL_PYTHON = """\
from trl import GRPOConfig, GRPOTrainer
arguments = GRPOConfig(output_dir="runs/mine", num_generations=4, per_device_train_batch_size=8, max_steps=10,
                       learning_rate=base * 2, lr_scheduler_type="cosine", loss_type="sapo")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and problems, on a machine that has vLLM and no GPU."""
    tiny = InitialiseModel(
        hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_size=16, byte_fallback=True, max_length=4096
    )
    initialise_model(tiny, tmp_path / "tiny", 0)
    for name in ("train", "more", "test", "gsm8k/train", "gsm8k/test"):
        rows = [{"id": f"{name}{n}", "problem": f"{name}: {n} + 1?", "answer": str(n + 1)} for n in range(120)]
        path = tmp_path / "data" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr("actors.engines.checking.find_spec", lambda name: importlib.util.find_spec("trio"))
    monkeypatch.setattr(Learner, "ranked", True, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(trainer: str, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """The topology of a file, and its comments as one line; `agent-rl check` finds it sound."""
    Path(name).write_text(text)
    code = main(["import-config", trainer, name])
    assert code == 0, capsys.readouterr().err
    made = Path(name).with_suffix(".toml")
    assert main(["check", str(made)]) == 0, capsys.readouterr().err
    comments = [line.removeprefix("#").strip() for line in made.read_text().splitlines() if line.startswith("#")]
    return load_topology(made), " ".join(comments)


def test_a_script_of_verl_becomes_a_topology_that_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, comments = imported("verl", "grpo.sh", VERL_SCRIPT, capsys)
    algorithm, (stage,) = topology.algorithm, topology.stages
    assert isinstance(stage, RlStage)
    assert (algorithm.groups_per_step, algorithm.samples, algorithm.keep, algorithm.updates_per_step) == (64, 5, 5, 4)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.loss, algorithm.resampling) == (
        0.2,
        0.28,
        "grpo",
        "none",
    )
    assert (algorithm.kl.coefficient, algorithm.kl.estimator) == (0.005, "k3")
    assert topology.environments[0].settings["files"] == ["data/train.jsonl", "data/more.jsonl"]
    assert (topology.run.name, topology.run.trackers, topology.run.checkpoint_every) == ("tiny-gsm8k", ("wandb",), 20)
    assert (stage.evaluate.every, stage.learning_rate, stage.max_turns) == (5, 1e-6, 1)
    assert topology.actors["learner"].ranks == 2
    for reason in (
        "actor_rollout_ref.rollout.name = sglang: the engines are vllm and torch; vllm stands in",
        "actor_rollout_ref.rollout.my_extra = 3: the engine takes its own arguments",
        "custom_reward_function.path = rewards.py: rewards are the judgement of an environment",
        "data.max_response_length = $((1024 * 2)): its value is computed when the script runs",
        "nobody.knows = this: no counterpart is known",
        "trainer.logger = ['swanlab']: a tracker of your own",
        "trainer.total_epochs = 15: a stage has steps",
    ):
        assert reason in comments
    assert stage.max_response_tokens == 512  # verl's default


def test_a_yaml_file_of_verl_becomes_a_topology_that_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, comments = imported("verl", "config.yaml", VERL_YAML, capsys)
    algorithm, (stage,) = topology.algorithm, topology.stages
    assert (algorithm.loss, algorithm.refill, algorithm.max_refill, algorithm.kl) == ("sequence_mean", True, 10, None)
    assert (stage.steps, stage.warmup_steps, stage.learning_rate, stage.max_turns) == (50, 5, 2e-5, 6)
    assert (topology.model.lora.rank, topology.model.lora.alpha) == (8, 16.0)
    assert "algorithm.adv_estimator = rloo: advantages are those of GRPO" in comments
    assert "tool_config_path = tools.yaml: tools and turns belong to the environment" in comments
    assert "defaults = ['ppo_trainer']: it belongs to Ray or Hydra" in comments


def test_a_yaml_file_of_trl_counts_steps_as_trl_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, comments = imported("trl", "grpo.yaml", TRL_YAML, capsys)
    algorithm, (stage,) = topology.algorithm, topology.stages
    assert (algorithm.groups_per_step, algorithm.samples, algorithm.updates_per_step) == (8, 8, 2)
    assert (algorithm.epochs, algorithm.loss, algorithm.advantage_std) == (2, "dr_grpo", False)
    assert (stage.steps, topology.run.checkpoint_every, stage.evaluate.every) == (100, 13, 5)  # 4 optimizer steps each
    assert (stage.warmup_steps, stage.max_response_tokens) == (10, 128)
    assert topology.fetch == {"data/gsm8k": "openai/gsm8k"}
    assert "lr_scheduler_type = linear: the schedules are constant and cosine" in comments
    assert "vllm_mode = colocate" in comments


def test_arguments_of_a_script_of_trl_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, comments = imported("trl", "train.sh", TRL_SCRIPT, capsys)
    assert topology.algorithm.groups_per_step == 8 * 2 * 2 // 4
    assert topology.actors["learner"].ranks == 2
    assert topology.actors["rollout_generator"].settings["engine"] == "vllm"
    assert "reward_funcs = ['accuracy', 'format']: rewards are" in comments
    assert topology.model.dtype == "float32"
    assert "config = more.yaml: the keys of that file are not read" in comments
    assert "config_file = zero3.yaml: it belongs to the program that starts the trainer" in comments


def test_keywords_of_python_code_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(TRL_PYTHON)
    assert main(["import-config", "trl", "train.py", "--out", "mine.toml"]) == 0
    text = Path("mine.toml").read_text()
    assert "learning_rate = base * 2: its value is computed when the script runs" in text
    assert "loss_type = sapo: it is not built in" in text
    assert 'schedule = "cosine"' in text
    assert 'path = "MODEL"' in text
    assert main(["check", "mine.toml", "--set", "model.path=tiny"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("trainer", "name", "text", "message"),
    [
        ("verl", "a.sh", "echo hello\n", "a.sh: holds no settings"),
        ("verl", "a.sh", "python -m x data.train_files='open\n", "a.sh, line 1: no closing quotation"),
        ("verl", "a.yaml", "data: [1\n", "a.yaml, line 2: "),
        ("verl", "a.json", '{"data": }', "a.json, line 1: "),
        ("verl", "a.yaml", "- 1\n", "a.yaml: holds list, not a table of keys"),
        ("verl", "a.yaml", TRL_YAML, "try agent-rl import-config trl"),
        ("trl", "a.yaml", VERL_YAML, "try agent-rl import-config verl"),
        ("verl", "a.sh", "x data.train_files=a trainer.nnodes=1\n", "actor_rollout_ref.model.path is missing"),
        (
            "verl",
            "a.sh",
            VERL_SCRIPT.replace("n=5", "n=many"),
            "a.sh, line 30: actor_rollout_ref.rollout.n is 'many'; it must",
        ),
        (
            "verl",
            "a.sh",
            VERL_SCRIPT.replace("n=5", "n=1"),
            "a wrong algorithm.keep: an advantage within a group needs",
        ),
        ("verl", "a.sh", VERL_SCRIPT.replace("lr=1e-6", "lr=-1"), "wrong stages.0.learning_rate"),
        ("trl", "a.yaml", TRL_YAML.replace("generations: 8", "generations: 7"), "does not hold whole groups of 7"),
        ("trl", "a.py", "GRPOConfig(", "a.py, line 1: "),
        ("trl", "gone.yaml", None, "gone.yaml: No such file"),
    ],
)
def test_a_mistake_is_one_clear_sentence(
    trainer: str, name: str, text: str | None, message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    assert main(["import-config", trainer, name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.glob("*.toml"))


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(VERL_YAML)
    Path("a.toml").write_text("mine")
    assert main(["import-config", "verl", "a.yaml"]) == 2
    assert "a.toml: is there already" in capsys.readouterr().err
    assert Path("a.toml").read_text() == "mine"
