"""Selection as the authors' public code selects: by the tags of the response, flaws included."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.groups.resampling import Candidate, release_penalty, select_release
from agent_rl.messages import TagCounts
from agent_rl.rollout.episode import tag_counts

HEADER, END = "<|im_start|>assistant\n", "<|im_end|>\n"
ANSWER = "<answer>\\boxed{4}</answer>"


def response(text: str) -> str:
    """A tool response between two turns, as ChatML has it."""
    return f"{END}<|im_start|>user\n<tool_response>\n{text}\n</tool_response>{END}{HEADER}"


@pytest.mark.parametrize(
    ("text", "penalty"),
    [
        (f"I call.{response('4')}{ANSWER}{END}", 0.0),
        (f"I call.{response('no Errors')}{ANSWER}{END}", 1.0),  # the word, whatever became of the call
        (f"I call.{response('Traceback: it timed out')}{ANSWER}{END}", 0.0),  # a failure without the word
        (f"a{response('Error')}b{response('4')}c{response('4')}d{response('4')}{ANSWER}{END}", 0.25),
        (f"An error, I fear.{response('4')}{ANSWER}{END}", 0.0),  # the model's own words do not count
        (f"{ANSWER}{END}", 1.5),  # no tool response: 0.5; one turn, whose header is in the prompt: 1
        (f"a{response('4')}{ANSWER}", 1.0),  # the last turn was cut: none is counted
        (f"a{response('4')}b{response('4')}{ANSWER}{ANSWER}{END}", 0.5),  # one answer too many in 3 - 1 turns
        (f"a{response('4')}{ANSWER * 3}{END}", 1.0),  # at most 1
        (f"a{response('4')}no answer{END}", 1.0),
        (f"a{response('4')}{ANSWER}<answer>{END}", 1.0),  # unbalanced
        (f"a{response('4')}</answer><answer>{END}", 1.0),  # as many of both, and no pair
        (f"a<answer>{response('4')}{ANSWER}{END}", 1.0),  # one pair, opened twice
        (f"a <tool_response>error</tool_response>{response('4')}{ANSWER}{END}", 0.5),  # a quoted response counts
        (f"a{response('one <tool_response> in another, error')}{ANSWER}{END}", 1.0),
        ("", 1.5),
    ],
)
def test_the_penalty_is_read_from_the_text_of_the_response(text, penalty):
    assert release_penalty(tag_counts(text)) == penalty


PIECES = ["<answer>", "</answer>", "<tool_response>", "</tool_response>", HEADER, END, "error", "ERROR", "x"]


def spans(pieces: Sequence[str], start: str, end: str) -> list[list[str]]:
    """The pieces within each pair of tags, by a walk over the pieces."""
    done: list[list[str]] = []
    within: list[str] | None = None
    for piece in pieces:
        if within is None:
            within = [] if piece == start else None
        elif piece == end:
            done.append(within)
            within = None
        else:
            within.append(piece)
    return done


@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_tags_are_counted_wherever_they_stand(pieces):
    responses = spans(pieces, "<tool_response>", "</tool_response>")
    assert tag_counts("".join(pieces)) == TagCounts(
        tool_responses=len(responses),
        error_responses=sum("error" in each or "ERROR" in each for each in responses),
        answers_opened=pieces.count("<answer>"),
        answers_closed=pieces.count("</answer>"),
        answers=len(spans(pieces, "<answer>", "</answer>")),
        turns=len(spans(pieces, HEADER, END)),
    )


def rollout(sample: int, reward: float, errors: int = 0) -> Candidate:
    """One whose penalty is ``errors`` tenths; its outcomes, judged penalty and success are others, and do not count."""
    tags = TagCounts(10, errors, 1, 1, 1, 3)
    return Candidate(sample, reward, 4, 10, 10 - errors, 1.0 - errors / 10, 50, reward <= 0, tags)


def group(positives: int, negatives: int) -> list[Candidate]:
    """The positives first, each cleaner than the one before."""
    clean = [rollout(i, 1.0, errors=positives - i) for i in range(positives)]
    return clean + [rollout(positives + i, 0.0, errors=i) for i in range(negatives)]


@pytest.mark.parametrize(
    ("positives", "negatives", "keep", "kept_positives"),
    [
        (8, 8, 8, 4),
        (5, 11, 8, 2),  # 2.5 places: to even, though the rarer class loses
        (7, 9, 8, 4),  # 3.5
        (9, 7, 8, 4),  # 4.5
        (11, 5, 8, 6),  # 5.5
        (1, 15, 8, 1),  # 0.5 would be none; at least 2, or all there are
        (2, 14, 8, 2),
        (3, 13, 8, 2),  # 1.5
        (15, 1, 8, 7),
        (14, 2, 8, 6),
        (5, 5, 5, 3),  # 2.5 and 2.5: 2 places for the class with reward 0, the rest for the other
        (4, 4, 8, 4),  # all
        (6, 2, 4, 2),  # 1 place is too few: 2 and 2
        (6, 2, 3, 2),  # of three, one of each class is enough
        (2, 6, 3, 1),
        (7, 1, 4, 3),
        (1, 7, 4, 1),
    ],
)
def test_places_are_rounded_to_even_and_each_class_has_at_least_two(positives, negatives, keep, kept_positives):
    cleanest = range(positives - kept_positives, positives)
    first = range(positives, positives + keep - kept_positives)
    assert select_release(group(positives, negatives), random.Random(0), keep=keep) == (*cleanest, *first)


def test_of_equal_penalties_the_first_are_kept():
    equal = [rollout(i, float(i < 4), errors=3) for i in range(8)]
    assert select_release(equal, random.Random(0), keep=4) == (0, 1, 4, 5)


@pytest.mark.parametrize(
    "dropped",
    [group(2, 1), group(6, 0), group(0, 6), [rollout(i, (1.0, 0.5)[i > 3], errors=i) for i in range(8)]],
    ids=["fewer than keep", "all right", "all wrong", "what is kept has equal rewards"],
)
def test_groups_that_are_dropped(dropped):
    assert select_release(dropped, random.Random(0), keep=4) == ()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10)), min_size=1, max_size=20), st.integers(2, 12))
def test_no_positive_left_out_is_cleaner_and_no_negative_left_out_comes_before(made, keep):
    candidates = [rollout(i, float(right), errors) for i, (right, errors) in enumerate(made)]
    kept = set(select_release(candidates, random.Random(0), keep=keep))
    assert len(kept) in {0, keep}
    assert not kept or len(made) >= keep
    for a, b in combinations(range(len(made)), 2):
        for inside, outside in ((a, b), (b, a)):
            if inside in kept and outside not in kept and made[inside][0] == made[outside][0]:
                assert (made[inside][1], inside) < (made[outside][1], outside) if made[inside][0] else inside < outside
