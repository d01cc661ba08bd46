"""What each filter keeps and drops, and why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.selection import Difficulty, Solved
from agent_rl.data.filters import KEPT, ByDifficulty, Decontaminate, Deduplicate, Integers, Tally, words
from agent_rl.environments.maths.rewards import exactly_equal, is_integer
from agent_rl.messages import Problem


def problem(text: str, answer: str = "4") -> Problem:
    return Problem("id", text, answer)


@pytest.mark.parametrize("answer", ["4", "-17", "1,000", "$12$", "3.00", "007", "12.", "\\(5\\)", "10{,}000"])
def test_integers_however_written(answer: str) -> None:
    assert is_integer(answer)
    assert Integers().reason(problem("?", answer)) == KEPT


@pytest.mark.parametrize("answer", ["1/2", "3.5", "x", "\\frac{4}{2}", "3, 4", "", "12 apples", "2^3", "five"])
def test_what_is_no_integer(answer: str) -> None:
    assert Integers().reason(problem("?", answer)) == "answer_is_no_integer"


@given(st.integers(-(10**30), 10**30))
def test_every_integer_is_one_and_equals_itself(number: int) -> None:
    assert is_integer(str(number))
    assert is_integer(f"{number:,}")
    assert exactly_equal(str(number), f"{number:,}")


TEXT = "Let a and b be two positive integers whose sum is ten."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TEXT, "8_gram_in_evaluation"),
        ("Prove it. LET $a$ and\n b be   two positive integers.", "8_gram_in_evaluation"),  # eight words in a row
        ("Let a and b be two positive numbers whose sum is ten", KEPT),  # seven, and then four
        ("two positive integers", KEPT),
        ("what is 2 plus 2", "same_as_evaluation"),  # too short for an 8-gram
        ("What is 2 plus 3?", KEPT),
    ],
)
def test_eight_words_in_a_row_give_an_evaluation_problem_away(text: str, reason: str) -> None:
    held_out = [problem(TEXT), problem("What is 2 plus 2?")]
    assert Decontaminate(held_out).reason(problem(text)) == reason


def test_a_share_asks_for_more_than_one() -> None:
    text = "let a and b be two positive integers and now comes a long tail of other words that are new"
    assert Decontaminate([problem(TEXT)]).reason(problem(text)) == "8_gram_in_evaluation"
    assert Decontaminate([problem(TEXT)], share=0.8).reason(problem(text)) == KEPT
    assert Decontaminate([problem(TEXT)], share=0.8).reason(problem(TEXT)) == "8_gram_in_evaluation"


def test_chinese_is_read_by_character() -> None:
    assert words("求x的值。") == ["求", "x", "的", "值"]
    held_out = [problem("已知正整数的和等于十")]
    assert Decontaminate(held_out).reason(problem("设已知正整数的和等于九")) == "8_gram_in_evaluation"
    assert Decontaminate(held_out).reason(problem("设已知正整数的积等于九")) == KEPT


vocabulary = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=14)


@given(st.lists(vocabulary, max_size=4), vocabulary, st.integers(1, 4))
def test_the_grams_found_are_those_of_looking_everywhere(against: list[list[str]], mine: list[str], n: int) -> None:
    found = Decontaminate([problem(" ".join(each)) for each in against], n).reason(problem(" ".join(mine)))
    if len(mine) < n:
        assert (found != KEPT) == (mine in against)
    else:
        grams = {tuple(mine[i : i + n]) for i in range(len(mine) - n + 1)}
        theirs = {tuple(each[i : i + n]) for each in against for i in range(len(each) - n + 1)}
        assert (found != KEPT) == bool(grams & theirs)


def test_the_first_of_the_same_problems_is_kept() -> None:
    seen = Deduplicate()
    assert seen.reason(problem("What is $3 + 4$?")) == KEPT
    assert seen.reason(problem("what is 3+4 ?")) == "duplicate"
    assert seen.reason(problem("What is 3 + 4?", answer="8")) == "duplicate_with_another_answer"
    assert seen.reason(problem("What is 3 - 4?")) == KEPT
    assert seen.reason(problem("+")) == KEPT


@pytest.mark.parametrize(
    ("right", "settings", "reason"),
    [
        (8, {}, "always_solved"),
        (7, {}, KEPT),
        (0, {}, KEPT),
        (0, {"drop_unsolved": True}, "never_solved"),
        (7, {"below": 0.75}, "too_easy"),
        (1, {"at_least": 0.25}, "too_hard"),
        (2, {"at_least": 0.25}, KEPT),
        (None, {}, "not_sampled"),
    ],
)
def test_difficulty_by_the_share_of_right_answers(right: int | None, settings: dict, reason: str) -> None:
    solved = {} if right is None else {"?": Solved(right, 8)}
    assert ByDifficulty(solved, Difficulty(**settings)).reason(problem("?")) == reason


@settings(max_examples=30)
@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=4), st.integers(0, 2)), min_size=1, max_size=4))
def test_samples_of_several_results_add_up_and_what_was_lost_is_not_right(results: list) -> None:
    total = Solved()
    for successes, lost in results:
        total = total + Solved.counted(successes, len(successes) + lost)
    every = [success for successes, lost in results for success in [*successes, *[False] * lost]]
    assert total == Solved(sum(every), len(every))
    always = bool(every) and all(every)
    assert (Difficulty().reason(total) == KEPT) == (bool(every) and not always)


def test_the_counts_add_up() -> None:
    tally = Tally()
    assert [tally.add(reason) for reason in ("", "b", "a", "b")] == [True, False, False, False]
    assert tally.figures() == {"read": 4, "kept": 1, "dropped_a": 1, "dropped_b": 2}
