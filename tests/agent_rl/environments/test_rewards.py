from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.environments.maths.rewards import answer_tags, answer_text, exactly_equal, final_answer, is_integer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<answer>\boxed{42}</answer>", "42"),
        (r"<reason>\boxed{1}</reason><answer>so \boxed{2}, or rather \boxed{ 3 }</answer>", "3"),
        (r"<answer>\boxed{1}</answer> no: <answer>\boxed{2}</answer>", "2"),
        (r"<answer>\boxed{\frac{1}{\sqrt{2}}}</answer>", r"\frac{1}{\sqrt{2}}"),
        (r"<answer>\boxed{\{1, 2\}}</answer>", r"\{1, 2\}"),
        (r"<answer>\boxed {5}</answer>", "5"),
        (r"<answer>\boxed{\boxed{5}}</answer>", "5"),
        (r"<answer>\boxed{ $\boxed{5}$ }</answer>", "5"),
        (r"<answer>\boxed{-\boxed{5}}</answer>", "-{5}"),
        (r"<answer>\boxed{\boxed{5}, 6}</answer>", "{5}, 6"),
        (r"<answer>\boxed{\text{not }\boxed{5}}</answer>", r"\text{not }{5}"),
        (r"<answer>\boxed{1 \boxed{5}</answer>", "5"),
        (r"<answer>\boxed{}</answer>", ""),
        ("<answer>\n\\boxed{\n1\n}\n</answer>", "1"),
        # A box that never closes does not count, an earlier one does; a stray brace is no obstacle.
        (r"<answer>\boxed{7} and \boxed{8</answer>", "7"),
        (r"<answer>} \boxed{7}</answer>", "7"),
        (r"<answer>\boxed{7\}</answer>", None),
        (r"<answer>\boxed{7</answer>}", None),
        # Only what stands in well-formed tags counts.
        (r"\boxed{42}", None),
        (r"<answer>42</answer>", None),
        (r"<answer>\boxed{42}", None),
        (r"\boxed{1}</answer>", None),
        (r"</answer>\boxed{1}<answer>", None),
        (r"<answer>42</answer>\boxed{42}", None),
        (r"<answer>\boxed{1}</answer>\boxed{2}</answer>", "1"),
        (r"<answer>\boxed{1}</answer><answer>\boxed{2}", "1"),
        (r"<answer>\boxed{1}<answer>\boxed{2}</answer>", "2"),
        ("", None),
        # What stands in a thought is a draft; one that is not closed goes to the end.
        (r"<think><answer>\boxed{1}</answer></think><answer>\boxed{2}</answer>", "2"),
        (r"<answer>\boxed{2}</answer><think>or <answer>\boxed{3}</answer>", "2"),
        (r"<think><answer>\boxed{1}</answer>", None),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_final_answer_takes_time_linear_in_the_text() -> None:
    started = time.process_time()
    assert final_answer("<answer>" * 50_000 + "\\boxed{" * 50_000 + "</answer>") is None
    assert final_answer("<answer>\\boxed{1}" * 50_000) is None
    assert final_answer("<think></think>" * 50_000 + "<think>" * 50_000) is None
    assert final_answer("<answer>" + "\\boxed{" * 50_000 + "1" + "}" * 50_000 + "</answer>") == "1"
    assert time.process_time() - started < 2


def test_answer_tags_counts_opening_tags() -> None:
    assert answer_tags("") == 0
    assert answer_tags("<answer>1</answer> <answer>2") == 2
    assert answer_tags("</answer>") == 0


@pytest.mark.parametrize(
    ("gold", "prediction", "equal"),
    [
        ("7425000", "7,425,000", True),
        ("7425000", r"7{,}425{,}000", True),
        ("7425000", r"7\,425\,000", True),
        ("1000", "1 000", True),
        ("10", "10.0", True),
        ("10", "10.", True),
        ("10", "$10$", True),
        ("10", r"\(10\)", True),
        ("10", r"\$10", True),
        ("10", "+10", True),
        ("-10", "\N{MINUS SIGN}10", True),
        ("0", "-0", True),
        ("0", "000", True),
        ("7", "007", True),
        ("0.4", ".4", True),
        ("0.50", "0.5", True),
        ("12", "-12", False),
        ("42", "43", False),
        ("1", "10", False),
        ("123", "12,3", None),
        ("42", "", False),
        ("", "", False),
        ("x", "x", True),
        ("5", "5.001", None),
        ("0.5", r"\dfrac{1}{2}", None),
        ("5", r"5 \text{ cm}", None),
        ("x+1", "1+x", None),
        ("1", "\u0661", None),  # an Arabic digit is for the parser to read
    ],
)
def test_exactly_equal(gold: str, prediction: str, *, equal: bool | None) -> None:
    assert exactly_equal(gold, prediction) is equal
    assert exactly_equal(prediction, gold) is equal


@given(gold=st.integers(), other=st.integers(-(10**30), 10**30), zeros=st.integers(0, 3), separated=st.booleans())
def test_two_integers_are_always_decided_and_rightly(gold: int, other: int, zeros: int, *, separated: bool) -> None:
    written = ("-" if other < 0 else "") + (f"{abs(other):,}" if separated else "0" * zeros + str(abs(other)))
    assert is_integer(written)
    assert exactly_equal(str(gold), written) is (gold == other)
    assert exactly_equal(str(other), written)


def test_an_answer_stands_in_one_turn() -> None:
    opened, closed = r"<answer>\boxed{1}", r"\boxed{2}</answer>"
    assert final_answer(opened, closed) is None
    assert final_answer(opened, "", closed) is None
    assert final_answer("<answer>", r"\boxed{1}", "</answer>") is None
    assert final_answer(r"<answer>\boxed{1}</ans", "wer>") is None
    assert final_answer(opened + "</answer>", opened, closed) == "1"  # the last one that is well formed
    assert final_answer("", r"<answer>\boxed{3}</answer>") == "3"
    assert final_answer() is None


def test_numbers_too_long_for_int_are_decided() -> None:
    assert exactly_equal("1" * 100_000, "1" * 100_000 + ".0") is True
    assert exactly_equal("1" * 100_000, "1" * 99_999) is False


def test_answers_that_are_exactly_equal_are_the_same_text() -> None:
    same = ("1,000", "1000", " $1000$ ", "+1000.00", "01000", "1\\,000")
    assert {answer_text(answer) for answer in same} == {"1000"}
    assert (answer_text("-0.50"), answer_text(".5"), answer_text("-0"), answer_text(" x  + 1 ")) == (
        "-0.5",
        "0.5",
        "0",
        "x + 1",
    )
    assert answer_text("") == ""


@pytest.mark.parametrize(
    ("answers", "whole"),
    [
        (["4", "-17", "1,000", "$12$", "3.00", "007", "12.", "\\(5\\)", "10{,}000"], True),
        (["1/2", "3.5", "x", "\\frac{4}{2}", "3, 4", "", "12 apples", "2^3", "five"], False),
    ],
)
def test_integers_however_written(answers: list[str], *, whole: bool) -> None:
    assert [answer for answer in answers if is_integer(answer) is not whole] == []
