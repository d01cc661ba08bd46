"""Values that no sound file holds, in every place where a user's file is read: a message, and never a traceback."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import InitialiseModel
from agent_rl.data.review import Review
from agent_rl.data.rows import DataError, rows_of, writer
from agent_rl.environments.base import TaskError
from agent_rl.evaluation.problems import chosen_problems
from agent_rl.files.reading_json import JsonError, parse_json
from agent_rl.learning.tiny import initialise_model
from agent_rl.topology_checks.topology import check_topology
from tests.end_to_end.topologies import write_micro

DIGITS = "9" * 5000
JSON_VALUES = {"digits": DIGITS, "negative digits": f"-{DIGITS}", "digits in an array": f"[{DIGITS}]"}
JSON_VALUES |= {"70 bits": str(2**70), "NaN": "NaN", "infinity": "Infinity", "minus infinity": "-Infinity"}
JSON_VALUES |= {"beyond a float": "1e999", "tiny": "1e-999", "deep": "[" * 9999 + "]" * 9999}
JSON_VALUES |= {"deeper": '{"a":' * 9999 + "1" + "}" * 9999, "unclosed": "[" * 9999, "surrogate": '"\\ud800"'}
JSON_VALUES |= {"zero": '"\\u0000"', "no text": '""', "blank": '" "', "long": f'"{"x" * 99999}"', "true": "true"}
JSON_VALUES |= {"null": "null", "array": "[]", "object": "{}", "digits as text": f'"{DIGITS}"', "nothing": ""}
"""JSON texts by what is wrong with them; the last three are sound in most places."""
TOML_VALUES = {"digits": DIGITS, "negative digits": f"-{DIGITS}", "70 bits": str(2**70)}
TOML_VALUES |= {"array of digits": f"[{DIGITS}]", "nan": "nan", "inf": "inf", "minus inf": "-inf"}
TOML_VALUES |= {"beyond a float": "1e999", "minus": "-1", "zero": "0", "deep": "[" * 999 + "]" * 999}
TOML_VALUES |= {"date": "2024-02-30", "time": "07:32:00", "no text": '""', "nul": '"\\u0000"', "array": "[]"}
TOML_VALUES |= {"table": "{}", "true": "true", "long": f'"{"x" * 9999}"', "digits as text": f'"{DIGITS}"'}


def sample(values: dict[str, str]) -> list[Any]:
    """All of them; those that found most when this was written also where tests must be quick."""
    quick = {"digits", "NaN", "nan", "deep"}
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in values]


def survives(capsys: pytest.CaptureFixture[str], *arguments: str) -> int:
    """The exit code of a command that says what is wrong in a few lines; what it raises is a traceback for the user."""
    code = main(arguments)
    said = capsys.readouterr().err
    assert code in {0, 2}, said
    assert bool(said) == (code == 2), said
    assert len(said) < 3000, said[:3000]
    return code


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


ROW = {"id": '"a"', "problem": '"1 + 1?"', "answer": '"2"', "subject": '"sums"', "level": "1"}
CHAT = {"messages": '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]', "tools": "[]"}


def line(row: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in row.items()) + "}\n"


@pytest.mark.parametrize("wrong", sample(JSON_VALUES))
def test_rows_of_problems_and_conversations(here: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, number = JSON_VALUES[wrong], 0
    rows = [line({**ROW, key: value}) for key in ROW]
    rows += [line({"prompt": value, "answer": '"2"'}), line({**ROW, "answer": "null", "reward_model": value})]
    rows += [line({"prompt": f'[{{"role": "user", "content": {value or 1}}}]', "answer": '"2"'}), f"{value}\n"]
    rows += [line({**CHAT, key: value}) for key in CHAT]
    rows += [line({"messages": f'[{{"role": {value or 1}, "content": {value or 1}, "tool_calls": {value or 1}}}]'})]
    for row in rows:
        (here / "p.jsonl").write_text(line({**ROW, "id": '"b"'}) + row)
        for subject in (("sft",), ("demonstrate", "--number", "1")):
            number += 1
            out = here / f"out{number}.jsonl"
            if survives(capsys, "data", *subject, "p.jsonl", "--out", str(out)) == 0:
                for written in out.read_text().splitlines():
                    json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
            else:
                assert not out.exists()
        with suppress(TaskError):
            review = Review()
            for where, found_row in rows_of(["p.jsonl"], here):
                review.faults(found_row, where)
        try:
            found = chosen_problems(["p.jsonl"], None, None)
        except TaskError as error:
            assert "p.jsonl:2" in str(error)  # noqa: PT017 - or nothing is wrong
        else:
            assert found.count == (2 if row.strip() else 1)


@pytest.mark.parametrize("wrong", sample(TOML_VALUES))
def test_every_key_of_a_topology(here: Path, wrong: str) -> None:
    path, _ = write_micro(here)
    sound = path.read_text().splitlines()
    changed = 0
    for number, text in enumerate(sound):
        key = re.match(r"(\w+) = ", text)
        if key is None:
            continue
        changed += 1
        path.write_text("\n".join([*sound[:number], f"{key[1]} = {TOML_VALUES[wrong]}", *sound[number + 1 :]]))
        try:
            faults = check_topology(load_topology(path), path)
        except TopologyError as error:
            faults = error.faults
        said = [fault.render(path) for fault in faults]
        assert all(len(each) < 1000 for each in said), said
        if wrong in {"digits", "negative digits", "array of digits"}:
            (fault,) = faults
            assert fault.line == number + 1
            assert "thousands of digits" in fault.message
        elif wrong == "70 bits":
            assert any(fault.line == number + 1 for fault in faults), said
    assert changed > 30


@pytest.mark.parametrize("wrong", sample(TOML_VALUES))
def test_overrides(here: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = write_micro(here)
    for key in (
        "run.seed",
        "algorithm.samples",
        "stages.2.steps",
        "actors.learner.settings.threads",
        "model.path",
        "environments",
        "environments.0.settings",
    ):
        survives(capsys, "check", str(path), "--set", f"{key}={TOML_VALUES[wrong]}")
    survives(capsys, "check", str(path), f"--set={TOML_VALUES[wrong]}=1")


@pytest.mark.parametrize("deep", ["x" + ".a" * 3000 + " = 1", "[x" + ".a" * 3000 + "]", f"x = {'[' * 200}{']' * 200}"])
def test_tables_without_end(here: Path, deep: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = write_micro(here)
    assert survives(capsys, "check", str(path), "--set", f"actors.learner.settings.{'a.' * 3000}a=1") == 2
    path.write_text(f"{path.read_text()}\n[actors.another.settings]\n{deep}\n")
    assert survives(capsys, "check", str(path)) == 2


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound model directory."""
    made = tmp_path_factory.mktemp("models") / "model"
    tiny = InitialiseModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_size=16)
    initialise_model(tiny, made, seed=0)
    return made


@pytest.mark.parametrize("wrong", sample(JSON_VALUES))
def test_every_key_of_a_models_files(here: Path, model: Path, wrong: str) -> None:
    path, _ = write_micro(here)
    before, _, after = path.read_text().partition("[model.initialise]")
    more = after[after.index("[[env") :]
    path.write_text(f'{before}[model]\npath = "{here / "model"}"\nchat_template = "chatml"\n\n{more}')
    topology = load_topology(path)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        sound = json.loads((model / name).read_text())
        for key in {**sound, "layer_types": 0, "sliding_window": 0}:
            copytree(model, here / "model", dirs_exist_ok=True)
            text = json.dumps({**sound, key: "HERE"}).replace('"HERE"', JSON_VALUES[wrong] or "1")
            (here / "model" / name).write_text(text)
            faults = check_topology(topology, path)
            assert all(len(fault.render(path)) < 1000 for fault in faults)


@pytest.mark.parametrize("wrong", sample(JSON_VALUES))
def test_files_that_we_write_and_read_again(here: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = JSON_VALUES[wrong]
    run = here / "run"
    checkpoint = run / "checkpoints" / "version-000002-stage-01"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(value)
    for name in ("results.json", "evaluation.json"):
        (here / name).write_text(value)
    for text in (value, f'{{"problems": {value or 1}}}', f'{{"problems": [{value or 1}]}}'):
        (here / "results.json").write_text(text)
        assert survives(capsys, "eval", "--compare", "results.json", "results.json") == 2
    (run / "metrics.jsonl").write_text(
        f'{value}\n{{"kind": "step", "version": {value or 1}, "success": {value or 1}}}\n'
    )
    for name in ("topology.json", "summary.json", "end.json", "timeline.jsonl"):
        (run / name).write_text(value)
    survives(capsys, "report", str(run))
    (here / "p.jsonl").write_text(line(ROW))
    survives(capsys, "eval", str(run), "--data", "p.jsonl", "--out", str(here / "evaluated"))
    (here / "held").mkdir()
    (here / "held" / "evaluation.json").write_text(value)
    (checkpoint / "config.json").write_text("{}")
    survives(capsys, "eval", str(run), "--data", "p.jsonl", "--out", str(here / "held"))


def test_what_python_reads_and_json_does_not_know_is_never_written(tmp_path: Path) -> None:
    with writer(tmp_path / "out.jsonl") as write:
        write({"a": float("nan"), "b": [1.5, float("nan")], "c": {"d": float("nan")}})
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"a": None, "b": [1.5, None], "c": {"d": None}}
    with pytest.raises(DataError, match="cannot be written as JSON"), writer(tmp_path / "more.jsonl") as write:
        write({"a": float("inf")})
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("wrong", [name for name, text in JSON_VALUES.items() if "deep" in name or DIGITS in text])
def test_json_has_one_kind_of_error(wrong: str) -> None:
    text: Any = JSON_VALUES[wrong]
    if wrong == "digits as text":
        assert parse_json(text) == DIGITS
        return
    with pytest.raises(JsonError):
        parse_json(text)
