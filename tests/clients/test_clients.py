"""Agents' own clients, unmodified, at a real gateway: each is served, and trained on the tokens that it was sampled.

Each script beside this file is a program of a user. Those of openai and anthropic run in this environment, all others
in one of their own, and slowly, that knows nothing of this project. The engine
writes what `TURNS` says, in a form that no client keeps: other white space and another order of keys in its calls, and
reasoning that most clients drop. All the same, a client that goes on with its history must continue the very tokens.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio

from agent_rl.rollout.keys import MODEL
from benchmarks.rollout_models import quickstart_model, save_writer
from tests.actors.gateway.stand import stand

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-clients"
OWN = {"openai_sync", "openai_async", "openai_streaming", "openai_responses", "anthropic_messages", "anthropic_tools"}
INSTALLED = pytest.mark.skipif(
    not (ENVIRONMENT / "installed").is_file(), reason="no clients are here: make .venv-clients/installed"
)
FOREIGN = (pytest.mark.slow, INSTALLED)
pytestmark = pytest.mark.real_time

LONGEST_SECONDS = 120.0
"""For the clients of a test, on a busy machine. Each takes a few seconds of a processor, most of it for imports."""

PARIS = '<tool_call>{"name": "weather", "arguments": {"days":2,   "city": "Paris"}}</tool_call>'
OSLO = '<tool_call>{"name":"weather","arguments":{"city":"Oslo","days":1}}</tool_call>'
BERN = '<tool_call>{"arguments": {"city": "Bern", "days": 1}, "name": "weather"}</tool_call>'
TURNS = (
    f"I look it up.\n{PARIS}",
    '<think>\nIt will clear up.\n</think>\n\nRain today, "sun" tomorrow.\n',
    f"{OSLO}\n{BERN}",
    "Dry in Oslo and in Bern.",
)
ANSWERS = ['Rain today, "sun" tomorrow.', "Dry in Oslo and in Bern."]
CALLS = [{"city": "Bern", "days": 1}, {"city": "Oslo", "days": 1}, {"city": "Paris", "days": 2}]

BASH = '<tool_call>{"name":"bash", "arguments": {"command":  "%s"}}</tool_call>'
COMMANDS = (
    f"I compute.\n{BASH % 'echo $((6 * 7)) > answer; cat answer'}",
    BASH % "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer",
)
FINAL = '<tool_call>{"name":"final_answer","arguments":{"answer":"%s"}}</tool_call>'
CODE = (
    "I ask.\n<code>\nprint(weather('Paris', 2))\n</code>",
    "<code>\nfinal_answer('Rain')\n</code>",
    "<code>\nfinal_answer('Dry')\n</code>",
)


@dataclass(frozen=True)
class Run:
    """A client's end, and what the rollout has. ``prompts``, ``written``: of each turn, as the engine had them."""

    name: str
    status: int
    output: str
    errors: str
    prompts: list[list[int]]
    written: list[list[int]]
    strands: list[list[int]]
    causes: set[str]
    trained: list[int]
    text: str

    @property
    def seen(self):
        assert self.status == 0, f"{self.name}: {self.output}\n{self.errors}"
        return json.loads(self.output.splitlines()[-1])


def program(at, name, key, home):
    """The command of a client, and what its process needs."""
    home.mkdir()
    client, *arguments = name.split()
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "AGENT_RL_MODEL": MODEL}
    variables |= {"OPENAI_BASE_URL": f"{at.url}/v1", "OPENAI_API_KEY": key}
    variables |= {"ANTHROPIC_BASE_URL": at.url, "ANTHROPIC_API_KEY": key}
    variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise it asks the internet, three times
    how = {"cwd": home, "env": variables, "capture_stdout": True, "capture_stderr": True, "check": False}
    python = sys.executable if client in OWN else ENVIRONMENT / "bin" / "python"
    return [python, HERE / f"{client}.py", *arguments], how


async def run(folder: Path, clients: Sequence[str], texts: Sequence[str] | None) -> list[Run]:
    """Run clients at once, each with a rollout of its own, in which the engine writes these texts, or the model."""
    turns = {name: iter(texts or ()) for name in clients}
    runs: dict[str, Run] = {}

    def script(_, request):
        return next(turns[request.rollout.partition("+")[0]], "One turn too many.")

    async def run_one(name: str) -> None:
        async with at.rollout() as (key, episode):
            episode.request = replace(episode.request, rollout=name)
            command, how = program(at, name, key, folder / name)
            ended = await trio.run_process(command, **how)
            strands = episode.strands
            names = [name, *(f"{name}+{strand.number}" for strand in strands[1:])]
            tokens = episode.trajectory(generator="g", seconds=0.0).unpack()
            trained = tokens.tokens[tokens.loss_mask == 1].tolist()
            asked = [] if texts is None else at.engine.requests
            runs[name] = Run(
                name,
                ended.returncode,
                ended.stdout.decode(),
                ended.stderr.decode(),
                [list(request.tokens) for request in asked if request.rollout in names],
                [turn for each in names if asked for turn in at.engine.written.get(each, [])],
                [strand.turns for strand in strands],
                {strand.cause for strand in strands[1:]},
                trained,
                at.generator._chat.decode(trained),
            )

    with trio.fail_after(LONGEST_SECONDS):
        made = {} if texts is not None else {"engine": None}
        async with stand(folder, script, **made) as at, trio.open_nursery() as nursery:
            for name in clients:
                nursery.start_soon(run_one, name)
    return [runs[name] for name in clients]


def in_order(calls):
    return sorted(calls, key=lambda call: call["city"])


def check_tokens(run, texts):
    """Each token that was sampled is trained, and each turn continued the very tokens before it."""
    assert len(run.written) == len(texts), run.name
    assert run.trained == [token for turn in run.written for token in turn], run.name
    assert run.strands == [[*range(1, len(texts) + 1)]], f"{run.name} branched: {run.causes}"
    for before, written, after in zip(run.prompts, run.written, run.prompts[1:], strict=False):
        assert after[: len(before) + len(written)] == before + written, run.name


async def talk(folder, *clients):
    """Clients that ask both questions, and go on with their history."""
    runs = await run(folder, clients, TURNS)
    for each in runs:
        assert [answer.strip() for answer in each.seen["answers"]] == ANSWERS, each.name
        assert in_order(each.seen["calls"]) == CALLS, each.name
        check_tokens(each, TURNS)
        if "pieces" in each.seen:
            assert "".join(each.seen["pieces"]).endswith(ANSWERS[1]), each.name
            assert len(each.seen["pieces"]) > 1, each.name  # the reply came while it was written
    return runs


async def test_openai(tmp_path):
    whole, _, streamed, _ = await talk(tmp_path, "openai_sync", "openai_async", "openai_streaming", "openai_responses")
    assert (whole.seen["finish"], whole.seen["listed"]) == ("stop", [MODEL])
    assert streamed.seen["tokens"] == streamed.trained
    assert streamed.seen["usage"] == len(streamed.written[-1])
    assert "".join(streamed.seen["pieces"]) == f"I look it up.{ANSWERS[0]}\n{ANSWERS[1]}"


async def test_anthropic(tmp_path):
    (messages,) = await talk(tmp_path, "anthropic_messages")
    assert messages.seen["stop"] == "end_turn"
    assert messages.seen["counted"] == len(messages.prompts[2])


@pytest.mark.parametrize(
    ("client", "ways"),
    [
        ("anthropic_tools", [""]),
        pytest.param("litellm_chat", [""], marks=FOREIGN),
        pytest.param("openai_agents", ["chat_completions", "responses"], marks=FOREIGN),
        pytest.param("pydantic_ai_agent", ["openai-chat", "openai-responses", "anthropic"], marks=FOREIGN),
    ],
)
async def test_agents_go_on_with_their_history(tmp_path, client, ways):
    await talk(tmp_path, *(f"{client} {way}".strip() for way in ways))


@pytest.mark.slow
@INSTALLED
async def test_mini_swe_agent(tmp_path):
    (swe,) = await run(tmp_path, ["mini_swe_agent"], COMMANDS)
    assert (swe.seen["status"], swe.seen["answers"], swe.seen["file"]) == ("Submitted", ["42\n"], "42\n")
    check_tokens(swe, COMMANDS)


@pytest.mark.slow
@INSTALLED
async def test_smolagents_tells_its_calls_in_other_words(tmp_path):
    texts = (TURNS[0], FINAL % "Rain", TURNS[2], FINAL % "Dry")
    (tools,) = await run(tmp_path, ["smolagents_agent tools"], texts)
    assert (tools.seen["answers"], in_order(tools.seen["calls"])) == (["Rain", "Dry"], CALLS)
    assert tools.trained == [token for turn in tools.written for token in turn]
    # "Calling tools: [...]" stands for each turn with a call, so that each request changes what was said.
    assert (tools.strands, tools.causes) == ([[1], [2], [3], [4]], {"rewrite"})


@pytest.mark.slow
@INSTALLED
async def test_smolagents_ends_code_at_a_stop_string(tmp_path):
    (code,) = await run(tmp_path, ["smolagents_agent code"], CODE)
    assert (code.seen["answers"], code.seen["calls"]) == (["Rain", "Dry"], CALLS[2:])
    assert code.text == "".join(CODE)  # the tokens up to the stop string, and no token that ends a turn
    assert (code.strands, code.causes) == ([[1], [2], [3]], {"rewrite"})


@pytest.mark.slow
@INSTALLED
async def test_clients_of_the_tiny_model(tmp_path):
    """Clients that end without calls, since the model has learned none of their tools."""
    model = quickstart_model().model_copy(update={"max_length": 8192})
    save_writer(tmp_path / "model", model, thinking=20.0, calling=0.0)
    clients = ["openai_sync", "openai_async", "openai_streaming", "openai_responses", "anthropic_messages"]
    clients += ["anthropic_tools", "litellm_chat", "openai_agents chat_completions", "openai_agents responses"]
    clients += [f"pydantic_ai_agent {way}" for way in ("openai-chat", "openai-responses", "anthropic")]
    for each in await run(tmp_path, clients, None):
        assert (each.seen["calls"], each.strands) == ([], [[1, 2]]), each.name
        first, second = (answer.strip() for answer in each.seen["answers"])
        assert "boxed{3}" in first, each.name
        assert first != second, each.name
        # What a client was told is what is trained, but for the tokens that end a turn.
        assert each.text.replace(" ", "").replace("<|end|>", "") == (first + second).replace(" ", ""), each.name
