"""The recipe of SmolLM2 from its commands: data from equations, a sound topology, and a shortened run of a stand-in."""

import json
import shutil
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model

ROOT = Path(__file__).parent.parent.parent
RECIPE = "examples/smollm2_word_problems.toml"
SMALL = InitialiseModel(
    hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_size=16, max_length=512, byte_fallback=True
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A clone with data and a small model where the recipe has SmolLM2."""
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / RECIPE, tmp_path / RECIPE)
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": f"p{n}", "problem": f"Ada has {n} apples and buys 3. How many?", "answer": str(n + 3)}
        for n in range(580)
    ]
    for name, part in (("problems", rows[:280]), ("held_out", rows[280:])):
        equations = [{**row, "equation": f"{int(row['answer']) - 3}.0+3.0"} for row in part]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in equations))
    data = Path("examples/data/word_problems")
    made = ["--out", str(data / "demonstrations.jsonl"), "--rest", str(data / "train.jsonl")]
    assert main(["data", "demonstrate", "problems.jsonl", "--number", "240", *made]) == 0
    shutil.move("held_out.jsonl", data)
    initialise_model(SMALL, tmp_path / "models" / "smollm2-135m", 0)
    return tmp_path


def test_the_recipe_is_sound_once_its_files_are_there(folder, capsys):
    assert main(["check", RECIPE]) == 0, capsys.readouterr().err
    shutil.rmtree(folder / "models")
    assert main(["check", RECIPE]) != 0
    assert "models/smollm2-135m" in capsys.readouterr().err


@pytest.mark.slow
def test_the_recipe_runs_shortened_and_its_right_rollouts_can_be_trained_on(folder):
    short = ["stages.0.steps=2", "stages.1.problems=4", "stages.2.steps=1", "stages.3.problems=4"]
    small = ["algorithm.groups_per_step=2", "algorithm.samples=4", "algorithm.keep=4"]
    assert main(["run", RECIPE, *(part for each in (*short, *small) for part in ("--set", each))]) == 0
    run = Path("runs/smollm2_word_problems")
    assert main(["export", str(run)]) == 0
    sampled = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
    right = [row for row in sampled if row["purpose"] == "train"]
    (folder / "right.jsonl").write_text("".join(json.dumps(row) + "\n" for row in right))
    again = ["stages=[{kind='sft', steps=2, batch=4, data=['../right.jsonl']}]", "run.directory='runs/again'"]
    assert main(["run", RECIPE, *(part for each in again for part in ("--set", each))]) == 0


@pytest.mark.slow
def test_the_recipe_and_its_controls_begin_from_one_taught_model_and_go_on(folder, capsys):
    shutil.copytree(ROOT / "examples/smollm2_controls", folder / "examples/smollm2_controls")
    short = ["stages.0.steps=2", "stages.2.steps=4", "stages.3.problems=4", "algorithm.keep=4", "algorithm.samples=4"]
    asked = [*(part for each in (*short, "algorithm.groups_per_step=2") for part in ("--set", each)), "--length", "0.5"]
    command = ["bench", "real", RECIPE, "--only", "rl", "random", "demonstrations", "direct", *asked]
    command += ["--more", str(folder / "examples/data/word_problems/demonstrations.jsonl")]
    assert main(command) == 0, capsys.readouterr().err
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() > {f"real.{name}_success" for name in ("random_reward", "demonstrations", "direct")}
    seed = folder / "runs/real/seed-0"
    assert json.loads((seed / "rl/run/summary.json").read_text())["steps"] == 2
    began = [(seed / name / "run/topology.local.toml").read_text() for name in ("rl", "random", "demonstrations")]
    assert all("taught/run/checkpoints" in each for each in began)
    shutil.rmtree(seed / "direct")
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == figures
