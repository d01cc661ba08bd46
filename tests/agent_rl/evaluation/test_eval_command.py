"""``agent-rl eval``: what it refuses, with one message each, the topology it makes, and how far it is."""

import io
import json
import tomllib
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from actors.cli.evaluation import EvaluationView
from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.config.topology import InitialiseModel, Topology
from agent_rl.environments.maths import Maths
from agent_rl.evaluation.problems import EvaluationError, chosen_problems, prompt_in
from agent_rl.evaluation.results import write_results
from agent_rl.evaluation.topology import Asked, evaluation_topology, find_model
from agent_rl.learning.tiny import CHAT_TEMPLATE, initialise_model
from agent_rl.records.checkpoint_files import STATE_FILE
from agent_rl.topology_checks.topology import check_topology
from tests.agent_rl.evaluation.test_results import result
from tests.builders import status
from tests.end_to_end.topologies import ENVIRONMENT, write_micro


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made") / "model"
    shape = InitialiseModel(hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32)
    initialise_model(shape, directory, 0)
    return directory


def write_problems(folder: Path, count: int = 3) -> Path:
    path = folder / "held_out.jsonl"
    path.write_text("\n".join(json.dumps({"problem": f"{i}?", "answer": "4"}) for i in range(count)))
    return path


def asked(model: Path, data: Path) -> Asked:
    entry = {"class": "maths", "settings": {"evaluation_files": [str(data)], "prompt": "plain"}}
    stage = {"samples": 4, "problems": 3, "temperature": 0.6, "max_response_tokens": 64, "max_turns": 2}
    return Asked(model, [entry], stage, 0)


def sound(folder: Path, model: Path, like: Path | None) -> Topology:
    """The topology of an evaluation with the actors of another one."""
    file = folder / "evaluation.toml"
    file.write_text(tomli_w.dumps(evaluation_topology(asked(model, write_problems(folder)), folder / "run", like)))
    topology = load_topology(file)
    assert check_topology(topology, file) == []
    return topology


def test_the_embedded_topology_is_sound(tmp_path, model):
    stage = sound(tmp_path, model, None).stages[0]
    assert stage.kind == "evaluate"
    assert (stage.samples, stage.greedy, stage.groups, stage.rollouts) == (4, False, 3, 12)


def test_actors_of_a_topology_file_are_taken_and_the_learner_is_replaced(tmp_path, model):
    micro, _ = write_micro(tmp_path)
    micro.write_text(
        micro.read_text()
        .replace("[model.initialise]", '[model]\nchat_template = "t.jinja"\n[model.initialise]')
        .replace("[actors.learner]", '[actors.learner]\nshare = "time"')
        .replace("[actors.rollout_generator]", '[actors.rollout_generator]\nshare = "time"')
    )
    (tmp_path / "t.jinja").write_text(CHAT_TEMPLATE)
    topology = sound(tmp_path, model, micro)
    assert topology.actors["rollout_generator"].settings["error_detail"] == "last_line"
    assert topology.model.chat_template == str(tmp_path / "t.jinja")
    assert topology.actors["learner"].class_path == "actors.evaluator:Evaluator"


@pytest.mark.parametrize(
    ("made_with", "prompt"),
    [
        ({"environments.0.class_path": "maths", "environments.0.settings": {"prompt": "rstar2"}}, "rstar2"),
        ({"environments.0.class_path": "maths", "environments.0.settings": {"files": ["a.jsonl"]}}, "plain"),
        ({"environments.0.class_path": "mine:Mine", "environments.0.settings": {}}, None),
    ],
)
def test_a_run_stands_for_its_newest_checkpoint_and_the_prompt_it_was_made_with(made_with, prompt, tmp_path):
    run = tmp_path / "run"
    for version in ("version-000002-stage-01", "version-000010-stage-01"):
        (run / "checkpoints" / version).mkdir(parents=True)
        (run / "checkpoints" / version / "config.json").write_text("{}")
    (run / "topology.json").write_text(json.dumps(made_with))
    newest = run / "checkpoints" / "version-000010-stage-01"
    assert find_model(run) == (newest, "run-version-000010-stage-01", prompt)
    assert find_model(newest)[2] == prompt
    file = tmp_path / "topology.toml"
    settings = made_with["environments.0.settings"]
    entry = {"class": made_with["environments.0.class_path"], "settings": settings}
    file.write_text(tomli_w.dumps({"environments": [entry]}))
    assert prompt_in(file) == prompt


@pytest.mark.parametrize("whole_run", [True, False])
def test_a_checkpoint_that_was_cut_is_named_before_anything_starts(tmp_path, *, whole_run):
    checkpoint = tmp_path / "run" / "checkpoints" / "version-000002-stage-01"
    state = checkpoint / STATE_FILE
    state.parent.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(b"12345")
    named = tmp_path / "run" if whole_run else checkpoint
    state.write_text('{"files": {"model.safetensors": [5, 0], "training/rank-0/optimizer.safetensors": [9, 0]}}')
    assert find_model(named)[0] == checkpoint  # the optimizer's moments are not needed
    (checkpoint / "model.safetensors").write_bytes(b"123")
    with pytest.raises(EvaluationError, match=r"model\.safetensors is 3 bytes long, 5 were written: name an older"):
        find_model(named)
    state.write_text("{")
    with pytest.raises(EvaluationError, match=r"training/state\.json cannot be read .*name another checkpoint"):
        find_model(named)


def test_every_mistake_is_one_message(tmp_path, model, capsys):
    data, out = write_problems(tmp_path), ["--out", str(tmp_path / "out")]
    (tmp_path / "broken.jsonl").write_text('{"problem": "?"}\n')
    (tmp_path / "empty.jsonl").touch()

    def refused(message: str, *arguments: str | Path) -> None:
        assert main(["eval", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert "Traceback" not in said
        assert ("name a MODEL" in said) == (not arguments)

    sound = [model, "--data", data]
    for message, arguments in (
        ("name a MODEL", []),
        ("no problems are named: --data FILE..., or --topology FILE", [model]),
        ("no directory", [tmp_path / "nothing", "--data", data]),
        ("neither config.json", [tmp_path, "--data", data]),
        ("no file matches", [model, "--data", tmp_path / "nothing.jsonl"]),
        ("broken.jsonl:1: `answer`", [model, "--data", tmp_path / "broken.jsonl"]),
        ("empty.jsonl: the file holds no tasks", [model, "--data", tmp_path / "empty.jsonl", *out]),
        ('Invalid value "0" for --n. Must be >= 1', [*sound, "--n", "0"]),
        ('Invalid value "inf" for --temperature', [*sound, "--temperature", "inf"]),
        ("asks for 4 problems, and there are 3", [*sound, "--problems", "4"]),
        ("cannot be read", [*sound, "--topology", tmp_path / "nothing.toml", *out]),
        ("own options", [*sound, "--set", "stages.0.samples=3"]),
        ("its problems have no end; say how many", [model, "--topology", "examples/quickstart/quickstart.toml"]),
        ("max_rolouts", [*sound, "--set", "actors.rollout_generator.settings.max_rolouts=3", *out]),
        ("holds something else", [*sound, "--out", tmp_path]),
        ("leave out MODEL", [model, "--compare", "a", "b"]),
        ("there is no a:", ["--compare", "a", "b"]),
    ):
        refused(message, *arguments)
    assert not (tmp_path / "out" / "journal.sqlite").exists()
    (tmp_path / "out" / "journal.sqlite").touch()  # as if it had begun
    refused("samples: 16 then, 8 now", *sound, "--n", "8", *out)
    data.write_text('{"problem": "new", "answer": "4"}')
    refused("holds another evaluation", *sound, *out)


def test_two_results_are_compared_on_what_both_answered(tmp_path, capsys):
    for name, answer in (("a", "5"), ("b", "4")):
        (tmp_path / name).mkdir()
        problems = [result("4", answer, problem=f"{i} [b]?") for i in range(6)]
        write_results(tmp_path / name / "results.json", {}, problems)
    (tmp_path / "c.json").write_text((tmp_path / "a" / "results.json").read_text().replace("[b]?", "[c]?"))
    assert main(["eval", "--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    found = json.loads(said.splitlines()[-1])
    assert (found["a"], found["b"], found["better"], found["problems"]) == (0.5, 1.0, 6, 6)
    assert found["p"] == pytest.approx(2 / 2**6)
    assert "exact paired permutation test" in said
    assert main(["eval", "--compare", str(tmp_path / "a"), str(tmp_path / "c.json")]) == 2
    assert "no problem in common" in capsys.readouterr().err


def test_a_level_of_0_is_one(tmp_path):
    path = tmp_path / "levels.jsonl"
    rows = [{"problem": "?", "answer": "4", "level": 0, "subject": "a"}, {"problem": "!", "answer": "4"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    source = Maths(seed=0, base=tmp_path, evaluation_files=("levels.jsonl",)).problems()
    payloads = [source.evaluation(number).payload for number in range(2)]
    assert payloads == [{"file": "levels.jsonl", "subject": "a", "level": "0"}, {"file": "levels.jsonl"}]


def test_without_data_the_topologys_own_held_out_problems_are_asked(tmp_path):
    found = chosen_problems([], Path("examples/quickstart/quickstart.toml"), 5)
    assert found.count == 5
    (entry,) = tomllib.loads(tomli_w.dumps({"environments": found.environments}))["environments"]
    assert entry["class"] == "arithmetic:Arithmetic"
    micro, _ = write_micro(tmp_path)
    files = "class = 'maths'\nsettings.evaluation_files = ['held_out.jsonl']"
    data = write_problems(tmp_path)
    micro.write_text(micro.read_text().replace(ENVIRONMENT, files))
    found = chosen_problems([], micro, None, prompt="rstar2")
    (entry,) = found.environments
    assert Path(entry["base"]) / entry["settings"]["evaluation_files"][0] == data
    assert (entry["settings"]["prompt"], found.count) == ("rstar2", 3)


# An evaluation under way, as a line ------------------------------------------------------------------------------------


def heard(view: EvaluationView, now: float, done: int, total: int = 200) -> None:
    view.process("roc_filter.0", "running")
    view.observe(status("roc_filter.0", rollouts_judged=done, rollouts_to_judge=total), now)


def test_what_is_left_follows_from_what_this_start_has_done():
    view = EvaluationView("evaluation", ["roc_filter.0"], ["evaluation"], 100.0)
    assert view.line(101.0) == "[0:01] starting"
    heard(view, 105.0, 120)  # what an earlier start did
    assert view.line(105.0) == "[0:05] 120 of 200 rollouts judged"
    heard(view, 115.0, 140)
    assert view.line(115.0) == "[0:15] 140 of 200 rollouts judged, 0:30 left"
    view.process("tool_executor.0", "restarting")
    assert "(tool_executor.0 restarting)" in view.line(115.0)


def test_on_a_terminal_the_line_is_folded():
    view = EvaluationView("evaluation", ["roc_filter.0"], ["evaluation"], 0.0)
    heard(view, 1.0, 100)
    for width in range(20, 160):
        shown = io.StringIO()
        Console(file=shown, width=width, force_terminal=True, color_system=None).print(view.render(1.0, width))
        lines = shown.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert "".join(lines).replace(" ", "") == view.line(1.0).replace(" ", "")
