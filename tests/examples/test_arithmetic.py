"""The quickstart's problems are right, its demonstrations wrong in the promised shares, and its splits apart."""

import contextlib
import io
import itertools
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.base import TaskError
from agent_rl.environments.load import mixed_tasks
from benchmarks.bench_learning import shared_problems
from examples.quickstart.arithmetic import HELD_OUT_SHARE, TEMPLATES, ArithmeticTasks, Operations, split_of

CALL = re.compile(r"<tool_call>(.*)</tool_call>")
RESPONSE = re.compile(r"<tool_response>(.*)</tool_response>")
ANSWER = re.compile(r"<answer>\\boxed\{(.*)\}</answer>")
OPERATORS = ("+", "-", "*", "//", "%")


def demonstrations(count, *, seed=0, **settings):
    return list(itertools.islice(ArithmeticTasks(seed, **settings).demonstrations(random.Random(seed)), count))


def run_python(code):
    """What Python prints, or the last line of its traceback."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "<code>", "exec"), {})
    except SyntaxError as error:
        return f"SyntaxError: {error.msg}"
    return out.getvalue().rstrip("\n")


def template_of(problem):
    return next(template for template in TEMPLATES if template.name == problem.id.partition(":")[0])


def operands_of(problem):
    return tuple(int(part) for part in problem.id.partition(":")[2].split("+"))


def codes(demonstration):
    turns = (CALL.search(message["content"]) for message in demonstration.messages)
    return [json.loads(turn[1])["arguments"]["code"] for turn in turns if turn]


@given(
    st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=2),
    st.booleans(),
    st.lists(st.integers(1, 999), min_size=3, max_size=3),
)
def test_values_are_what_python_makes_of_the_code(operators, grouped, numbers):
    operands = tuple(numbers[: len(operators) + 1])
    operations = Operations(tuple(operators), grouped=grouped)
    assert operations.value(operands) == eval(operations.code(operands))


def test_every_template_occurs_with_its_operands_in_the_text_and_the_right_answer():
    source = ArithmeticTasks(3)
    seen = Counter()
    for number in range(400):
        problem = source.problem(1, number)
        template, operands = template_of(problem), operands_of(problem)
        seen[template.name] += 1
        assert tuple(int(text) for text in re.findall(r"\d+", problem.text)) == operands
        assert problem.answer == str(eval(template.right.code(operands)))
        assert all(12 <= operand <= 999 for operand in operands)
        assert int(problem.answer) >= 0
    assert set(seen) == {template.name for template in TEMPLATES}
    assert min(seen.values()) > 20


def test_problems_are_a_function_of_seed_stage_and_number():
    first, again, other = ArithmeticTasks(1), ArithmeticTasks(1), ArithmeticTasks(2)
    numbers = range(20)
    expected = [first.problem(2, number) for number in numbers]
    assert [again.problem(2, number) for number in reversed(numbers)] == expected[::-1]
    assert [first.problem(3, number) for number in numbers] != expected
    assert [other.problem(2, number) for number in numbers] != expected
    assert [first.evaluation(number) for number in numbers] == [other.evaluation(number) for number in numbers]
    assert first.evaluation_count is None


def test_no_operands_of_training_or_demonstrations_are_held_out():
    source = ArithmeticTasks(0)
    held_out = [source.evaluation(number).id for number in range(1000)]
    trained = [source.problem(stage, number).id for stage in (1, 2) for number in range(4000)]
    shown = [demonstration.problem.id for demonstration in demonstrations(4000)]
    assert shared_problems(trained + shown, held_out) == 0
    assert len(set(held_out)) > 990
    assert set(Counter(name.partition(":")[0] for name in held_out).values()) == {125}, "templates take turns"


@given(st.permutations([17, 230, 555]))
def test_a_split_does_not_depend_on_the_order_of_operands(operands):
    assert split_of(tuple(operands)) == split_of((17, 230, 555))


def test_about_the_stated_share_is_held_out():
    share = sum(split_of((a, b)) == "held_out" for a in range(100, 200) for b in range(200, 300)) / 10_000
    assert share == pytest.approx(HELD_OUT_SHARE, abs=0.01)


def test_a_demonstration_is_a_conversation_whose_responses_are_pythons_own():
    for demonstration in demonstrations(300):
        roles = [message["role"] for message in demonstration.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert demonstration.messages[0]["content"] == demonstration.problem.text
        assert ANSWER.fullmatch(demonstration.messages[-1]["content"])
        calls, responses = demonstration.messages[1:-1:2], demonstration.messages[2::2]
        assert 1 <= len(calls) == len(responses) <= 3
        for call, response in zip(calls, responses, strict=True):
            request = json.loads(CALL.fullmatch(call["content"])[1])
            assert request["name"] == "python_code_with_standard_io"
            assert RESPONSE.fullmatch(response["content"])[1] == run_python(request["arguments"]["code"])


def test_a_result_is_the_answer_and_a_failure_leads_to_a_retry_or_a_guess():
    retried = failed = 0
    for demonstration in demonstrations(1500):
        *earlier, last = [RESPONSE.search(message["content"]) for message in demonstration.messages[2::2]]
        answer = ANSWER.search(demonstration.messages[-1]["content"])[1]
        assert all("SyntaxError" in response[1] for response in earlier)
        retried += len(earlier)
        if "SyntaxError" in last[1]:
            assert int(answer) in operands_of(demonstration.problem)
            failed += 1
        else:
            assert answer == last[1]
    assert retried > 100
    assert failed > 100


def test_demonstrations_hold_the_promised_shares_of_right_mistaken_and_broken_code():
    kinds, broken, calls = Counter(), 0, 0
    shown = demonstrations(3000)
    for demonstration in shown:
        template, operands = template_of(demonstration.problem), operands_of(demonstration.problem)
        for code in codes(demonstration):
            calls += 1
            broken += run_python(code).startswith("SyntaxError")
        code = codes(demonstration)[-1]
        if not run_python(code).startswith("SyntaxError"):
            assert re.findall(r"\d+", code) == [str(operand) for operand in operands], "operands are copied faithfully"
            expression = code.removeprefix("print(").removesuffix(")")
            right, mistaken = (o.code(operands) for o in (template.right, template.mistaken))
            kinds["right" if expression == right else "mistaken" if expression == mistaken else "random"] += 1
    total = kinds.total()
    # Random operators hit the right or the mistaken ones now and then.
    assert 0.20 <= kinds["right"] / total < 0.28
    assert 0.48 <= kinds["mistaken"] / total + 0.02 < 0.58
    assert kinds["random"] / total == pytest.approx(0.26, abs=0.04)
    assert broken / calls == pytest.approx(0.25, abs=0.03)


def test_the_misconception_is_the_most_frequent_and_gives_a_wrong_answer_in_every_template():
    by_template = defaultdict(Counter)
    for demonstration in demonstrations(3000, broken_share=0.0):
        template, operands = template_of(demonstration.problem), operands_of(demonstration.problem)
        shape = codes(demonstration)[0]
        by_template[template][shape == f"print({template.mistaken.code(operands)})"] += 1
        if template.mistaken.value(operands) == template.right.value(operands):
            by_template[template]["harmless"] += 1
    for shapes in by_template.values():
        assert shapes[True] / (shapes[True] + shapes[False]) > 0.4
        # Quotient and remainder are equal now and then.
        assert shapes["harmless"] / (shapes[True] + shapes[False]) < 0.06


def test_settings_reach_the_demonstrations():
    always_right = demonstrations(50, right_share=1.0, mistaken_share=0.0, broken_share=0.0)
    assert all(
        ANSWER.search(demonstration.messages[-1]["content"])[1] == demonstration.problem.answer
        for demonstration in always_right
    )
    never_retried = demonstrations(50, broken_share=1.0, retried_share=1.0, max_calls=2)
    assert all(len(codes(demonstration)) == 2 for demonstration in never_retried)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"right_share": 1.2}, "settings.right_share: Input should be less than or equal to 1"),
        ({"broken_share": "much"}, "settings.broken_share: Input should be a valid number"),
        ({"right_share": 0.7, "mistaken_share": 0.4}, "sum to more than 1; lower one"),
        ({"max_calls": 0}, "settings.max_calls: Input should be greater than 0"),
        ({"wrong_share": 0.5}, "settings.wrong_share: Extra inputs"),
    ],
)
def test_settings_are_validated(settings, message):
    entry = EnvironmentEntry.model_validate(
        {"class": "examples.quickstart.arithmetic:Arithmetic", "settings": settings}
    )
    with pytest.raises(TaskError, match=message):
        mixed_tasks([entry], seed=0, base=Path())
