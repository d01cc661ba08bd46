"""``agent-rl data``: files in, a file out, counts, faulty rows, renamed columns; every mistake one message."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from actors.cli.data import _columns
from actors.cli.main import main
from agent_rl.data.demonstrations import demonstration
from agent_rl.data.review import Review, Tally, renamed
from agent_rl.data.rows import DataError, rows_of, writer
from agent_rl.environments.maths.rewards import final_answer
from agent_rl.environments.task_files import problem_of
from agent_rl.rollout.parsing import ParsedCall, parse_calls


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, int]:
    assert main(["data", *arguments]) == 0
    counts: dict[str, int] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return counts


def copy(file: str, out: Path) -> None:
    with writer(out) as write:
        for _, row in rows_of([file], out.parent):
            write(row)


ROWS = [
    {"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i) if i % 2 else "1/2", "extra": [i]} for i in range(6)
]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_every_format_is_read_and_written_as_it_was(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out.{ending}"
    copy(write_rows(tmp_path / "in.jsonl", ROWS), out)
    assert [row for _, row in rows_of([str(out)], tmp_path)] == ROWS
    if ending == "jsonl.gz":
        assert len(gzip.decompress(out.read_bytes()).splitlines()) == 6
    if ending == "parquet":
        assert parquet.read_table(out).num_rows == 6


def test_columns_that_come_late_are_columns_too(tmp_path: Path) -> None:
    rows = [{"problem": str(i), "answer": "4"} | ({"lang": "zh"} if i > 2000 else {}) for i in range(2500)]
    out = tmp_path / "out.parquet"
    copy(write_rows(tmp_path / "in.jsonl", rows), out)
    table = parquet.read_table(out)
    assert table.column_names == ["problem", "answer", "lang"]
    assert table["lang"].null_count == 2001


SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]


def test_conversations_are_made_ready_and_counted(tmp_path: Path, capsys: Any, tiny_model: Path) -> None:
    rows = [
        {"id": 1, "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]},
        {"id": 2, "messages": [{"role": "user", "content": "hi"}]},
        {"id": 3, "messages": [{"role": "user", "content": "x" * 99}, {"role": "assistant", "content": "y"}]},
    ]
    out = tmp_path / "out.jsonl"
    data = write_rows(tmp_path / "in.jsonl", rows)
    counts = run(capsys, "sft", data, "--out", str(out), "--model", str(tiny_model), "--max-tokens", "50")
    assert counts == {
        "read": 3,
        "kept": 1,
        "dropped_does_not_end_with_the_assistant": 1,
        "dropped_too_long": 1,
        "turns_of_the_assistant": 1,
        "tool_calls": 0,
        "tokens": 9,
        "tokens_trained_on": 4,
        "with_control_tokens": 0,
    }
    assert json.loads(out.read_text()) == {"id": 1, "messages": SAID}


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from agent_rl.learning.tiny import build_tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(path)
    return path


EQUATIONS = {
    "318+544=862": ("862", "print(318+544)", "862"),
    "( 664.0 / 2.0 )": ("332", "print(( 664 / 2 ))", "332.0"),
    "0.5*3": ("1.5", "print(0.5*3)", "1.5"),
    "-(7-9)*10.0": ("20", "print(-(7-9)*10)", "20"),
}
NONE = {"227/2=113 r1": "114", "1+1": "3", "2**9**9": "1", "open('x')": "1", "1/0": "0", "x=3": "3", "(" * 150: "1"}


def test_problems_with_an_equation_become_calls_and_the_rest_stays(tmp_path: Path, capsys: Any) -> None:
    answers = {equation: answer for equation, (answer, _, _) in EQUATIONS.items()}
    rows = [{"id": e, "problem": f"What is {e}?", "answer": a, "equation": e} for e, a in (answers | NONE).items()]
    given = write_rows(tmp_path / "in.jsonl", [*rows, {"problem": "?", "answer": "1"}])
    out, rest = tmp_path / "out.jsonl", tmp_path / "rest.jsonl"
    arguments = ["demonstrate", given, "--number", "3", "--out", str(out), "--rest", str(rest)]
    counts = run(capsys, *arguments)
    assert counts == {"rows": 12, "demonstrable": 4, "demonstrations": 3, "rest": 9}
    shown = [json.loads(line) for line in out.read_text().splitlines()]
    for row in shown:
        answer, code, printed = EQUATIONS[row["id"]]
        asked, called, told, answered = (message["content"] for message in row["messages"])
        (call,) = parse_calls(called)
        assert isinstance(call, ParsedCall)
        assert (asked, call.arguments, told) == (f"What is {row['id']}?", {"code": code}, printed)
        assert final_answer(answered) == answer
    left = [json.loads(line).get("id") for line in rest.read_text().splitlines()]
    assert sorted([*left[:-1], *(row["id"] for row in shown)]) == sorted(row["id"] for row in rows)
    assert main(["data", *arguments[:3], "5", "--out", str(tmp_path / "more.jsonl")]) == 2
    assert (
        "4 of 12 rows have an `equation` or an annotated `solution` whose value is their answer, fewer than --number 5"
        in (capsys.readouterr().err)
    )


SOLUTIONS = {
    "Ann sold 48/2 = <<48/2=24>>24 clips in May.\nIn all she sold 48+24 = <<48+24=72>>72.": (
        "72",
        "# Ann sold x1 clips in May.\nx1 = 48/2\n# In all she sold x2.\nx2 = 48+x1\nprint(x2)",
    ),
    "Each costs $1,200/3=$<<1200/3=400>>400.\nNobody knows why.\nTwo cost (2 x 400) = <<2*400=800>>800 dollars": (
        "800",
        "# Each costs x1.\nx1 = 1200/3\n# Two cost x2 dollars\nx2 = 2*x1\nprint(x2)",
    ),
    "He had <<5-2=3>>3 and got <<3*4=12>>12, so 12+3 = <<12+3=15>>15": (
        "15",
        "# He had x1 and got x2, so x3\nx1 = 5-2\nx2 = x1*4\nx3 = x2+x1\nprint(x3)",
    ),
    "He had <<5+2=7>>7, then <<7*3=21>>21, and <<21+7=28>>28": (  # the problem gives 7, too
        "28",
        "# He had x1, then x2, and x3\nx1 = 5+2\nx2 = x1*3\nx3 = x2+7\nprint(x3)",
    ),
    "It is 24/6 = <<24/6=4>>4 digits, so 4+6 = 10.": ("10", ""),
    "It is <<open(1)=1>>1": ("1", ""),
    "It is 10.": ("10", ""),
}


@pytest.mark.parametrize(("solution", "answer", "code"), [(text, *shown) for text, shown in SOLUTIONS.items()])
def test_annotated_solutions_become_programs_with_a_comment_and_a_name_for_each_step(
    solution: str, answer: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = demonstration({"problem": "How many in 7 weeks?", "answer": answer, "solution": solution})
    assert (shown is None) == (not code)
    if shown is not None:
        [call] = parse_calls(shown[1]["content"])
        assert isinstance(call, ParsedCall)
        assert call.arguments == {"code": code}
        exec(code, {})
        assert capsys.readouterr().out.strip() == shown[2]["content"]


def test_every_mistake_is_one_message_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    chats = [{"id": each, "messages": SAID} for each in (1, "x")]
    cases = {
        ("sft", data, "--model", str(tmp_path / "nothing")): "there is no such directory",
        ("sft", str(tmp_path / "nothing.jsonl")): "no file matches",
        ("sft", data, "--out", data): "exists",
        ("sft", data, "--out", str(tmp_path / "out.csv")): "ends in one of",
        ("sft", write_rows(tmp_path / "bad.jsonl", [{"text": "?"}])): "bad.jsonl:1",
        ("sft", data, "--max-tokens", "5"): "name the --model",
        ("sft", write_rows(tmp_path / "mixed.jsonl", chats), "--out", str(tmp_path / "out.parquet")): "write JSONL",
    }
    for arguments, said in cases.items():
        given = arguments if "--out" in arguments else (*arguments, "--out", str(out))
        assert main(["data", *given]) == 2, arguments
        message = capsys.readouterr().err
        assert said in message, message
        assert len(message.splitlines()) == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}
    assert not out.exists()


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, ending: str) -> None:
    first, out = tmp_path / "in.jsonl", tmp_path / f"out.{ending}"
    with first.open("w") as file:
        for number in range(20_000):
            file.write(json.dumps({"problem": f"{number} " + "x" * 1000, "answer": "4"}) + "\n")
    with writer(out) as write:  # pyarrow is imported before anything is counted
        write({"problem": "?", "answer": "4"})
    out.unlink()
    tracemalloc.start()
    try:
        with writer(out) as write:
            for _, row in rows_of([str(first)], tmp_path):
                write(row)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * 2**20  # of a file of 20 MiB


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_a_file_of_which_nothing_is_kept_is_a_file_all_the_same(tmp_path: Path, capsys: Any, ending: str) -> None:
    out = tmp_path / f"out.{ending}"
    data = write_rows(tmp_path / "in.jsonl", [{"messages": SAID[:1]}])
    assert run(capsys, "sft", data, "--out", str(out))["kept"] == 0
    assert list(rows_of([str(out)], tmp_path)) == []


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
