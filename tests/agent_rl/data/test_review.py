"""Which rows are counted as faulty, and columns under other names."""

from __future__ import annotations

import pytest

from actors.cli.data import _columns
from agent_rl.data.review import Review, Tally, renamed
from agent_rl.data.rows import DataError
from agent_rl.environments.task_files import problem_of


def test_columns_are_renamed_where_they_stand_and_from_within() -> None:
    given = {"no": 1, "question": "1 + 1?", "extra": {"gold": {"text": "2"}}, "level": 3}
    row = renamed(given, _columns("problem=question,answer=extra.gold.text,id=no"), "here")
    assert list(row.items()) == [
        *(("id", 1), ("problem", "1 + 1?"), ("extra", {"gold": {"text": "2"}}), ("level", 3), ("answer", "2"))
    ]
    assert problem_of(row, "here").answer == "2"


@pytest.mark.parametrize(
    ("mapped", "told"),
    [
        ("problem=query", "in.jsonl:1: --columns problem=query: there is no column 'query'; there is answer, problem"),
        ("answer=problem.text", "there is no column 'problem.text'"),
        ("answer=problem", "there is a column 'answer' already; rename that one too"),
        ("problem", "is not NEW=OLD"),
        ("problem=a,problem=b", "is not NEW=OLD"),
        ("=a", "is not NEW=OLD"),
    ],
)
def test_columns_that_cannot_be_renamed(mapped: str, told: str) -> None:
    with pytest.raises(DataError) as raised:
        renamed({"problem": "1?", "answer": "1"}, _columns(mapped), "in.jsonl:1")
    assert told in str(raised.value)


FAULTY = [
    {"id": "a", "problem": "1?", "answer": "1"},
    {"id": "b", "problem": "2?"},
    {"id": "a", "problem": "3?", "answer": "3"},
    {"id": "c", "answer": "4"},
    {"id": "d", "problem": "5?", "answer": float("nan")},
    {"messages": [{"role": "user", "content": "hi"}]},
    {"problem": "9?", "answer": r"\sum_{n=1}^\infty \frac1{n^2}"},
    {"problem": "10?", "answer": r"\int_0^1 x^2 dx = \frac13"},
    {"id": "e", "problem": "\ud800", "answer": "7"},
]


def test_rows_that_training_would_refuse_are_counted_and_named() -> None:
    review = Review()
    faults = [review.faults(row, f"in:{number}") for number, row in enumerate(FAULTY, 1)]
    found = [(number, fault) for number, of_row in enumerate(faults, 1) for fault in of_row]
    assert found == [
        *((2, "without_answer"), (3, "duplicate_id"), (4, "without_problem"), (5, "without_answer"), (9, "unreadable"))
    ]
    notes = review.found.lines()
    assert len(notes) == 5
    assert (
        "note: 2 rows without an answer: neither text or a number in `answer` nor verl's "
        "`reward_model.ground_truth`: in:2, in:5" in notes
    )
    assert "note: 1 row with the id of an earlier row: in:3" in notes
    assert any("the checker of `maths` cannot read" in note and note.endswith(": in:7") for note in notes)


def test_the_counts_add_up() -> None:
    tally = Tally()
    assert [tally.add(reason) for reason in ("", "b", "a", "b")] == [True, False, False, False]
    assert tally.figures() == {"read": 4, "kept": 1, "dropped_a": 1, "dropped_b": 2}
