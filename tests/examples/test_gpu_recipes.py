"""The recipes for GPUs are sound on a machine without one, once their files are there; and the images are pinned."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from actors.cli.main import main
from actors.learner import Learner
from agent_rl.config.load import load_topology
from agent_rl.config.placement import most_gpus, placement
from agent_rl.config.selection import Difficulty, SelectStage
from agent_rl.config.topology import InitialiseModel, RlStage, SftStage
from agent_rl.learning.tiny import initialise_model
from agent_rl.topology_checks.memory import plan
from agent_rl.topology_checks.placement import placement_rows
from transport import CurveKeys

ROOT = Path(__file__).parent.parent.parent
LAYERS = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768}
SIZES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16},
    "Qwen/Qwen3-4B": {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32},
    "Qwen/Qwen3-14B-Base": {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40},
}
MLP = {"Qwen/Qwen3-0.6B": 3072, "Qwen/Qwen3-4B": 9728, "Qwen/Qwen3-14B-Base": 17408}
RECIPES = {
    "qwen3_0.6b_1gpu": ["qwen3_0.6b_1gpu.toml"],
    "qwen3_4b_8gpu": ["qwen3_4b_8gpu.toml"],
    "rstar2_14b_mi300x": ["rstar2_14b_mi300x.toml"],
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """What the hub says of the models: sizes as published, and a small tokenizer in place of theirs."""
    folder = tmp_path_factory.mktemp("hub")
    tiny = InitialiseModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_size=16, byte_fallback=True)
    for name, sizes in SIZES.items():
        initialise_model(tiny, folder / name, 0)
        tokenizer = Tokenizer.from_file(str(folder / name / "tokenizer.json"))
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        tokenizer.save(str(folder / name / "tokenizer.json"))
        config = json.loads((folder / name / "config.json").read_text())
        tied = {"tie_word_embeddings": "14B" not in name}
        (folder / name / "config.json").write_text(
            json.dumps(config | sizes | LAYERS | tied | {"intermediate_size": MLP[name]})
        )
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def folder(hub, tmp_path, monkeypatch):
    """The recipes beside their files, on a machine where vLLM is installed and there is no GPU."""
    for names in RECIPES.values():
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / "examples" / name, tmp_path / name)
    problems = ("gsm8k/train", "gsm8k/test", "rl_42k", "aime_2024/train", "aime_2025/train")
    for name in problems:
        rows = [{"id": f"{name}:{n}", "problem": f"{name}: what is {n} + 1?", "answer": str(n + 1)} for n in range(240)]
        write(tmp_path / "data" / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    talk = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    write(tmp_path / "data/conversations.jsonl", json.dumps(talk) + "\n")
    CurveKeys.generate().save(tmp_path / "cluster.key")
    monkeypatch.setattr("agent_rl.models.hub.metadata", lambda name: hub / name)
    monkeypatch.setattr("actors.engines.checking.find_spec", lambda name: importlib.util.find_spec("trio"))
    monkeypatch.setattr(Learner, "ranked", True, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_sound_on_a_machine_without_gpus(folder, recipe, capsys):
    assert main(["check", *RECIPES[recipe]]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "memory plan:" in out
    assert "GPUs:" in out


def test_sixty_four_gpus_are_used_each_once_and_one_twice(folder):
    large = load_topology(folder / "rstar2_14b_mi300x.toml")
    assert len({(placed.host, gpu) for placed in placement(large) for gpu in placed.gpus}) == 64
    assert all(most_gpus(large, host) == 8 for host in large.hosts_in_use)
    eight = load_topology(folder / "qwen3_4b_8gpu.toml")
    assert sorted(gpu for placed in placement(eight) for gpu in placed.gpus) == list(range(8))
    (_, row) = placement_rows(load_topology(folder / "qwen3_0.6b_1gpu.toml"))
    assert " and " in row[2]


@pytest.mark.parametrize(
    ("recipe", "gib"), [("qwen3_0.6b_1gpu", 24), ("qwen3_4b_8gpu", 80), ("rstar2_14b_mi300x", 192)]
)
def test_the_learner_fits_into_its_gpus(folder, recipe, gib):
    del folder
    needs = [
        need
        for need in plan(load_topology(Path(RECIPES[recipe][0])))
        if "rank" in need.where or need.where == "learner"
    ]
    share = 0.6 if gib == 24 else 1.0  # vLLM has the rest
    assert 0 < sum(need.size for need in needs) < 0.95 * share * gib * 2**30


def test_the_stages_are_the_papers(folder):
    topology = load_topology(folder / "rstar2_14b_mi300x.toml")
    stages = topology.stages
    assert isinstance(stages[0], SftStage)
    rl = [stage for stage in stages if isinstance(stage, RlStage)]
    assert [(stage.steps, stage.max_response_tokens, stage.max_turns) for stage in rl] == [
        (300, 8192, 10),
        (85, 12288, 10),
        (125, 12288, 15),
    ]
    assert [stage.kind for stage in stages] == ["sft", "rl", "rl", "select", "rl"]
    select = stages[3]
    assert isinstance(select, SelectStage)
    assert (select.samples, select.keep, topology.selection_before(4)) == (8, Difficulty(below=1.0), 3)
    assert [stage.reset_optimizer for stage in rl] == [True, False, True]
    algorithm = topology.algorithm
    assert (algorithm.groups_per_step, algorithm.samples, algorithm.keep) == (512, 32, 16)


@pytest.mark.parametrize("name", sorted({name for names in RECIPES.values() for name in names}))
def test_each_recipe_says_what_never_ran(name):
    text = (ROOT / "examples" / name).read_text()
    assert "What was run: " in text
    assert "NOT RUN: " in text


@pytest.mark.parametrize("path", sorted((ROOT / "containers").glob("*Dockerfile")), ids=lambda path: path.name)
def test_an_image_passes_hadolint_and_keeps_what_its_base_has(path):
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--failure-threshold", "info", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for line in re.sub(r"\\\n", " ", path.read_text()).splitlines():
        if line.startswith("RUN ") and "pip install" in line:
            assert "--constraint" in line
        if line.startswith("COPY "):
            assert all((ROOT / name).exists() for name in line.split()[1:-1]), line
