"""The directive, the client's reading of streams, and the program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from actors.cli.conformance import conformance
from actors.cli.output import Mistake
from benchmarks.gateway_traps.client import DIALECTS, Failed
from benchmarks.gateway_traps.kit import KitError, main, run
from benchmarks.gateway_traps.say import RANDOM, Told, say, told, written
from tests.benchmarks.gateway_traps.naive import END, decode, encode, gateway

ROOT = Path(__file__).parents[3]
CHAT, RESPONSES, ANTHROPIC = DIALECTS


@pytest.mark.parametrize("text", ["", "Two files.", '<tool_call>\n{"a": "é"}\n</tool_call>', "[[say:plain:eA==]]"])
def test_a_directive_says_what_was_put_into_it(text):
    assert told(f"a {say('old')} b {say(text, 'chars', 20)} c") == Told("chars", 20, text)
    assert told(say(text)) == Told("plain", 0, text)


def test_what_is_no_directive_tells_nothing():
    assert told("[[say]]") is told("[[say:loud:eA==]]") is told("[[say:plain:____w]]") is None


def test_random_is_another_text_each_time():
    texts = {told(say(f"{RANDOM} and {RANDOM}")).text for _ in range(9)}
    assert len(texts) == 9
    assert all(len(text) == 37 and text[:16] == text[21:] for text in texts)


@pytest.mark.parametrize(
    ("what", "text", "ends"),
    [
        (Told("plain", 0, "ab c"), "ab c", True),
        (Told("chars", 0, "ab c"), "ab c", True),
        (Told("empty", 0, "ab c"), "", True),
        (Told("long", 0, "ab "), "ab ab ab ab ab ", False),
    ],
)
def test_an_engine_writes_what_it_is_told(what, text, ends):
    tokens = written(what, encode, decode, END, 10)
    assert (decode([each for each in tokens if each != END]), tokens[-1] == END) == (text, ends)
    assert (tokens == [*encode(text), END]) == (what.mode in {"plain", "empty"})
    assert written(what, encode, decode, END, 1) == tokens[:1]


def test_characters_that_cannot_stand_alone_are_encoded_as_usual():
    assert written(Told("chars", 0, "ab"), lambda text: [len(text)], lambda _: "?", 0, 9) == [2, 0]


def chunk(**delta):
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def test_the_chunks_of_a_call_are_joined():
    call = {"index": 0, "id": "x", "function": {"name": "look", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    last = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    reply = CHAT.read(CHAT.gathered([chunk(content="Hi"), chunk(tool_calls=[call]), chunk(tool_calls=[more]), last]))[0]
    assert (reply.text, reply.calls, reply.finish) == ("Hi", [("x", "look", "{}")], "tool_calls")


RESPONSE = {"id": "r", "status": "completed", "output": [], "usage": None}
MESSAGE = {"type": "message_start", "message": {"id": "m"}}


@pytest.mark.parametrize(
    ("dialect", "parts", "reason"),
    [
        (CHAT, [chunk(content="Hi")], "without a finish_reason"),
        (RESPONSES, [{"type": "response.created", "sequence_number": 1}], "sequence_number"),
        (RESPONSES, [{"type": "response.created", "sequence_number": 0}], "ended with response.created"),
        (
            RESPONSES,
            [
                {"type": "response.output_text.delta", "delta": "Hi", "sequence_number": 0},
                {"type": "response.completed", "response": RESPONSE, "sequence_number": 1},
            ],
            "the deltas add up to 'Hi'",
        ),
        (ANTHROPIC, [MESSAGE], "ended with message_start"),
        (ANTHROPIC, [MESSAGE, {"type": "content_block_start", "index": 1}, {"type": "message_stop"}], "block 1"),
    ],
)
def test_a_stream_that_is_not_whole_fails(dialect, parts, reason):
    with pytest.raises(Failed, match=reason):
        dialect.gathered(parts)


def test_a_dialect_that_answers_with_an_error_leaves_the_others_to_be_checked():
    with gateway("no_responses") as there:
        found = {each.dialect: (each.outcome, each.reason) for each in run(there.url, there.key, only=("turn",))}
    outcome, reason = found.pop("responses")
    assert (outcome, reason[:38]) == ("not applicable", "POST /v1/responses gives status 500: {")
    assert found == {"chat": ("passed", ""), "anthropic": ("passed", "")}


def test_without_a_gateway_that_obeys_there_are_no_results():
    with gateway("deaf") as there, pytest.raises(KitError, match="does not obey the directive"):
        run(there.url, there.key)
    with gateway() as there, pytest.raises(KitError, match="status 401"):
        run(there.url, "another key")
    with pytest.raises(KitError, match="does not answer"):
        run(there.url, there.key)
    with pytest.raises(KitError, match="give the key"):
        run(there.url)
    with pytest.raises(KitError, match="no check 24, turns; there are turn, "):
        run(there.url, there.key, only=("24", "turns", "17"))


def test_the_programs_print_a_table_or_json(capsys):
    with gateway("strict", "chat_only") as there:
        assert conformance(f"{there.url}/v1", key=there.key, only=("turn", "17", "11")) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["trap", "check", "dialect", "result"]
        assert lines[1].split()[:4] == ["1", "turn", "chat", "passed"]
        assert lines[-1] == "2 passed, 1 failed, 7 not applicable"
        assert main([there.url, "--key", there.key, "--only", "turn", "--json"]) == 0
        assert [each["outcome"] for each in json.loads(capsys.readouterr().out)] == ["passed", *["not applicable"] * 2]
    with pytest.raises(Mistake, match="does not answer"):
        conformance(there.url, key=there.key)
    assert main([there.url, "--key", there.key]) == 2
    assert "does not answer" in capsys.readouterr().err


def test_the_program_needs_the_standard_library_only():
    code = f"""import sys, runpy
sys.path.insert(0, {str(ROOT)!r})
sys.argv = ["conformance", "127.0.0.1:9", "--key", "k"]
try:
    runpy.run_module("benchmarks.gateway_traps", run_name="__main__")
finally:
    print(*{{name.partition(".")[0] for name in sys.modules}})
"""
    done = subprocess.run(
        [sys.executable, "-IS", "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "does not answer" in done.stderr) == (2, True)
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"__main__", "benchmarks", "agent_rl"}
