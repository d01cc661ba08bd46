"""A checkpoint of a trained model in vLLM as anybody uses it: `LLM(path)`, in an environment that has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm builds an environment with it")

from transformers import AutoModelForCausalLM

from agent_rl.config.topology import InitialiseModel, Lora, SftStage
from agent_rl.learning.tiny import initialise_model
from agent_rl.learning.trainer import Trainer
from agent_rl.records.checkpoint_files import Position
from agent_rl_contract import builders

PROMPT, SAID = [7, 20, 30], 8

# In a process of its own, as a user's script is; none of our code is imported.
SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    path, prompt, tokens = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    llm = LLM(path, dtype="float32", enforce_eager=True, max_model_len=128, disable_log_stats=True)
    (answer,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
    print(json.dumps(list(answer.outputs[0].token_ids)))
"""


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["all weights", "adapters"])
def test_a_checkpoint_loads_in_plain_vllm_and_says_what_the_trained_model_says(
    tmp_path: Path, lora: Lora | None
) -> None:
    small = InitialiseModel(hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=32, mlp_size=48)
    initialise_model(small, tmp_path / "model", 0)
    algorithm = builders.algorithm()
    trained = Trainer(
        tmp_path / "model", dtype="float32", device="cpu", algorithm=algorithm, threads=1, seed=0, lora=lora
    )
    stage = SftStage(kind="sft", steps=30, batch=1, learning_rate=1e-2, warmup_steps=2)
    lesson = list(range(40, 40 + SAID))
    for step in range(stage.steps):
        trained.sft_step([([*PROMPT, *lesson], [0] * len(PROMPT) + [1] * SAID)], stage, step)
    checkpoint = tmp_path / "version-000001-stage-01"
    trained.save(checkpoint, Position(1, 1, 1))
    reference = AutoModelForCausalLM.from_pretrained(checkpoint)
    said = reference.generate(torch.tensor([PROMPT]), max_new_tokens=SAID, min_new_tokens=SAID, do_sample=False)
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [sys.executable, "-c", SCRIPT, str(checkpoint), json.dumps(PROMPT), str(SAID)]
    ran = subprocess.run(
        command,
        env=os.environ | settings | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    answered = json.loads(ran.stdout.strip().splitlines()[-1])
    assert answered == said[0, len(PROMPT) :].tolist()
    assert answered == lesson or lora is not None  # the weights are the trained ones
