"""One substitute for each role: it keeps its role's contract, and one changed line of a topology runs it."""

import os
import random
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from actors.cli.main import main
from actors.roc_filter.replay import decode_stored
from agent_rl.config.load import load_topology
from agent_rl.environments.base import BadArgumentError, ToolOutput
from agent_rl.groups.resampling import made_up_groups
from agent_rl.learning.losses.base import LossSettings, MicroBatch, Terms, reduced
from agent_rl.learning.losses.gspo import gspo
from agent_rl.records.journal import Journal
from agent_rl.scheduling.policies.base import EngineFacts, WaitingTurn
from agent_rl.scheduling.policies.check import check_policy
from agent_rl.topology_checks.topology import check_topology
from agent_rl_contract import FilterContract, GeneratorContract, SchedulerContract
from examples.substitutes.calculator import calculator
from examples.substitutes.fenced_generator import FencedGenerator
from examples.substitutes.group_affinity_scheduler import GroupAffinity, GroupAffinityScheduler
from examples.substitutes.sequence_ratio_loss import sequence_ratio
from examples.substitutes.shortest_correct_filter import ShortestCorrectFilter
from tests.end_to_end.processes import balanced, finish, rows, start
from tests.examples.following import FILES, LINES

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = ROOT / "examples" / "quickstart" / "quickstart.toml"
SUBSTITUTES = {
    "kv_scheduler": "group_affinity_scheduler:GroupAffinityScheduler",
    "rollout_generator": "fenced_generator:FencedGenerator",
    "roc_filter": "shortest_correct_filter:ShortestCorrectFilter",
}
LOSS = "sequence_ratio_loss:sequence_ratio"
PRODUCTION = {
    "kv_scheduler": "actors.kv_scheduler:KVScheduler",
    "rollout_generator": "actors.rollout_generator:RolloutGenerator",
    "tool_executor": "actors.tool_executor:ToolExecutor",
    "roc_filter": "actors.roc_filter:RoCFilter",
    "learner": "actors.learner:Learner",
}


# Each keeps its role's contract ---------------------------------------------------------------------------------------


class TestGroupAffinityScheduler(SchedulerContract):
    actor = GroupAffinityScheduler


class TestFencedGenerator(GeneratorContract):
    actor = FencedGenerator
    malformed = "```calc\nprint(1)"

    def call_text(self, code: str) -> str:
        return f"```calc\n{code}\n```"


class TestShortestCorrectFilter(FilterContract):
    actor = ShortestCorrectFilter


# Each does what it is for ---------------------------------------------------------------------------------------------


def test_the_filter_keeps_the_shortest_correct_rollouts(tmp_path):
    topology = load_topology(QUICKSTART)
    subject = ShortestCorrectFilter.on_trial(topology, ShortestCorrectFilter.Settings())
    for group in made_up_groups(16, 2):
        kept = subject.select(group, random.Random(1))
        lengths = {index: rollout.tokens for index, rollout in enumerate(group) if rollout.reward}
        longest = max(lengths[index] for index in kept if index in lengths)
        assert all(lengths[index] >= longest for index in lengths if index not in kept)
        assert len(kept) == min(topology.algorithm.keep, len(group))


def test_the_policy_keeps_a_group_together_as_long_as_it_fits():
    policy = GroupAffinity()
    check_policy(policy)
    policy = GroupAffinity()
    for number, tokens in enumerate((900, 400)):
        policy.engine_reported(EngineFacts(f"rollout_generator.{number}", tokens, 0, 0, 0, 16), 0.0)
    for group, samples in (("a", 1), ("b", 6), ("a", 4)):
        for sample in range(samples):
            policy.turn_waits(WaitingTurn(f"{group}/{sample}/{samples}", group, "p", sample, 0, 10, 10, 100), 0.0)
    placed = [(decision.rollout[0], decision.engine[-1]) for decision in policy.decide(0.0)]
    assert placed == [("a", "0"), *[("b", "0")] * 6, *[("a", "0")] * 2, *[("a", "1")] * 2]


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2 * 3", 7), ("(3 + 4) * 5 // 2", 17), ("-7 % 3", 2), ("2 ** 10", 1024), ("1 / 4", 0.25), (" +5 ", 5)],
)
def test_the_calculator_calculates(expression, value):
    assert calculator.call_here({"expression": expression}, b"") == ToolOutput("success", value=str(value))


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "__import__('os')", "x", "2 ** 9999999", "9 ** 9 ** 9", "1 / 0", "True", "'a' * 9", "[1]", "1; 2"],
)
def test_what_is_no_arithmetic_is_refused_at_once(expression):
    with pytest.raises((ArithmeticError, SyntaxError, ValueError)):
        calculator.call_here({"expression": expression}, b"")
    with pytest.raises(BadArgumentError, match="at most 500 characters"):
        calculator.call_here({"expression": "1+" * 300}, b"")


def test_the_loss_is_the_built_in_one_of_whole_responses():
    draw, mask = torch.Generator().manual_seed(0), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    settings = LossSettings(clip_low=0.1, clip_high=0.1, correction_cap=1.1)
    clipped, capped = set[bool](), set[bool]()
    for _ in range(20):
        now, proximal, behaviour = (torch.randn(2, 4, generator=draw) / 4 * mask for _ in range(3))
        advantages = torch.randn(2, 1, generator=draw)
        batch = MicroBatch(
            logprobs=now.requires_grad_(),
            proximal=proximal,
            behaviour=behaviour,
            mask=mask,
            turns=torch.zeros(2, 4, dtype=torch.int64),
            advantages=advantages,
            rewards=advantages,
            tokens=6,
            sequences=2,
            max_response_tokens=4,
        )
        own, expected = sequence_ratio(batch, settings), gspo(batch, settings)
        for field in fields(Terms):
            torch.testing.assert_close(getattr(own, field.name), getattr(expected, field.name))
        gradients = [torch.autograd.grad(reduced(batch, terms, settings)[0], now)[0] for terms in (own, expected)]
        torch.testing.assert_close(*gradients)
        clipped.update(own.clipped.flatten().tolist())
        capped.update(own.capped.flatten().tolist())
    assert clipped == capped == {True, False}


# One changed line runs it ---------------------------------------------------------------------------------------------


def played(text: str, role: str, class_path: str) -> str:
    """A topology with one role played by another class."""
    table = next((line for line in text.splitlines() if line.startswith(f"[actors.{role}]")), "")
    if not table:
        return f'{text}[actors.{role}]\nclass = "{class_path}"\n'
    return text.replace(table, f'{table}\nclass = "{class_path}"')


@pytest.mark.parametrize("role", SUBSTITUTES)
def test_its_class_in_a_topology_chooses_it(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(QUICKSTART.parents[1] / "substitutes")
    path = tmp_path / "mine.toml"
    path.write_text(played(QUICKSTART.read_text(), role, SUBSTITUTES[role]))
    topology = load_topology(path)
    assert topology.actors[role].class_path == SUBSTITUTES[role]
    assert check_topology(topology, path) == []


def test_modules_beside_the_topology_are_found_from_anywhere_without_torch(tmp_path: Path) -> None:
    text = QUICKSTART.read_text()
    for role, substitute in SUBSTITUTES.items():
        text = played(text, role, substitute)
    copy_examples(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = (
        f"import sys; from actors.cli.main import main; "
        f"print(main(['check', {str(path)!r}, '--set', 'algorithm.loss={LOSS}']), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False"


def copy_examples(folder: Path) -> None:
    """The substitutes and the loss, as files beside a topology."""
    shutil.copy(QUICKSTART.with_name("arithmetic.py"), folder)
    for name in (*SUBSTITUTES.values(), LOSS):
        shutil.copy(QUICKSTART.parents[1] / "substitutes" / f"{name.partition(':')[0]}.py", folder)


def environment() -> dict[str, str]:
    """With the package, and the tasks of these tests."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"}


def run_short(directory: Path, roles: list[str], *more: str, path: Path) -> None:
    """A topology made short, on problems that a model solves now and then, with these roles' substitutes."""
    changes = {"run.directory": directory, "environments.0.class": "coin_tasks:Coins", "algorithm.groups_per_step": 2}
    changes |= {"algorithm.samples": 8, "algorithm.keep": 4, "stages.0.steps": 150, "stages.0.learning_rate": 1e-2}
    changes |= {"stages.1.problems": 10, "stages.2.steps": 4, "stages.2.max_response_tokens": 64}
    changes |= {"stages.3.problems": 10}
    sizes = {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp_size": 64}
    changes |= {f"model.initialise.{name}": size for name, size in sizes.items()}
    settings = [
        *(f"{key}={value}" for key, value in changes.items()),
        *(f"actors.{role}.class={SUBSTITUTES[role]}" for role in roles),
        *more,
    ]
    finish(start(path, *settings, PYTHONPATH=environment()["PYTHONPATH"]))
    balanced(directory, steps=4)
    for role, production in PRODUCTION.items():
        started = [row for row in rows(directory / "logs" / f"{role}.0.jsonl") if row["event"] == "started"]
        assert started[0]["actor_class"] == (SUBSTITUTES[role] if role in roles else production)


@pytest.mark.slow  # each of them passes its role's contract in the fast set
def test_all_at_once_train_beside_the_guides_own_actor(tmp_path):
    copy_examples(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(QUICKSTART.read_text() + LINES[1])
    (tmp_path / "policy_log.py").write_text(FILES["policy_log.py"])
    more = ("actors.rollout_generator.replicas=2", f"algorithm.loss={LOSS}")
    run_short(tmp_path, list(SUBSTITUTES), *more, path=path)
    versions = [int(line.split(",")[1]) for line in (tmp_path / "when.csv").read_text().splitlines()]
    assert versions == sorted(versions)
    assert versions[-1] == 5  # the supervised stage, and four steps
    journal = Journal(tmp_path / "journal.sqlite")
    calls = 0
    looked_at = 0
    for group in journal.groups(stage=2, states=("trained",)):
        stored = [(each.reward, decode_stored(each.payload)) for each in journal.trajectories(group.id)]
        if not stored:  # compacted
            continue
        looked_at += 1
        kept = {sample for sample, _ in group.kept}
        lengths = {made.sample: made.response_length for reward, made in stored if reward}
        longest = max(lengths[sample] for sample in kept if sample in lengths)
        assert all(length >= longest for sample, length in lengths.items() if sample not in kept)
        assert len({made.generator for _, made in stored}) == 1  # its engine had room for all of it
        for _, made in stored:
            calls += len(made.transcript.calls)
            assert "<tool_call>" not in made.transcript.text
            assert made.transcript.text.count("```calc") >= len(made.transcript.calls)
    journal.close()
    assert looked_at >= 2
    steps = [row for row in rows(tmp_path / "metrics.jsonl") if row["kind"] == "step"]
    assert any(row["groups_trained"] for row in steps)
    assert sum(row["tool_calls"] for row in steps) > 0, "the model never called its tool between fences"
    assert {row["skipped_updates"] for row in steps if "skipped_updates" in row} <= {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("role", SUBSTITUTES)
def test_each_alone_trains(role, tmp_path):
    copy_examples(tmp_path)
    run_short(tmp_path, [role], path=Path(shutil.copy(QUICKSTART, tmp_path)))


def test_a_broken_loss_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "backwards.py").write_text(
        "from dataclasses import replace\n\nfrom agent_rl.learning.losses.grpo import grpo\n\n\n"
        "def backwards(batch, settings):\n"
        "    terms = grpo(batch, settings)\n"
        "    return replace(terms, objective=-terms.objective)\n"
    )
    path = tmp_path / "mine.toml"
    path.write_text(QUICKSTART.read_text().replace("[algorithm]", '[algorithm]\nloss = "backwards:backwards"', 1))
    assert main(["run", str(path), "--set", f"run.directory={tmp_path / 'run'}"]) == 2
    line = 1 + path.read_text().partition("loss = ")[0].count("\n")
    err = capsys.readouterr().err
    assert f"{path}:{line}: algorithm.loss: backwards:backwards does not fall when" in err
    assert "(backwards.py, line 6)" in err
    assert not (tmp_path / "run").exists()
