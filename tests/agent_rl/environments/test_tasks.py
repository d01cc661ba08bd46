"""Task sources: order, filters, files of either form, and errors that say where and what to do."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import os
import random
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from agent_rl.config.plugins import ContractError
from agent_rl.config.selection import TaskFilter
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.base import Demonstration, Environment, TaskError
from agent_rl.environments.load import mixed_tasks
from agent_rl.environments.maths import Maths
from agent_rl.environments.tasks import ListedTasks, MixedTasks, Restriction, mixed, restricted
from agent_rl.messages import Judgement, Problem
from agent_rl_contract import EnvironmentContract
from examples.quickstart.arithmetic import Arithmetic


def write_lines(path, *rows):
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )


def rows(count, *, first=0):
    return [{"problem": f"problem {number}", "answer": number} for number in range(first, first + count)]


def load(base, *, seed=0, filters=None, **settings):
    source = Maths(seed=seed, base=base, **settings).problems()
    return restricted(source, {stage: Restriction(wanted, base) for stage, wanted in (filters or {}).items()})


@pytest.fixture
def ten(tmp_path):
    write_lines(tmp_path / "ten.jsonl", *rows(10))
    return tmp_path


class Numbers(Environment):
    """Its own source; problems are as long as their number is large."""

    evaluation_count = None

    def __init__(self, *, seed, base, start: int = 0, held_out: int | None = None, shown: bool = True):
        self.start = start + seed
        self.evaluation_count = held_out
        self.shown = shown

    def problems(self):
        return self

    def prompt(self, problem):
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem, transcript):
        return Judgement(1.0, True)

    def problem(self, stage, number):
        return Problem(id=f"{number % 7}", text="x" * (self.start + number % 7), answer="1")

    def evaluation(self, number):
        return Problem(id=f"held-out {number}", text="x" * 100, answer="1")

    def demonstrations(self, rng):
        if not self.shown:
            raise TaskError("none")
        return (
            Demonstration(self.problem(0, number), ({"role": "user", "content": "?"},)) for number in itertools.count()
        )


# Files ---------------------------------------------------------------------------------------------------------------


def test_every_pass_is_a_permutation_that_seed_stage_and_number_decide_whatever_was_asked_before(ten):
    numbers = list(range(30))
    expected = [load(ten, files=("ten.jsonl",), seed=5).problem(1, number) for number in numbers]
    passes = [[problem.text for problem in expected[start : start + 10]] for start in (0, 10, 20)]
    assert [sorted(each) for each in passes] == [[f"problem {number}" for number in range(10)]] * 3
    assert len(set(map(tuple, passes))) == 3
    source = load(ten, files=("ten.jsonl",), seed=5)
    seen = {number: source.problem(1, number) for number in random.Random(1).sample(numbers, len(numbers))}
    assert [seen[number] for number in numbers] == expected
    for stage, seed in ((1, 6), (2, 5)):
        assert [load(ten, files=("ten.jsonl",), seed=seed).problem(stage, number) for number in numbers] != expected


def test_globs_gzip_and_several_files_are_read_in_order(tmp_path):
    (tmp_path / "part").mkdir()
    write_lines(tmp_path / "part" / "b.jsonl", *rows(2, first=2))
    with gzip.open(tmp_path / "part" / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps(row) for row in rows(2)))
    source = load(tmp_path, files=("part/*.jsonl*",))
    assert {source.problem(0, number).id for number in range(4)} == {
        "part/a.jsonl.gz:1",
        "part/a.jsonl.gz:2",
        "part/b.jsonl:1",
        "part/b.jsonl:2",
    }


def test_weights_mix_files_whatever_their_size_and_each_file_is_passed_through_whole(tmp_path):
    write_lines(tmp_path / "few.jsonl", *rows(3))
    write_lines(tmp_path / "many.jsonl", *rows(50, first=100))
    source = load(tmp_path, files=("few.jsonl", "many.jsonl"), weights=(1, 3))
    drawn = [int(source.problem(0, number).answer) for number in range(200)]
    few = [answer for answer in drawn if answer < 100]
    many = [answer for answer in drawn if answer >= 100]
    assert (len(few), len(many)) == (50, 150)
    assert all(sorted(few[start : start + 3]) == [0, 1, 2] for start in range(0, 48, 3))
    assert all(sorted(many[start : start + 50]) == list(range(100, 150)) for start in (0, 50, 100))
    assert many[:50] != many[50:100]
    asked_backwards = load(tmp_path, files=("few.jsonl", "many.jsonl"), weights=(1, 3))
    assert [int(asked_backwards.problem(0, number).answer) for number in reversed(range(200))] == drawn[::-1]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(0, 500))
def test_a_mixture_counts_each_part_without_gaps_and_near_its_share(weights, count):
    shares = [Fraction(weight, 7) for weight in weights]
    drawn = [mixed(number, shares) for number in range(count)]
    for part, share in enumerate(shares):
        places = [place for drawn_part, place in drawn if drawn_part == part]
        assert places == list(range(len(places)))
        assert abs(len(places) - count * share / sum(shares)) <= part + 1


def test_a_filter_may_leave_out_a_file(tmp_path):
    write_lines(tmp_path / "short.jsonl", {"problem": "x", "answer": 1})
    write_lines(tmp_path / "long.jsonl", {"problem": "x" * 50, "answer": 1})
    filters = {0: TaskFilter(max_problem_chars=10)}
    assert load(tmp_path, files=("*.jsonl",), filters=filters).problem(0, 3).text == "x"
    with pytest.raises(TaskError, match=r"none of 1 problems of the file long\.jsonl passes the filter"):
        load(tmp_path, files=("short.jsonl", "long.jsonl"), weights=(1, 1), filters=filters)


@pytest.mark.parametrize(
    ("settings", "allowed", "message"),
    [
        (
            {"files": ("ten.jsonl", "held.jsonl"), "weights": (1,)},
            {},
            "`weights` holds 1 numbers for 2 entries of `fil",
        ),
        ({}, {"max_problem_chars": 3}, r"stage 1: none of 10 problems passes the filter \(max_problem_chars = 3\)"),
        ({}, {"ids": "gone.txt"}, "cannot read"),
        ({"evaluation_files": ("held.jsonl",)}, {}, r"held\.jsonl:1 has the text of training problem ten\.jsonl:10"),
        ({"evaluation_files": ("ten.jsonl",)}, {}, r"ten\.jsonl is named a second time"),
    ],
)
def test_settings_that_cannot_serve_are_refused(ten, settings, allowed, message):
    write_lines(ten / "held.jsonl", *rows(2, first=9))
    with pytest.raises(TaskError, match=message):
        load(ten, **{"files": ("ten.jsonl",), **settings}, filters={1: TaskFilter(**allowed)} if allowed else None)


def test_chinese_latex_and_long_texts_are_read_as_they_are(tmp_path):
    text = "設 $\\frac{a}{b}$ — “好” 😀\n" * 200
    write_lines(tmp_path / "a.jsonl", {"problem": text, "answer": "\\frac{1}{2}"})
    found = load(tmp_path, files=("a.jsonl",)).problem(0, 0)
    assert (found.id, found.text, found.answer) == ("a.jsonl:1", text, "\\frac{1}{2}")


OF_VERL = {"role": "user", "content": "What is 6 * 7?"}
BRIEF = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("prompt", "system"),
    [(OF_VERL["content"], {}), ([OF_VERL], {}), ([BRIEF, OF_VERL], {"system": "Be brief."})],
)
def test_verl_rows_give_their_messages_and_the_ground_truth(tmp_path, prompt, system):
    write_lines(tmp_path / "verl.jsonl", {"prompt": prompt, "reward_model": {"style": "rule", "ground_truth": "42"}})
    found = load(tmp_path, files=("verl.jsonl",)).problem(0, 0)
    assert found == Problem("verl.jsonl:1", "What is 6 * 7?", "42", payload={"file": "verl.jsonl"} | system)
    for put in ("plain", "template", "rstar2"):
        first, *rest = Maths(seed=0, base=tmp_path, prompt=put, evaluation_files=("verl.jsonl",)).prompt(found)
        if put == "rstar2":
            assert "Be brief." not in first["content"]  # `check` says so
        else:
            assert [first, *rest] == [*[BRIEF] * len(system), OF_VERL]


def test_parquet_reads_like_jsonl(tmp_path):
    table = pa.table(
        {
            "id": ["a", "b"],
            "prompt": [[{"role": "user", "content": "one?"}], [{"role": "user", "content": "two?"}]],
            "reward_model": [{"ground_truth": "1"}, {"ground_truth": "2"}],
        }
    )
    parquet.write_table(table, tmp_path / "verl.parquet")
    source = load(tmp_path, files=("verl.parquet",))
    found = [(problem.id, problem.text, problem.answer) for problem in (source.problem(0, 0), source.problem(0, 1))]
    assert sorted(found) == [("a", "one?", "1"), ("b", "two?", "2")]


def test_a_whole_float_is_an_integer_answer(tmp_path):
    write_lines(tmp_path / "a.jsonl", {"problem": "?", "answer": 408.0}, {"problem": "??", "answer": 0.5})
    source = load(tmp_path, files=("a.jsonl",))
    assert {source.problem(0, 0).answer, source.problem(0, 1).answer} == {"408", "0.5"}


ASKED, ANSWERED = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
NO_TEXT = "is it UTF-8 text, or gzip"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem": "a", "answer": ', r"not JSON .* each line must be one JSON object"),
        ("[1, 2]", r"a JSON list; each line must be one JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ({"problem": "a"}, r"`answer` \(or `reward_model.ground_truth`\) is None; it must be text or a number"),
        ({"problem": "a", "answer": ""}, r"`answer` .* is empty; it must be text"),
        ({"problem": "a", "answer": True}, r"`answer` .* is True"),
        ({"answer": "1", "text": "a"}, r"neither `problem` nor `prompt`; columns are \['answer', 'text'\]"),
        ('{"problem": "a\\ud83d", "answer": "1"}', r"the problem holds '\\ud83d', half of a surrogate pair"),
        ({"problem": "  ", "answer": "1"}, r"the problem is '  '; it must be text"),
        ({"prompt": [ASKED, ANSWERED], "answer": "1"}, r"`prompt` has messages of roles \['user', 'assistant'\]"),
        ({"prompt": [{"role": "user"}], "answer": "1"}, r"the content of `prompt`'s user message is None"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, line, message):
    write_lines(tmp_path / "bad.jsonl", *rows(1), "", line)
    with pytest.raises(TaskError, match=rf"bad\.jsonl:3: .*{message}"):
        load(tmp_path, files=("bad.jsonl",))


def test_files_that_cannot_serve_are_named(tmp_path):
    write_lines(tmp_path / "held.jsonl", {"id": "a", "problem": "1?", "answer": "1"})
    write_lines(tmp_path / "same_id.jsonl", *rows(1), {"id": "a", "problem": "2?", "answer": "2"})
    write_lines(tmp_path / "empty.jsonl")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "plain.jsonl.gz").write_text("not gzip")
    packed = gzip.compress(b'{"problem": "1 + 1", "answer": "2"}\n' * 100)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "flipped.jsonl.gz").write_bytes(packed[:10] + b"\xff" + packed[11:])
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    parquet.write_table(pa.table({"problem": ["1?", "2?"], "answer": ["1", None]}), tmp_path / "unanswered.parquet")
    os.mkfifo(tmp_path / "endless.jsonl")
    for name, message in {
        "nowhere.jsonl": "no file matches .*nowhere.jsonl",
        "*.none": "no file matches",
        "empty.jsonl": "holds no tasks.*fill it",
        "notes.txt": "task files end in one of .jsonl",
        "plain.jsonl.gz": NO_TEXT,
        "cut.jsonl.gz": NO_TEXT,
        "flipped.jsonl.gz": NO_TEXT,
        "binary.jsonl": NO_TEXT,
        "bad.parquet": "cannot be read as parquet.*write it again, or convert it to JSONL",
        "unanswered.parquet": "unanswered.parquet:2: `answer`",
        "endless.jsonl": "is no regular file",
        "held.jsonl": "held.jsonl is named a second time",
        "same_id.jsonl": "same_id.jsonl:2 has the id 'a', and held.jsonl:1 has it too.*give each problem an id of its own",
    }.items():
        with pytest.raises(TaskError, match=message) as caught:
            load(tmp_path, files=("held.jsonl", name))
        assert name in str(caught.value)
        assert caught.value.key in {("files", 1), ()}


# Held-out problems ---------------------------------------------------------------------------------------------------


def test_evaluation_files_are_held_out_problems_in_file_order(ten):
    write_lines(ten / "held.jsonl", *rows(3, first=50))
    source = load(ten, files=("ten.jsonl",), evaluation_files=("held.jsonl",))
    assert source.evaluation_count == 3
    assert [source.evaluation(number).answer for number in range(3)] == ["50", "51", "52"]
    with pytest.raises(TaskError, match="held-out problem 3 was asked for, and there are 3"):
        source.evaluation(3)
    with pytest.raises(TaskError, match="held-out problem 0 was asked for, and there are 0"):
        load(ten, files=("ten.jsonl",)).evaluation(0)


def test_files_have_no_demonstrations(ten):
    with pytest.raises(TaskError, match="give the sft stage files of its own"):
        load(ten, files=("ten.jsonl",)).demonstrations(random.Random(0))


# Filters -------------------------------------------------------------------------------------------------------------


def test_a_stage_draws_from_what_its_id_list_and_length_limit_allow(ten):
    write_lines(ten / "long.jsonl", {"id": "long", "problem": "problem " * 9, "answer": 1})
    (ten / "kept.txt").write_text("ten.jsonl:3\n\nten.jsonl:7\nlong\n")
    filters = {2: TaskFilter(ids="kept.txt", max_problem_chars=20)}
    source = load(ten, files=("ten.jsonl", "long.jsonl"), filters=filters)
    assert {source.problem(2, number).id for number in range(50)} == {"ten.jsonl:3", "ten.jsonl:7"}
    assert len({source.problem(1, number).id for number in range(11)}) == 11


def entry(**changes):
    return EnvironmentEntry.model_validate({"class": f"{__name__}:Numbers", **changes})


def mixture(*entries, seed=0):
    return mixed_tasks(entries, seed=seed, base=Path())


def test_a_source_without_end_is_filtered_by_drawing_again():
    numbers = Numbers(seed=0, base=Path(), start=2)
    filters = {1: TaskFilter(max_problem_chars=4), 2: TaskFilter(max_problem_chars=1), 3: TaskFilter()}
    source = restricted(numbers, {stage: Restriction(wanted, Path()) for stage, wanted in filters.items()})
    assert {len(source.problem(1, number).text) for number in range(40)} == {2, 3, 4}
    assert {len(source.problem(0, number).text) for number in range(40)} == set(range(2, 9))
    assert source.problem(3, 5) == numbers.problem(3, 5)
    assert source.problem(1, 9) == source.problem(1, 9)
    assert source.evaluation(4).id == "held-out 4", "held-out problems are not filtered"
    with pytest.raises(TaskError, match="stage 2: none of 1000 problems drawn passes"):
        source.problem(2, 0)


# Several environments -------------------------------------------------------------------------------------------------


def test_problems_of_several_environments_come_by_weight_and_say_whose_they_are():
    source = mixture(entry(name="often", weight=3), entry(name="seldom", settings={"start": 9}))
    found = [source.problem(0, number) for number in range(400)]
    assert [problem.environment for problem in found].count("often") == 300
    of_one = [problem for problem in found if problem.environment == "seldom"]
    alone = mixture(entry(name="seldom", settings={"start": 9}))
    assert of_one == [alone.problem(0, number) for number in range(100)]
    assert [source.problem(0, number) for number in reversed(range(400))] == found[::-1]


def test_held_out_problems_take_turns_by_weight_until_a_source_has_no_more():
    few = entry(name="few", weight=2, settings={"held_out": 3})
    source = mixture(few, entry(name="many", settings={"held_out": 6}))
    names = [source.evaluation(number).environment for number in range(9)]
    assert names == ["few", "few", "many", "few", *["many"] * 5]
    assert source.evaluation_count == 9
    with pytest.raises(TaskError, match="held-out problem 9 was asked for, and there are 9"):
        source.evaluation(9)
    assert mixture(few, entry()).evaluation_count is None
    again = mixture(few, entry(name="many", settings={"held_out": 6}))
    assert [again.evaluation(number).environment for number in reversed(range(9))] == names[::-1]


def test_demonstrations_are_of_those_environments_that_have_some():
    silent = entry(name="silent", weight=5, settings={"shown": False})
    shown = mixture(silent, entry(name="a", weight=2), entry(name="b")).demonstrations(random.Random(0))
    names = [demonstration.problem.environment for demonstration in itertools.islice(shown, 30)]
    assert (names.count("a"), names.count("b")) == (20, 10)
    with pytest.raises(TaskError, match="none"):
        mixture(silent).demonstrations(random.Random(0))


def test_lists_take_demonstrations():
    problem = Problem("a", "?")
    source = ListedTasks([[problem]], seed=0, demonstrations=[Demonstration(problem, ())])
    assert next(source.demonstrations(random.Random(0))).problem == problem


def listed(name, *counts, weights=(), first=0):
    """An environment's list of problems, in parts."""
    numbers = itertools.count(first)
    parts = [[Problem(f"{name}{n}", f"{name} {n}?") for n in itertools.islice(numbers, count)] for count in counts]
    return ListedTasks(parts, seed=0, weights=weights)


def test_a_select_stage_samples_each_problem_that_its_filter_allows_once():
    source = MixedTasks({"a": listed("a", 3, 2, weights=(9, 1)), "b": listed("b", 12)}, [Fraction(1), Fraction(5)])
    assert [(each.environment, each.id) for each in source.listed(1)] == [
        *(("a", f"a{n}") for n in range(5)),
        *(("b", f"b{n}") for n in range(12)),
    ]
    restricted(source.sources["b"], {2: Restriction(TaskFilter(max_problem_chars=4), Path())})
    assert len(source.listed(2)) == 15
    with pytest.raises(TaskError, match=r"environment 'd' draws its problems without end, .* \(ListedTasks\), or"):
        MixedTasks({"d": Numbers(seed=0, base=Path())}, [Fraction(1)]).listed(0)
    with pytest.raises(TaskError, match="there are no training problems, and a select stage samples them"):
        MixedTasks({"a": listed("a", 0)}, [Fraction(1)]).listed(0)


def test_a_stage_draws_from_what_was_kept_and_sources_without_any_leave_their_share_to_the_others():
    source = MixedTasks(
        {"a": listed("a", 3, 2, weights=(9, 1)), "b": listed("b", 12), "c": listed("c", 4)}, [Fraction(1)] * 3
    )
    kept = {"a": frozenset({"a3", "a4"}), "b": frozenset({"b0", "b7", "c1"})}
    for _ in range(2):  # the filter may answer several times
        source.keep(2, kept)
        found = [source.problem(2, number) for number in range(8)]
        assert [problem.environment for problem in found] == ["b", "a"] * 4
        assert {problem.id for problem in found} == {"a3", "a4", "b0", "b7"}
        assert [each.id for each in source.listed(2)] == ["a3", "a4", "b0", "b7"]
    assert len({source.problem(1, number).id for number in range(60)}) == 21, "other stages draw from all"
    restricted(source.sources["b"], {3: Restriction(TaskFilter(max_problem_chars=4), Path())})
    with pytest.raises(TaskError, match="stage 3: its filter passes none of the problems that the select stage"):
        source.keep(3, {"b": frozenset({"b11"})})


# Making them ----------------------------------------------------------------------------------------------------------


def fails(_):
    raise ZeroDivisionError("in problems")


async def judge(self, problem, transcript):
    return Judgement(1.0, True)


async def awaited(self, problem, transcript):
    return Judgement(1.0, True)


@functools.wraps(Environment.judge)
def wrapped(self, *given):
    return Environment.judge(self, *given)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The module that an entry names: with this class, and what a test adds."""
    module = SimpleNamespace(x=1, Numbers=Numbers)
    monkeypatch.setitem(sys.modules, __name__, module)
    return module


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        ("problems", fails, "fails with ZeroDivisionError: in problems"),
        ("problems", lambda _: None, "returned None, which has no problem, evaluation, "),
        ("__init__", lambda self, seed: None, "fails with TypeError: "),
        (
            "judge",
            lambda self, problem, transcript, context: None,
            "is no asynchronous function; write it as `async def",
        ),
        ("judge", judge, "cannot be called with problem, transcript, context: too many positional"),
        ("judge_at_once", awaited, "is asynchronous, and it is not awaited; write it as `def judge_at"),
    ],
)
def test_a_method_that_cannot_serve_is_named_with_its_place(importable, name, method, said):
    importable.Broken = type("Broken", (Numbers,), {name: method})
    with pytest.raises((TaskError, ContractError)) as caught:
        mixture(entry(**{"name": "e", "class": f"{__name__}:Broken"}))
    assert said in str(caught.value)
    assert f"{'the constructor' if name == '__init__' else name} " in str(caught.value)
    assert "(test_tasks.py, line " in str(caught.value)


def test_something_judges_and_a_decorated_method_is_taken_for_what_it_wraps(importable):
    importable.Broken = type("Broken", (Numbers,), {"judge_at_once": Environment.judge_at_once})
    broken = entry(**{"name": "e", "class": f"{__name__}:Broken"})
    with pytest.raises(TaskError, match="environment 'e': nothing judges its rollouts; write `def judge_at_once"):
        mixture(broken)
    importable.Broken = type("Wrapped", (Numbers,), {"judge": wrapped})
    mixture(broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"stop": 1}}, "environment 'e': settings.stop: Extra inputs are not permitted"),
        ({"settings": {"start": "far"}}, "environment 'e': settings.start: Input should be a valid integer"),
        ({"class": "maths"}, "environment 'e': no file of problems is named"),
        ({"class": f"{__name__}:x"}, "x is no environment: it has no problems, prompt"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(changes, message):
    with pytest.raises((TaskError, ContractError), match=message):
        mixture(entry(**{"name": "e", **changes}))


# The built-in environments keep what every environment promises ------------------------------------------------------

WORD_PROBLEMS = Path(__file__).parents[3] / "examples" / "word_problems"


class TestArithmetic(EnvironmentContract):
    environment = Arithmetic


class TestMaths(EnvironmentContract):
    environment = Maths
    settings: ClassVar[dict[str, Any]] = {
        "files": (str(WORD_PROBLEMS / "amounts.jsonl"),),
        "evaluation_files": (str(WORD_PROBLEMS / "held_out.jsonl"),),
        "prompt": "rstar2",
    }
