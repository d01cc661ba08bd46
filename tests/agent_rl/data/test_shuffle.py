"""The order of supervised rows: over all files, by weights and epochs, the same again after a restart."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.data.conversations import Conversation
from agent_rl.data.rows import writer
from agent_rl.data.shuffle import Rows, rows_of_epochs, shuffled
from agent_rl.environments.base import TaskError
from agent_rl.learning.batching import SupervisedBatches

COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any)


def said(conversation: Conversation) -> Any:
    """Its messages in place of tokens."""
    return conversation.messages


@given(COUNTS, st.integers(0, 9), st.integers(1, 4))
def test_every_epoch_brings_every_row_once(counts: list[int], seed: int, epochs: int) -> None:
    total, weights = sum(counts), [1.0] * len(counts)
    numbers = list(islice(shuffled(counts, weights, str(seed)), epochs * total))
    for epoch in range(epochs):
        assert sorted(numbers[epoch * total : (epoch + 1) * total]) == list(range(total))
    assert rows_of_epochs(counts, weights, epochs) == epochs * total


@given(COUNTS, st.data())
def test_an_entry_comes_as_often_as_its_weight_says_and_no_row_is_favoured(counts: list[int], data: Any) -> None:
    weights = data.draw(
        st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0]), min_size=len(counts), max_size=len(counts))
    )
    epochs = 20  # a whole number of rows of every entry
    total = rows_of_epochs(counts, weights, epochs)
    seen = Counter(islice(shuffled(counts, weights, "7"), total))
    first = 0
    for count, weight in zip(counts, weights, strict=True):
        assert [seen[number] for number in range(first, first + count)] == [round(weight * epochs)] * count
        first += count


@given(COUNTS, st.integers(1, 3), st.integers(0, 200), st.integers(0, 3))
def test_a_restart_anywhere_goes_on_with_the_batch_that_was_next(
    counts: list[int], batch: int, at: int, seed: int
) -> None:
    def batches() -> SupervisedBatches[int]:
        numbers = shuffled(counts, [1.0] * len(counts), str(seed))
        lengths = random.Random(seed).choices(range(1, 9), k=sum(counts))
        lengths[0] = 1  # one fits at least
        return SupervisedBatches(
            numbers, lambda n: [([n] * lengths[n], [1] * lengths[n])], batch=batch, longest=6, rng=random.Random(seed)
        )

    whole = batches()
    _ = [next(whole) for _ in range(at)]
    drawn = list(whole.drawn)
    again = batches()
    again.skip(at, drawn)
    assert [next(again) for _ in range(20)] == [next(whole) for _ in range(20)]


def test_the_seed_decides_the_order_and_files_are_mixed() -> None:
    counts, weights = [1000, 1000], [1.0, 1.0]
    order = list(islice(shuffled(counts, weights, "1"), 4000))
    assert order == list(islice(shuffled(counts, weights, "1"), 4000))
    assert order != list(islice(shuffled(counts, weights, "2"), 4000))
    assert order[:2000] != order[2000:]
    for start in range(0, 4000, 200):  # of each 200 rows about half are of the first file
        assert 60 < sum(number < 1000 for number in order[start : start + 200]) < 140


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]}


def text_of(rows: Rows, number: int) -> str:
    return rows.encoded(number, said, 0)[0]["content"]


def test_rows_are_found_in_files_of_every_format(tmp_path: Path) -> None:
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(b"\xef\xbb\xbf" + "\n\n".join(json.dumps(chat(f"a{i} é")) for i in range(3)).encode())
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(json.dumps(chat(f"b{i}")) for i in range(3)))  # no line break at the end
    with writer(tmp_path / "c.parquet") as write:
        for i in range(3):
            write(chat(f"c{i}"))
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write(json.dumps(chat("d0")) + "\n\n" + '{"text": 1}\n[]\n{\n')
    before = set(tmp_path.iterdir())
    rows = Rows(["a.jsonl", "[bc].*", "d.jsonl.gz"], tmp_path, tmp_path)
    assert set(tmp_path.iterdir()) == before  # the copy has no name
    assert rows.counts == [3, 6, 4]
    expected = [f"a{i} é" for i in range(3)] + [f"{name}{i}" for name in "bc" for i in range(3)] + ["d0"]
    numbers = list(range(10))
    random.Random(0).shuffle(numbers)
    assert {number: text_of(rows, number) for number in numbers} == dict(enumerate(expected))
    assert [rows.place(number) for number in (0, 2, 5, 8)] == ["a.jsonl:1", "a.jsonl:5", "b.jsonl.gz:3", "c.parquet:3"]
    for number, message in (
        (10, r"d\.jsonl\.gz:3: unknown layout of conversations; its columns are text; known are"),
        (11, r"d\.jsonl\.gz:4: a JSON list; each line must be one JSON object"),
        (12, r"d\.jsonl\.gz:5: not JSON .*each line must be one JSON object"),
    ):
        with pytest.raises(TaskError, match=message):
            rows.encoded(number, said, 0)


def test_files_without_rows_and_broken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TaskError, match="no conversation to train on"):
        Rows(["empty.jsonl"], tmp_path, tmp_path)
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(TaskError, match=r"broken\.jsonl\.gz: cannot be read"):
        Rows(["broken.jsonl.gz"], tmp_path, tmp_path)


def test_a_file_that_changes_while_a_stage_reads_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f"{json.dumps(chat('a'))}\n" * 2)
    rows = Rows([file.name], tmp_path, tmp_path)
    assert rows.encoded(0, said, 0)
    file.write_text(f"{json.dumps(chat('another'))}\n" * 2)
    with pytest.raises(TaskError, match=r"a\.jsonl has changed since this stage began; put it back"):
        rows.encoded(1, said, 0)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_memory_holds_places_of_rows_and_no_rows(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"long.{ending}"
    line = json.dumps(chat("x" * 2000)).encode() + b"\n"
    with gzip.open(file, "wb", 1) if ending == "jsonl.gz" else file.open("wb") as out:
        out.write(line * 10_000)
    tracemalloc.start()
    try:
        rows = Rows([file.name], tmp_path, tmp_path)
        order = shuffled(rows.counts, [1.0], "0")
        for number in islice(order, 100):
            rows.encoded(number, said, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.counts == [10_000]
    assert peak < 3 * 2**20  # of 20 MiB


def test_a_sampled_rollout_is_trained_on_as_it_was_sampled(tmp_path: Path) -> None:
    sampled = {"prompt_tokens": [1, 2], "tokens": [3, 4, 5], "loss_mask": [1, 0, 1], "reward": 1.0}
    bad = [{**sampled, "loss_mask": [1, 0]}, {**sampled, "loss_mask": [0, 0, 0]}, {**sampled, "tokens": [3, 4, 99]}]
    (tmp_path / "sampled.jsonl").write_text("\n".join(map(json.dumps, [sampled, *bad])))
    rows = Rows(("sampled.jsonl",), tmp_path, tmp_path)
    assert rows.encoded(0, said, 50) == [([1, 2, 3, 4, 5], [0, 0, 1, 0, 1])]
    for number, told in ((1, "tokens and mask do not fit"), (2, "tokens and mask do not fit"), (3, "has token 99")):
        with pytest.raises(TaskError, match=rf"sampled.jsonl:{number + 1}: .*{told}"):
            rows.encoded(number, said, 50)
