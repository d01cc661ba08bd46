"""The example environments: short, right in what they judge, and run for real."""

import importlib
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from agent_rl.environments.base import Environment, ToolOutput
from agent_rl.messages import Judgement, Problem, Transcript
from agent_rl.records.audit import audit
from agent_rl.rollout.parsing import parse_calls
from agent_rl_contract import EnvironmentContract
from tests.actors.sandbox.running import run_with

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ENVIRONMENTS = ("sql_questions", "programming")
TOPOLOGIES = ("mixed_tasks", *ENVIRONMENTS)


@pytest.fixture
def example(monkeypatch):
    for folder in (*ENVIRONMENTS, "smollm2_controls", "tables"):
        monkeypatch.syspath_prepend(EXAMPLES / folder)
    return importlib.import_module


@pytest.mark.parametrize("name", ["Programming", "Questions", "Tables"])
def test_whatever_a_model_writes_the_judge_of_an_example_says_something_sound(name, example, tmp_path):
    class Contract(EnvironmentContract):
        environment = getattr(example({"Questions": "sql_questions"}.get(name, name.lower())), name)

        def problems(self, made: Environment) -> Iterator[Problem]:
            yield made.problems().evaluation(0)  # all are judged by the same lines

    Contract().test_judging_gives_what_can_be_used_whatever_a_model_wrote(tmp_path)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_example_has_at_most_forty_lines(name):
    assert sum(bool(line.strip()) for line in (EXAMPLES / name / f"{name}.py").read_text().splitlines()) <= 40


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


@pytest.mark.slow
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_an_example_runs(name, tmp_path):
    command = [sys.executable, "-P", "-m", "actors.cli", "run", name]
    for setting in (f"run.directory={tmp_path / 'run'}", "stages.0.steps=1", "stages.1.problems=4"):
        command += ["--set", setting]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    balance = audit(tmp_path / "run")
    assert balance.balanced, balance.lines()
    assert (balance.steps, balance.open) == (1, 0)
