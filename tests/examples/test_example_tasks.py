"""The example environments: short, right in what they judge, and run for real."""

import importlib
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import pytest
import trio

from agent_rl.config.plugins import resolve
from agent_rl.environments.base import Environment, ToolOutput
from agent_rl.messages import Judgement, Problem, Transcript
from agent_rl.rollout.parsing import parse_calls
from agent_rl_contract import EnvironmentContract
from examples import one_file
from tests.actors.sandbox.running import run_with
from tests.end_to_end.processes import balanced, overrides

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FOLDERS = {
    "sql_questions": "sql_questions",
    "programming": "programming",
    "doors": "doors",
    "expressions": "quickstart",
}
GAMES = 2000


@pytest.fixture(autouse=True)
def example(monkeypatch):
    """Import a module of the examples."""
    for folder in (*FOLDERS.values(), "smollm2_controls", "tables"):
        monkeypatch.syspath_prepend(EXAMPLES / folder)
    return importlib.import_module


@pytest.mark.parametrize("name", ["Programming", "Questions", "Tables"])
def test_whatever_a_model_writes_the_judge_of_an_example_says_something_sound(name, example, tmp_path):
    class Contract(EnvironmentContract):
        environment = getattr(example({"Questions": "sql_questions"}.get(name, name.lower())), name)

        def problems(self, made: Environment) -> Iterator[Problem]:
            yield made.problems().evaluation(0)  # all are judged by the same lines

    Contract().test_judging_gives_what_can_be_used_whatever_a_model_wrote(tmp_path)


@pytest.mark.parametrize(("name", "folder"), FOLDERS.items())
def test_an_example_has_at_most_forty_lines(name, folder):
    assert sum(bool(line.strip()) for line in (EXAMPLES / folder / f"{name}.py").read_text().splitlines()) <= 40


def test_random_rewards_are_a_coin_that_falls_the_same_each_time_and_leave_success(example):
    tasks = example("random_rewards").RandomRewards(seed=0, base=EXAMPLES, files=("word_problems/amounts.jsonl",))
    problem = tasks.problems().problem(0, 0)
    given = [Transcript((f"{n}: <answer>\\boxed{{{problem.answer}}}</answer>",)) for n in range(400)]
    judged = [tasks.judge_at_once(problem, transcript) for transcript in given]
    assert judged == [tasks.judge_at_once(problem, transcript) for transcript in given]
    assert all(judgement.success for judgement in judged)
    assert 150 < sum(judgement.reward for judgement in judged) < 250


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [("3 + 4 = 7.", "7", True), ("It is 1,200 apples", "1200", True), ("-3.50", "-3.5", True), ("7 of 9", "7", False)],
)
def test_without_tools_the_last_number_is_the_answer(example, text, answer, right):
    tasks = example("without_tools").Direct(seed=0, base=EXAMPLES)
    judgement = tasks.judge_at_once(Problem("p", "How many?", answer), Transcript((text,)))
    assert judgement.success == right


def test_what_a_statement_changes_lasts_as_long_as_its_rollout(example):
    sql = example("sql_questions").sql

    def ask(query: str, state: bytes) -> ToolOutput:
        return sql.call_here({"query": query}, state)

    count = "SELECT count(*) FROM orders WHERE customer = 'Ada'"
    gone = ask("DELETE FROM orders WHERE customer = 'Ada'", b"")
    assert ask(count, b"").value == "16"
    assert ask(count, gone.state or b"").value == "0"


def test_the_questions_can_be_answered_by_the_tool(example):
    module = example("sql_questions")
    tasks = module.Questions(seed=0, base=EXAMPLES).problems()
    for number in range(tasks.evaluation_count):
        problem = tasks.evaluation(number)
        one, _, rest = problem.id.partition(", ")
        other, _, item = rest.partition(": ")
        query = "SELECT (SELECT amount FROM orders WHERE item = '{0}' AND customer = '{1}') - (SELECT amount FROM orders WHERE item = '{0}' AND customer = '{2}')"
        assert module.sql.call_here({"query": query.format(item, one, other)}, b"").value == problem.answer


def test_questions_about_tables_are_answered_by_their_queries_and_held_out_ones_are_about_others(example):
    module = example("tables")
    tasks = module.Tables(seed=0, base=EXAMPLES).problems()
    held_out = [tasks.evaluation(number) for number in range(120)]
    trained = [tasks.problem(2, number) for number in range(600)]
    assert {p.payload["subject"] for p in held_out} == {p.payload["subject"] for p in trained} == set(module.KINDS)
    for what in ("name", "columns"):
        new, known = ({str(p.payload[what]) for p in problems} for problems in (held_out, trained))
        assert not new & known
    wordings = [wording for _, asked in module.KINDS.values() for wording in asked]
    assert len(set(wordings)) == len(wordings)
    for problem in held_out:
        answer = Transcript((f"<answer>\\boxed{{{problem.answer}}}</answer>",))
        assert module.Tables(seed=0, base=EXAMPLES).judge_at_once(problem, answer).success
    for shown in islice(tasks.demonstrations(random.Random(0)), 20):
        [call] = parse_calls(shown.messages[1]["content"])
        assert shown.problem.payload["subject"] in module.SHOWN
        assert module.sql.call_here(call.arguments, b"", shown.problem.payload).value == shown.problem.answer


def test_a_query_that_never_ends_is_stopped(example):
    module = example("tables")
    table = module.Tables(seed=0, base=EXAMPLES).problems().evaluation(0).payload
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        module.sql.call_here({"query": endless}, b"", table)


def test_hidden_calls_judge_a_program(example):
    from actors.sandbox.owner.client import Sandbox

    programming = example("programming").Programming(seed=0, base=EXAMPLES)
    problem = programming.problems().evaluation(0)
    assert problem.id == "even: the sum"
    answers = {
        "right": "sum(n for n in x if n % 2 == 0)",
        "right once or not at all": problem.payload["tests"][0][1],
        "wrong": "None",
        "raises": "1/0",
        "ends": "__import__('os')._exit(0)",
    }

    async def main(sandbox: Sandbox) -> list[Judgement]:
        class Context:
            async def execute(self, code: str) -> ToolOutput:
                return await sandbox.execute(code)

        async def judged(text: str) -> Judgement:
            return await programming.judge(problem, Transcript((text,)), Context())

        programs = [f"```python\ndef solve(x):\n    return {answer}\n```" for answer in answers.values()]
        return [await judged(program) for program in [*programs, "I do not know."]]

    right, once, *rest = run_with(Sandbox(), main)
    assert (right.reward, right.success) == (1.0, True)
    assert (0.25 <= once.reward < 1, once.success) == (True, False)
    assert [(judgement.reward, judgement.success) for judgement in rest] == [(0.0, False)] * 4


def games() -> list[Problem]:
    source = resolve("environment", "doors:Doors")(seed=0, base=EXAMPLES).problems()
    return [source.evaluation(number) for number in range(GAMES)]


def test_no_player_who_ignores_the_replies_wins_half_of_the_games():
    """He sees the first room; what he does in the others can be any plan, but the same whatever they show."""
    wins = dict.fromkeys(product(("red", "blue", "green"), repeat=2), 0)
    for game in games():
        safe = [door for _, door, _ in game.payload["rooms"]]
        wins[tuple(safe[1:])] += 1  # the first room is passed by everybody
    assert sum(wins.values()) == GAMES
    assert max(wins.values()) / GAMES < 0.2


def test_the_game_is_won_by_who_reads_the_signs_and_ended_by_a_wrong_door():
    doors = resolve("environment", "doors:Doors")(seed=0, base=EXAMPLES)
    for game in games()[:50]:
        rooms = game.payload["rooms"]
        for passed, (seen, safe, _) in enumerate(rooms):
            words = seen.replace(",", "").replace(".", "").split()
            named = words[-1]
            assert safe == (named if words[-2] == "take" else next(door for door in words[1:3] if door != named))
            turns = tuple(door for _, door, _ in rooms[: passed + 1])
            answer = trio.run(doors.observe, game, Transcript(turns), b"", None)
            assert (answer is None) is (passed == 2)
            if answer is not None:
                assert answer.messages[0]["content"] == rooms[passed + 1][0]
            wrong = (*turns[:-1], "window")
            assert trio.run(doors.observe, game, Transcript(wrong), b"", None) is None
            assert not doors.judge_at_once(game, Transcript(wrong)).success
        assert doors.judge_at_once(game, Transcript(turns)).success


def test_most_players_that_are_shown_overlook_the_word_avoid():
    source = resolve("environment", "doors:Doors")(seed=0, base=EXAMPLES).problems()
    shown = list(islice(source.demonstrations(random.Random(0)), 500))
    avoided = [pair for each in shown for pair in zip(each.messages[::2], each.messages[1::2], strict=True)]
    obeyed = [
        said["content"] not in seen["content"].split("avoid")[1] for seen, said in avoided if "avoid" in seen["content"]
    ]
    assert 0.28 < sum(obeyed) / len(obeyed) < 0.42


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed_tasks", *FOLDERS])
def test_an_example_runs(name, tmp_path):
    changes = [f"run.directory={tmp_path / 'run'}", "stages.0.steps=1", "stages.1.problems=4"]
    if name in {"doors", "expressions"}:
        rl, evaluations = (2, (1, 3)) if name == "doors" else (1, (2,))
        changes = [f"run.directory={tmp_path / 'run'}", "stages.0.steps=2", f"stages.{rl}.steps=1"]
        changes += [f"stages.{number}.problems=4" for number in evaluations]
        changes += ["model.initialise.hidden_size=32", "model.initialise.layers=1", "algorithm.groups_per_step=2"]
        changes += ["algorithm.samples=4", "algorithm.keep=2", "algorithm.max_staleness=4"]
    command = [sys.executable, "-P", "-m", "actors.cli", "run", name, *overrides(*changes)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    balanced(tmp_path / "run", steps=1)


# The run in one file is short enough to be read, learns, and trains on what is at most as stale as it says.

STEP = re.compile(r"(?m)^step (\d+): reward \d\.\d\d, \d+ trained, (\d+) behind, ")
SUCCESS = re.compile(r"(?m)^success on held-out problems (?:before|after): ([\d.]+)%")


def test_the_file_is_read_in_ten_minutes():
    assert len(Path(one_file.__file__).read_text().splitlines()) <= 250


def test_the_learner_trains_on_a_batch_while_the_next_one_is_written(tmp_path, monkeypatch, capsys):
    for name, value in {"FORMAT_STEPS": 1, "STEPS": 4, "GROUPS": 1, "SAMPLES": 2, "HELD_OUT": 1}.items():
        monkeypatch.setattr(one_file, name, value)
    monkeypatch.setattr(one_file, "selected", lambda group, rng: list(zip(group, (1.0, -1.0), strict=True)))
    trio.run(one_file.main, tmp_path)
    assert STEP.findall(capsys.readouterr().out) == [("1", "0"), ("2", "1"), ("3", "1"), ("4", "1")]


@pytest.mark.slow
def test_success_on_held_out_problems_rises(record_property):
    command = [sys.executable, "-m", "examples.one_file"]
    done = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = map(float, SUCCESS.findall(done.stdout))
    record_property("success", (before, after))
    assert before < 30
    assert after > before + 35
    behind = [int(steps) for _, steps in STEP.findall(done.stdout)]
    assert len(behind) == one_file.STEPS
    assert max(behind) == one_file.MAX_STALENESS
