"""``agent-rl data``: files in, a file out, counts; every mistake one message."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from actors.cli.main import main
from agent_rl.data.demonstrations import demonstration
from agent_rl.data.filters import Integers
from agent_rl.data.rows import rows_of, writer
from agent_rl.environments.maths.rewards import final_answer
from agent_rl.environments.task_files import problem_of
from agent_rl.evaluation.results import write_results
from agent_rl.rollout.parsing import ParsedCall, parse_calls
from tests.agent_rl.evaluation.test_results import result

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, int]:
    assert main(["data", *arguments]) == 0
    counts: dict[str, int] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return counts


ROWS = [
    {"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i) if i % 2 else "1/2", "extra": [i]} for i in range(6)
]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_every_format_is_read_and_written_as_it_was(tmp_path: Path, capsys: Any, ending: str) -> None:
    first = write_rows(tmp_path / "in.jsonl", ROWS)
    middle, last = tmp_path / f"middle.{ending}", tmp_path / "last.jsonl"
    assert run(capsys, "convert", first, "--out", str(middle)) == {"read": 6, "kept": 6}
    run(capsys, "convert", str(middle), "--out", str(last))
    assert [json.loads(line) for line in last.read_text().splitlines()] == ROWS
    if ending == "jsonl.gz":
        assert len(gzip.decompress(middle.read_bytes()).splitlines()) == 6
    if ending == "parquet":
        assert parquet.read_table(middle).num_rows == 6


def test_columns_are_renamed_where_they_stand_and_from_within(tmp_path: Path, capsys: Any) -> None:
    rows = [{"no": 1, "question": "1 + 1?", "extra": {"gold": {"text": "2"}}, "level": 3}]
    out = tmp_path / "out.jsonl"
    data = write_rows(tmp_path / "in.jsonl", rows)
    mapped = "problem=question,answer=extra.gold.text,id=no"
    assert run(capsys, "convert", data, "--out", str(out), "--columns", mapped) == {"read": 1, "kept": 1}
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
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
def test_columns_that_cannot_be_renamed(tmp_path: Path, capsys: Any, mapped: str, told: str) -> None:
    data, out = write_rows(tmp_path / "in.jsonl", [{"problem": "1?", "answer": "1"}]), tmp_path / "out.jsonl"
    assert main(["data", "convert", data, "--out", str(out), "--columns", mapped]) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()


FAULTY = [
    {"id": "a", "problem": "1?", "answer": "1"},
    {"id": "b", "problem": "2?"},
    {"id": "a", "problem": "3?", "answer": "3"},
    {"id": "c", "answer": "4"},
    {"id": "d", "problem": "5?", "answer": float("nan")},
    {"problem": "x" * 300, "answer": "6"},
    {"messages": [{"role": "user", "content": "hi"}]},
    {"problem": "7? <|end|><|assistant|>8", "answer": "7"},
    {"problem": "8? </tool_response>", "answer": "8"},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes<|end|>"}]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<answer>4</answer>"}]},
    {"problem": "9?", "answer": r"\sum_{n=1}^\infty \frac1{n^2}"},
    {"problem": "10?", "answer": r"\int_0^1 x^2 dx = \frac13"},
    {"id": "e", "problem": "\ud800", "answer": "7"},
]


def test_rows_that_training_would_refuse_are_counted_and_named(tmp_path: Path, capsys: Any, tiny_model: Path) -> None:
    data, out = write_rows(tmp_path / "in.jsonl", FAULTY), tmp_path / "out.jsonl"
    arguments = ["data", "convert", data, "--model", str(tiny_model), "--max-tokens", "250", "--prompt", "plain"]
    assert main([*arguments[:3], "--out", str(tmp_path / "bad.jsonl")]) == 2  # half a character cannot be written
    capsys.readouterr()
    data = write_rows(tmp_path / "in.jsonl", FAULTY[:-1])
    assert main([*arguments, "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    found = {"without_problem": 1, "without_answer": 2, "duplicate_id": 1, "prompt_too_long": 1, "control_tokens": 3}
    assert json.loads(said[-1]) == {"read": 13, "kept": 13, **found, "unread_answer": 1}
    notes = [line for line in said if line.startswith("note: ")]
    assert len(notes) == 6
    assert (
        f"note: 2 rows without an answer: neither text or a number in `answer` nor verl's `reward_model.ground_truth`: {data}:2, {data}:5"
        in notes
    )
    assert f"note: 1 row with the id of an earlier row: {data}:3" in notes
    assert f"note: 1 row with a prompt that leaves no room for a response: {data}:6" in notes
    assert any("with the text of a control token" in note and note.endswith(f"{data}:10") for note in notes)
    assert any("the checker of `maths` cannot read" in note and note.endswith(f": {data}:12") for note in notes)
    assert len(out.read_text().splitlines()) == 13
    counts = run(capsys, *arguments[1:], "--drop", "--out", str(tmp_path / "kept.jsonl"))
    assert counts == {"read": 13, "kept": 5, **{f"dropped_{name}": count for name, count in found.items()}}


def test_columns_that_come_late_are_columns_too(tmp_path: Path, capsys: Any) -> None:
    rows = [{"problem": str(i), "answer": "4"} | ({"lang": "zh"} if i > 2000 else {}) for i in range(2500)]
    out = tmp_path / "out.parquet"
    run(capsys, "convert", write_rows(tmp_path / "in.jsonl", rows), "--out", str(out))
    table = parquet.read_table(out)
    assert table.column_names == ["problem", "answer", "lang"]
    assert table["lang"].null_count == 2001


def test_a_filter_keeps_rows_whole_and_names_the_ids(tmp_path: Path, capsys: Any) -> None:
    out, ids = tmp_path / "out.jsonl", tmp_path / "ids.txt"
    counts = run(capsys, "integers", write_rows(tmp_path / "in.jsonl", ROWS), "--out", str(out), "--ids", str(ids))
    assert counts == {"read": 6, "kept": 3, "dropped_answer_is_no_integer": 3}
    assert [json.loads(line) for line in out.read_text().splitlines()] == ROWS[1::2]
    assert ids.read_text().split() == ["p1", "p3", "p5"]


def test_what_a_model_always_solves_is_dropped_by_its_own_samples(tmp_path: Path, capsys: Any) -> None:
    problems = [result("4", "4", problem="What is 1?"), result("4", "5", problem="What is 2?")]
    problems += [result("5", "5", problem="What is 3?")]
    write_results(tmp_path / "results.json", {}, problems)
    data, out = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    counts = run(capsys, "difficulty", data, "--results", str(tmp_path), "--out", str(out))
    assert counts == {"read": 6, "kept": 2, "dropped_always_solved": 1, "dropped_not_sampled": 3}
    # samples of two evaluations count together
    more = tmp_path / "more.json"
    write_results(more, {}, [result("5", "5", problem="What is 1?")])
    out = tmp_path / "out2.jsonl"
    counts = run(
        capsys, "difficulty", data, "--results", str(tmp_path), str(more), "--drop-unsolved", "--out", str(out)
    )
    assert counts["kept"] == 2
    assert counts["dropped_never_solved"] == 1


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
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    assert json.loads(out.read_text()) == {"id": 1, "messages": said}


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
    "It is 24/6 = <<24/6=4>>4 digits, so 4+6 = 10.": ("10", ""),
    "It is <<open(1)=1>>1": ("1", ""),
    "It is 10.": ("10", ""),
}


@pytest.mark.parametrize(("solution", "answer", "code"), [(text, *shown) for text, shown in SOLUTIONS.items()])
def test_annotated_solutions_become_programs_with_a_comment_and_a_name_for_each_step(
    solution: str, answer: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = demonstration({"problem": "How many?", "answer": answer, "solution": solution})
    assert (shown is None) == (not code)
    if shown is not None:
        [call] = parse_calls(shown[1]["content"])
        assert isinstance(call, ParsedCall)
        assert call.arguments == {"code": code}
        exec(code, {})
        assert capsys.readouterr().out.strip() == shown[2]["content"]


def test_every_mistake_is_one_message_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    without_ids = write_rows(tmp_path / "no_ids.jsonl", [{"problem": "?", "answer": "4"}])
    columns = write_rows(tmp_path / "columns.jsonl", [{"a": 1}, {"a": "x"}])
    here = write_rows(tmp_path / "here.jsonl", ROWS)
    cases = {
        ("integers", data, "--ids", here): "here.jsonl exists",
        ("integers", data, "--ids", str(out)): "is --out",
        ("sft", data, "--model", str(tmp_path / "nothing")): "there is no such directory",
        ("integers", str(tmp_path / "nothing.jsonl")): "no file matches",
        ("integers", data, "--out", data): "exists",
        ("convert", data, "--out", str(tmp_path / "out.csv")): "ends in one of",
        ("integers", write_rows(tmp_path / "bad.jsonl", [{"problem": "?"}])): "bad.jsonl:1",
        ("integers", without_ids, "--ids", str(tmp_path / "ids.txt")): "needs an id",
        ("decontaminate", data, "--against", str(tmp_path / "nothing.jsonl")): "no file matches",
        ("difficulty", data, "--results", str(tmp_path)): "results.json",
        ("difficulty", data, "--results", "x", "--at-least", "1"): "no problem would be kept",
        ("sft", data, "--max-tokens", "5"): "name the --model",
        ("convert", columns, "--out", str(tmp_path / "out.parquet")): "write JSONL",
    }
    for arguments, said in cases.items():
        given = arguments if "--out" in arguments else (*arguments, "--out", str(out))
        assert main(["data", *given]) == 2, arguments
        message = capsys.readouterr().err
        assert said in message, message
        assert len(message.splitlines()) == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl"}
    assert not out.exists()


def test_a_row_that_fails_late_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"

    def fail() -> None:
        with writer(path) as write:
            write({"a": 1})
            raise RuntimeError("late")

    with pytest.raises(RuntimeError, match="late"):
        fail()
    assert list(tmp_path.iterdir()) == []


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
            for where, row in rows_of([str(first)], tmp_path):
                assert Integers().reason(problem_of(row, where)) == ""
                write(row)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * 2**20  # of a file of 20 MiB


@pytest.mark.skipif(not DATA.is_dir(), reason="the problem sets are not on this machine")
def test_the_real_files_pass_through_every_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aime, held_out = str(DATA / "train" / "aime_1983_2023.jsonl.gz"), str(DATA / "eval" / "*.jsonl")
    first, second, third = (str(tmp_path / f"{number}.jsonl") for number in range(3))
    counts = run(capsys, "integers", aime, "--out", first)
    assert counts["read"] == 968
    assert counts["kept"] > 900
    counts = run(capsys, "deduplicate", first, "--out", second)
    assert counts["kept"] + counts.get("dropped_duplicate", 0) <= counts["read"]
    counts = run(capsys, "decontaminate", second, "--against", held_out, "--out", third)
    assert 0 < counts["kept"] < counts["read"]
    assert len(Path(third).read_text().splitlines()) == counts["kept"]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_a_file_of_which_nothing_is_kept_is_a_file_all_the_same(tmp_path: Path, capsys: Any, ending: str) -> None:
    out = tmp_path / f"out.{ending}"
    data = write_rows(tmp_path / "in.jsonl", [{"problem": "?", "answer": "x"}])
    assert run(capsys, "integers", data, "--out", str(out))["kept"] == 0
    assert list(rows_of([str(out)], tmp_path)) == []
